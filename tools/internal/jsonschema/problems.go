package jsonschema

import (
	"cmp"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	validator "github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/caisson-run/caisson/tools/internal/strictjson"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// maxProblemBytes bounds a problem. A model needs the path, not its own megabyte
// back.
const maxProblemBytes = 400

type problem struct {
	path    []string
	message string
}

func (p problem) String() string {
	return utf8text.Clip(formatPath(p.path)+": "+p.message, maxProblemBytes)
}

// formatProblems returns up to most problems from an error of the library, and then
// the number of the others.
func formatProblems(err error, most int) []string {
	if err == nil {
		return nil
	}
	problems := listProblems(err)
	texts := make([]string, 0, min(len(problems), most+1))
	for _, p := range problems[:min(len(problems), most)] {
		texts = append(texts, p.String())
	}
	if over := len(problems) - most; over > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", over))
	}
	return texts
}

// listProblems returns the problems of a validation in the order of their places.
// The library reports an object's problems in no order.
func listProblems(err error) []problem {
	invalid, ok := errors.AsType[*validator.ValidationError](err)
	if !ok {
		return []problem{{nil, err.Error()}}
	}
	var problems []problem
	addProblems(&problems, invalid)
	slices.SortStableFunc(problems, func(a, b problem) int {
		return cmp.Or(slices.CompareFunc(a.path, b.path, compareKeys), strings.Compare(a.message, b.message))
	})
	return slices.CompactFunc(problems, func(a, b problem) bool { return slices.Equal(a.path, b.path) && a.message == b.message })
}

// compareKeys orders places in a list by number.
func compareKeys(a, b string) int {
	x, errX := strconv.Atoi(a)
	y, errY := strconv.Atoi(b)
	if errX == nil && errY == nil {
		return cmp.Compare(x, y)
	}
	return strings.Compare(a, b)
}

// addProblems adds an error of the library, or its causes if it only groups them.
func addProblems(to *[]problem, e *validator.ValidationError) {
	add := func(format string, args ...any) {
		*to = append(*to, problem{e.InstanceLocation, utf8text.Clip(fmt.Sprintf(format, args...), maxProblemBytes)})
	}
	bound := func(keyword string, got *big.Rat, want string, limit *big.Rat) {
		add("%s: got %s, want %s%s", keyword, formatNumber(got), want, formatNumber(limit))
	}
	switch k := e.ErrorKind.(type) {
	case *kind.Schema, *kind.Group, *kind.Reference, *kind.AllOf:
		for _, cause := range e.Causes {
			addProblems(to, cause)
		}
	case *kind.AnyOf:
		add("anyOf: none of the %d schemas accepts the value (%s)", len(e.Causes), summarizeCauses(e))
	case *kind.OneOf:
		if len(k.Subschemas) == 0 {
			add("oneOf: none of the %d schemas accepts the value (%s)", len(e.Causes), summarizeCauses(e))
		} else {
			add("oneOf: the schemas %d and %d accept the value, want only one", k.Subschemas[0], k.Subschemas[1])
		}
	case *kind.Not:
		add("not: the schema accepts the value")
	case *kind.FalseSchema:
		add("no value is accepted here")
	case *kind.RefCycle:
		add("the schema leads back to itself without going into the value")
	case *kind.Required:
		for _, name := range k.Missing {
			add("missing property %q", utf8text.Clip(name, maxProblemBytes/4))
		}
	case *kind.DependentRequired:
		for _, name := range k.Missing {
			add("missing property %q, which %q requires", utf8text.Clip(name, maxProblemBytes/4), k.Prop)
		}
	case *kind.AdditionalProperties:
		for _, name := range k.Properties {
			add("unknown property %q", utf8text.Clip(name, maxProblemBytes/4))
		}
	case *kind.PropertyNames:
		e.InstanceLocation = nil // the library reuses its memory, so it may be another property's
		add("property name %q is not accepted: %s", utf8text.Clip(k.Property, maxProblemBytes/4), summarizeCauses(e))
	case *kind.Format: // of a pattern in a schema; no other format is checked
		add("%v", k.Err)
	case *kind.Enum:
		add("value must be %s", describeValues(k.Want))
	case *kind.Const:
		add("value must be %s", describeValues([]any{k.Want}))
	case *kind.Pattern:
		add("%q does not match pattern %q", utf8text.Clip(k.Got, maxProblemBytes/4), k.Want)
	case *kind.Minimum:
		bound("minimum", k.Got, "", k.Want)
	case *kind.Maximum:
		bound("maximum", k.Got, "", k.Want)
	case *kind.ExclusiveMinimum:
		bound("exclusiveMinimum", k.Got, "more than ", k.Want)
	case *kind.ExclusiveMaximum:
		bound("exclusiveMaximum", k.Got, "less than ", k.Want)
	case *kind.MultipleOf:
		bound("multipleOf", k.Got, "a multiple of ", k.Want)
	default:
		add("%s", e.ErrorKind.LocalizedString(message.NewPrinter(language.English)))
	}
}

