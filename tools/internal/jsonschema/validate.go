package jsonschema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools/internal/strictjson"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// maxProblemBytes bounds a problem: a model needs the path, not its own megabyte
// back.
const maxProblemBytes = 400

// Validate returns the problems of a value whose numbers are json.Number, each as
// "path: message" with the path as a JSON pointer, at most so many and then the
// number of the others.
//
// For a schema of [CompileForeign], a value that takes more than [MaxSteps] has that
// problem alone.
func (s *Schema) Validate(v any, most int) []string { return s.validate(v, result{most: most}) }

// ValidateInput is like [Schema.Validate] for the input of a tool. It removes optional
// properties from v that are null although null is not valid: many models give every
// property.
func (s *Schema) ValidateInput(v any, most int) []string {
	return s.validate(v, result{most: most, dropNulls: true})
}

func (s *Schema) validate(v any, r result) (problems []string) {
	if s.foreign {
		r.work = &work{left: MaxSteps}
		defer func() {
			switch p := recover().(type) {
			case nil:
			case workExceeded:
				problems = []string{fmt.Sprintf("/: the schema takes more than %d steps to check", MaxSteps)}
			default:
				panic(p)
			}
		}()
	}
	r.applySchema(s, v)
	if over := r.count - len(r.problems); over > 0 {
		return append(r.problems, fmt.Sprintf("and %d more", over))
	}
	return r.problems
}

// MaxSteps bounds the work of checking one value with a schema that others wrote. A
// step is about a microsecond: one schema applied to one value, or a part of a pattern
// or of a comparison.
const MaxSteps = 500_000

// maxApplied bounds how deep schemas are nested while they are applied to a value: 64
// levels of the value with as many schemas each.
const maxApplied = 4096

// work counts down the bounds of one validation.
type work struct{ left, depth int }

// workExceeded is the panic that ends a validation.
type workExceeded struct{}

// result collects the problems of a value, depth first.
type result struct {
	most     int
	path     []string
	problems []string
	count    int
	// dropNulls is set for the input of a tool, see [Schema.ValidateInput].
	dropNulls bool
	// work is shared with the results of parts, nil without a bound.
	work *work
}

// spendSteps takes steps. It panics with workExceeded if none are left.
func (r *result) spendSteps(steps int) {
	if r.work == nil {
		return
	}
	if r.work.left -= steps; r.work.left < 0 || r.work.depth > maxApplied {
		panic(workExceeded{})
	}
}

// matchPattern reports whether a pattern matches a text.
func (r *result) matchPattern(p *pattern, text string) bool {
	r.spendSteps(1 + (len(text)+1)*p.size/256)
	return p.MatchString(text)
}

func (r *result) addProblem(format string, args ...any) {
	if r.count++; r.count <= r.most {
		r.problems = append(r.problems, utf8text.Clip(formatPath(r.path)+": "+fmt.Sprintf(format, args...), maxProblemBytes))
	}
}

// accepts reports whether a schema accepts a value, and adds no problem to r.
func (r *result) accepts(s *Schema, v any) bool {
	part := result{work: r.work}
	part.applySchema(s, v)
	return part.count == 0
}

// applySchema applies a schema to a value. The parts of the value are looked at only if
// its type is accepted and it is one of the allowed values.
func (r *result) applySchema(s *Schema, v any) {
	if r.work != nil {
		r.work.depth++
		defer func() { r.work.depth-- }()
	}
	r.spendSteps(1 + (len(s.properties)+len(s.required)+len(s.dependentRequired)+len(s.dependentSchemas))/8)
	if s.never {
		r.addProblem("no value is accepted here")
		return
	}
	if got := typeOf(v); len(s.types) > 0 && !slices.ContainsFunc(s.types, func(t string) bool { return isType(t, got, v) }) {
		r.addProblem("got %s, want %s", got, strings.Join(s.types, " or "))
		return
	}
	for _, set := range s.allowed {
		key := keyOf(v)
		r.spendSteps(len(key)/4 + len(set.keys)/16)
		if !slices.Contains(set.keys, key) {
			r.addProblem("value must be %s", set.text)
			return
		}
	}
	switch v := v.(type) {
	case json.Number:
		r.applyToNumber(s, v)
	case string:
		r.applyToString(s, v)
	case []any:
		r.applyToArray(s, v)
	case map[string]any:
		r.applyToObject(s, v)
	}
	r.applyLogic(s, v)
}

