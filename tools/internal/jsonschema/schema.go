// Package jsonschema validates JSON values with JSON Schema, and returns every
// problem of a value with its place.
//
// Package github.com/santhosh-tekuri/jsonschema/v6 does the work. This package adds
// what schemas and values from strangers need: nothing is loaded, the work of one
// validation is bounded, and problems are sorted, short and exact. Numbers are
// exact, patterns are package regexp's, and format is an annotation.
package jsonschema

import (
	"errors"
	"slices"
	"strings"

	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Schema is a compiled schema. It is safe for concurrent use, one goroutine at a
// time.
type Schema struct {
	compiled *validator.Schema
	work     *work
}

// Compile compiles a schema whose numbers are json.Number, with exponents that
// strictjson.CheckNumber accepts. If it can't be used, the problems say why, each
// as "path: message" with the path as a JSON pointer.
//
// The schema is read as [Modernize] describes. Keywords that no draft knows are
// annotations.
func Compile(doc any) (*Schema, []string) {
	m := Modernize(doc)
	if problems := slices.Concat(m.Problems, m.Ignored); len(problems) > 0 {
		return nil, problems
	}
	s, _, problems := compile(m.Schema, false)
	return s, problems
}

// CompileForeign is like [Compile] for a schema that should be usable even if a
// part can't be expressed, such as a server's. The schema may accept more than its
// author means, never less. Patterns that package regexp can't express and
// $dynamicRef are left out. Then keywords that would wrongly refuse values are left
// out, too, in the whole schema: not, if, maxContains, the unevaluated keywords,
// and that oneOf accepts only one.
func CompileForeign(doc any) (*Schema, []string) {
	m := Modernize(doc)
	if len(m.Problems) > 0 {
		return nil, m.Problems
	}
	s, inexact, problems := compile(m.Schema, true)
	if (inexact || len(m.Ignored) > 0) && len(problems) == 0 {
		s, _, problems = compile(loosen(m.Schema, nil), true)
	}
	return s, problems
}

const location = "schema:///s.json"

// compile compiles a modern schema. With lenient, a pattern that can't be expressed
// accepts every text and sets inexact.
func compile(doc any, lenient bool) (s *Schema, inexact bool, problems []string) {
	s = &Schema{work: &work{}}
	if problems := checkChains(doc); len(problems) > 0 {
		return nil, false, problems
	}
	c := validator.NewCompiler()
	c.UseLoader(validator.SchemeURLLoader{}) // without a scheme, so that nothing is loaded
	c.UseRegexpEngine(func(text string) (validator.Regexp, error) {
		p, err := newPattern(text)
		if err != nil && lenient && !errors.Is(err, errPatternSize) {
			inexact = true
			return anyText{text, s.work}, nil
		}
		if err != nil {
			return nil, err
		}
		return countedPattern{p, s.work}, nil
	})
	c.AssertFormat()
	err := c.AddResource(location, s.work.count(doc, c))
	if err == nil {
		s.compiled, err = c.Compile(location)
	}
	if err != nil {
		return nil, inexact, describeError(err)
	}
	return s, inexact, nil
}

// Validate returns up to most problems of a value whose numbers are json.Number, and
// then the number of the others. Each is "path: message" with the path as a JSON
// pointer. A value that takes more than [MaxSteps] has only that problem.
func (s *Schema) Validate(v any, most int) []string {
	s.work.mu.Lock()
	defer s.work.mu.Unlock()
	s.work.left = MaxSteps
	return formatProblems(s.apply(v), most)
}

// maxDropRounds bounds how often ValidateInput drops nulls: each round may show nulls
// that a combination hid.
const maxDropRounds = 4

// ValidateInput is like [Schema.Validate] for a tool's input. It removes optional
// properties from v that are null although null is invalid: many models give every
// property.
func (s *Schema) ValidateInput(v any, most int) []string {
	s.work.mu.Lock()
	defer s.work.mu.Unlock()
	s.work.left = MaxSteps
	err := s.apply(v)
	var dropped []nullProperty
	for range maxDropRounds {
		nulls := findNulls(v, err)
		if len(nulls) == 0 {
			break
		}
		for _, n := range nulls {
			delete(n.object, n.name)
		}
		dropped = append(dropped, nulls...)
		err = s.apply(v)
	}
	if restoreRequired(dropped, err) {
		err = s.apply(v)
	}
	return formatProblems(err, most)
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// EscapeKey returns a key as a part of a JSON pointer, clipped.
func EscapeKey(key string) string { return pointerEscapes.Replace(utf8text.Clip(key, 80)) }

func formatPath(keys []string) string {
	if len(keys) == 0 {
		return "/"
	}
	var b strings.Builder
	for _, key := range keys {
		b.WriteString("/" + EscapeKey(key))
	}
	return b.String()
}