// summarizeCauses returns the first problem of each alternative.
func summarizeCauses(e *validator.ValidationError) string {
	var texts []string
	for _, cause := range e.Causes {
		first := listProblems(cause)[0]
		text := first.message
		if above := len(e.InstanceLocation); len(first.path) > above {
			text = formatPath(first.path[above:]) + ": " + text
		}
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, "; ")
}

func describeValues(values []any) string {
	texts := make([]string, len(values))
	for i, v := range values {
		text, _ := strictjson.Canonical(v) // it was decoded from JSON
		texts[i] = string(text)
	}
	if len(values) > 1 {
		return "one of " + strings.Join(texts, ", ")
	}
	return strings.Join(texts, "")
}

// describeError returns the problems of a schema that doesn't compile.
func describeError(err error) []string {
	if invalid, ok := errors.AsType[*validator.SchemaValidationError](err); ok { // of the whole schema
		var texts []string
		for _, p := range listProblems(invalid.Err) {
			texts = append(texts, p.String())
		}
		return texts
	}
	if bad, ok := errors.AsType[*validator.InvalidRegexError](err); ok {
		return []string{utf8text.Clip(strings.TrimPrefix(bad.URL, location+"#")+": "+bad.Err.Error(), maxProblemBytes)}
	}
	if lost, ok := errors.AsType[*validator.JSONPointerNotFoundError](err); ok {
		return []string{utf8text.Clip("/: the reference "+strings.TrimPrefix(lost.URL, location)+" leads to nothing", maxProblemBytes)}
	}
	if lost, ok := errors.AsType[*validator.AnchorNotFoundError](err); ok {
		return []string{utf8text.Clip("/: the reference "+strings.TrimPrefix(lost.Reference, location)+" leads to nothing", maxProblemBytes)}
	}
	return []string{utf8text.Clip("/: "+strings.ReplaceAll(err.Error(), location, ""), maxProblemBytes)}
}

type nullProperty struct {
	object map[string]any
	path   []string // of the object
	name   string
}

// findNulls returns the null properties of a value that an error is about.
func findNulls(v any, err error) []nullProperty {
	var found []nullProperty
	eachError(err, func(e *validator.ValidationError) {
		last := len(e.InstanceLocation) - 1
		if last < 0 {
			return
		}
		path, name := e.InstanceLocation[:last], e.InstanceLocation[last]
		object, _ := findPart(v, path).(map[string]any)
		if value, given := object[name]; given && value == nil {
			found = append(found, nullProperty{object, path, name})
		}
	})
	return found
}

// restoreRequired restores the dropped properties that an error misses.
func restoreRequired(dropped []nullProperty, err error) (restored bool) {
	eachError(err, func(e *validator.ValidationError) {
		required, ok := e.ErrorKind.(*kind.Required)
		if !ok {
			return
		}
		for _, d := range dropped {
			if slices.Equal(d.path, e.InstanceLocation) && slices.Contains(required.Missing, d.name) {
				d.object[d.name] = nil
				restored = true
			}
		}
	})
	return restored
}

func eachError(err error, visit func(*validator.ValidationError)) {
	e, ok := errors.AsType[*validator.ValidationError](err)
	if !ok {
		return
	}
	if _, ok := e.ErrorKind.(*kind.PropertyNames); ok {
		return // neither its place nor its causes' places are reliable
	}
	visit(e)
	for _, cause := range e.Causes {
		eachError(cause, visit)
	}
}