func (r *result) applyToNumber(s *Schema, n json.Number) {
	if len(s.bounds) == 0 && s.multipleOf == nil {
		return
	}
	value := exactValue(n)
	for _, b := range s.bounds {
		if !b.accepts(value.Cmp(b.value)) {
			r.addProblem("%s: got %s, want %s", b.keyword, n, formatNumber(b.value))
		}
	}
	if s.multipleOf != nil && !new(big.Rat).Quo(value, s.multipleOf).IsInt() {
		r.addProblem("multipleOf: got %s, want a multiple of %s", n, formatNumber(s.multipleOf))
	}
}

func (r *result) applyToString(s *Schema, text string) {
	r.checkCount("Length", utf8.RuneCountInString(text), s.length)
	if s.pattern != nil && !r.matchPattern(s.pattern, text) {
		r.addProblem("%q does not match pattern %q", utf8text.Clip(text, maxProblemBytes/4), s.pattern)
	}
}

func (r *result) applyToArray(s *Schema, list []any) {
	r.checkCount("Items", len(list), s.itemCount)
	if s.unique {
		if first, second := r.findEqual(list); second > 0 {
			r.addProblem("items %d and %d are equal", first, second)
		}
	}
	if s.contains != nil {
		n := 0
		for _, v := range list {
			if r.accepts(s.contains, v) {
				n++
			}
		}
		r.checkCount("Contains", n, s.containsCount)
	}
	for i, v := range list {
		if i < len(s.prefixItems) {
			r.applyToPart(s.prefixItems[i], strconv.Itoa(i), v)
		} else if s.items != nil {
			r.applyToPart(s.items, strconv.Itoa(i), v)
		}
	}
}

func (r *result) applyToObject(s *Schema, object map[string]any) {
	for _, p := range s.properties {
		if v, given := object[p.name]; r.dropNulls && given && v == nil && !slices.Contains(s.required, p.name) && !r.accepts(p.schema, nil) {
			delete(object, p.name)
		}
	}
	r.checkCount("Properties", len(object), s.propertyCount)
	r.checkRequired(s.required, object, "")
	for _, d := range s.dependentRequired {
		if _, given := object[d.name]; given {
			r.checkRequired(d.required, object, d.name)
		}
	}
	for _, p := range s.properties {
		if v, given := object[p.name]; given {
			r.applyToPart(p.schema, p.name, v)
		}
	}
	r.applyToNames(s, object)
	for _, d := range s.dependentSchemas {
		if _, given := object[d.name]; given {
			r.applySchema(d.schema, object)
		}
	}
}

// applyToNames applies the keywords that depend on the name of a property, other
// than properties.
func (r *result) applyToNames(s *Schema, object map[string]any) {
	if s.additional == nil && s.propertyNames == nil && len(s.patternProperties) == 0 {
		return
	}
	r.spendSteps(len(object) / 4)
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if s.propertyNames != nil && !r.accepts(s.propertyNames, name) {
			r.addProblem("property name %q is not accepted", utf8text.Clip(name, maxProblemBytes/4))
		}
		_, known := slices.BinarySearchFunc(s.properties, name, func(p namedSchema, name string) int { return strings.Compare(p.name, name) })
		for _, p := range s.patternProperties {
			if r.matchPattern(p.pattern, name) {
				known = true
				r.applyToPart(p.schema, name, object[name])
			}
		}
		switch {
		case known || s.additional == nil:
		case s.additional.never:
			r.addProblem("unknown property %q", utf8text.Clip(name, maxProblemBytes/4))
		default:
			r.applyToPart(s.additional, name, object[name])
		}
	}
}

// applyLogic applies the keywords that hold for a value of any type.
func (r *result) applyLogic(s *Schema, v any) {
	if s.ref != nil {
		r.applySchema(s.ref, v)
	}
	for _, part := range s.allOf {
		r.applySchema(part, v)
	}
	accepts := func(part *Schema) bool { return r.accepts(part, v) }
	if len(s.anyOf) > 0 && !slices.ContainsFunc(s.anyOf, accepts) {
		r.addProblem("anyOf: none of the %d schemas accepts the value", len(s.anyOf))
	}
	if len(s.oneOf) > 0 {
		n := 0
		for _, part := range s.oneOf {
			if accepts(part) {
				n++
			}
		}
		if n != 1 {
			r.addProblem("oneOf: %d of the %d schemas accept the value, want 1", n, len(s.oneOf))
		}
	}
	if s.not != nil && accepts(s.not) {
		r.addProblem("not: the schema accepts the value")
	}
	if s.condition != nil {
		branch := s.otherwise
		if accepts(s.condition) {
			branch = s.then
		}
		if branch != nil {
			r.applySchema(branch, v)
		}
	}
}

func (r *result) applyToPart(s *Schema, key string, v any) {
	r.path = append(r.path, key)
	r.applySchema(s, v)
	r.path = r.path[:len(r.path)-1]
}

// checkCount checks a number that two keywords bound, min and max with this end.
func (r *result) checkCount(keyword string, n int, c countRange) {
	if n < c.minimum {
		r.addProblem("min%s: got %d, want %d", keyword, n, c.minimum)
	}
	if c.maximum >= 0 && n > c.maximum {
		r.addProblem("max%s: got %d, want %d", keyword, n, c.maximum)
	}
}

// checkRequired checks that an object has these properties, for the sake of
// another one if it is named.
func (r *result) checkRequired(names []string, object map[string]any, dependent string) {
	for _, name := range names {
		if _, given := object[name]; given {
			continue
		}
		if dependent != "" {
			r.addProblem("missing property %q, which %q requires", name, dependent)
		} else {
			r.addProblem("missing property %q", name)
		}
	}
}

// typeOf returns the type of a value. That of a number is number.
func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case json.Number:
		return "number"
	case string:
		return "string"
	case []any:
		return "array"
	default:
		return "object"
	}
}

func isType(want, got string, v any) bool {
	if want == "integer" {
		n, ok := v.(json.Number)
		return ok && exactValue(n).IsInt()
	}
	return want == got
}

// newValueSet returns the set of these values.
func newValueSet(list []any) valueSet {
	var set valueSet
	texts := make([]string, len(list))
	for i, v := range list {
		set.keys = append(set.keys, keyOf(v))
		text, _ := strictjson.Canonical(v) // it was decoded from JSON
		texts[i] = string(text)
	}
	if set.text = strings.Join(texts, ", "); len(list) > 1 {
		set.text = "one of " + set.text
	}
	return set
}

// keyOf returns a text that two values share if they are equal.
func keyOf(v any) string {
	text, _ := strictjson.Canonical(rewriteNumbers(v, formatNumber)) // it was decoded from JSON
	return string(text)
}

// WriteIntegers returns a value in which whole numbers of 64 bits are written as
// integers: JSON Schema accepts 60.0 and 6e1 as integers, but most programs don't.
func WriteIntegers(v any) any {
	return rewriteNumbers(v, func(r *big.Rat) string {
		if r.IsInt() && r.Num().IsInt64() {
			return r.Num().String()
		}
		return ""
	})
}

// rewriteNumbers returns a value with each number written by format, or unchanged if
// format returns "".
func rewriteNumbers(v any, format func(*big.Rat) string) any {
	switch v := v.(type) {
	case json.Number:
		return json.Number(cmp.Or(format(exactValue(v)), string(v)))
	case []any:
		list := make([]any, len(v))
		for i, e := range v {
			list[i] = rewriteNumbers(e, format)
		}
		return list
	case map[string]any:
		object := make(map[string]any, len(v))
		for name, e := range v {
			object[name] = rewriteNumbers(e, format)
		}
		return object
	}
	return v
}

// findEqual returns the places of two items that are equal, the second being 0 if
// there are none.
func (r *result) findEqual(list []any) (first, second int) {
	places := make(map[string]int, len(list))
	for i, v := range list {
		key := keyOf(v)
		r.spendSteps(len(key) / 4)
		if first, found := places[key]; found {
			return first, i
		}
		places[key] = i
	}
	return 0, 0
}

// formatNumber returns a number of JSON in decimal, exactly.
func formatNumber(r *big.Rat) string {
	digits, _ := r.FloatPrec()
	return r.FloatString(digits)
}
