package jsonschema

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	validator "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

// MaxSteps bounds the work of checking one value. A step takes a few microseconds: one
// schema applied to one value, or a part of a pattern or of a comparison.
const MaxSteps = 200_000

var errMaxSteps = fmt.Errorf("the schema takes more than %d steps to check", MaxSteps)

// maxChain bounds a chain of schemas in which each applies the next to the same
// value, and so the stack. No value nests deeper than that.
const maxChain = 256

// work counts down the steps of one validation. The library calls it as the format
// of each schema, which it checks before the parts of a value.
type work struct {
	mu   sync.Mutex
	left int
}

func (w *work) spend(steps int) {
	if w.left -= steps; w.left < 0 {
		panic(errMaxSteps)
	}
}

// apply applies the schema. Its error is the library's or errMaxSteps.
func (s *Schema) apply(v any) (err error) {
	defer func() {
		if p := recover(); p == errMaxSteps { //nolint:errorlint // spend panics with it as it is
			err = errMaxSteps
		} else if p != nil {
			panic(p)
		}
	}()
	return s.compiled.Validate(v) //nolint:wrapcheck // formatProblems reads it
}

// count returns a copy of a schema that counts its work.
func (w *work) count(doc any, c *validator.Compiler) any {
	var count func(v any, path []string) any
	count = func(v any, path []string) any {
		s, ok := v.(map[string]any)
		if !ok {
			return v
		}
		steps := 1 + lengthOf(s["allOf"]) + lengthOf(s["anyOf"]) + lengthOf(s["oneOf"]) + lengthOf(s["dependentSchemas"]) +
			countValues(s["dependentRequired"]) + (len(s)+lengthOf(s["properties"])+lengthOf(s["required"]))/8
		unmarked := 1 // schemas that are true or false have no format
		for _, key := range []string{"allOf", "anyOf", "oneOf"} {
			parts, _ := s[key].([]any)
			for _, part := range parts {
				if _, isBool := part.(bool); isBool {
					unmarked++
				}
			}
		}
		s = mapParts(maps.Clone(s), path, count)
		for _, key := range sizeKeywords {
			if n, ok := s[key].(json.Number); ok {
				s[key] = clampSize(n)
			}
		}
		// The library compares before it checks the format, so move the comparison
		// to another schema.
		for _, key := range []string{"enum", "const"} {
			values, ok := s[key]
			if !ok || key == "enum" && lengthOf(values) == 0 || !addToAllOf(s, map[string]any{key: values}) {
				continue
			}
			text, _ := strictjson.Canonical(values) // it was decoded from JSON
			steps += 1 + countValues(values)/4 + len(text)/256
			delete(s, key)
		}
		perValue := 0
		if s["uniqueItems"] == true {
			perValue = 4
		}
		format := fmt.Sprintf("steps %d %d %d", steps, perValue, unmarked)
		c.RegisterFormat(&validator.Format{Name: format, Validate: func(v any) error {
			w.spend(steps + lengthOf(v)/4*unmarked)
			if perValue > 0 {
				w.spend(perValue * countValues(v))
			}
			return nil
		}})
		s["format"] = format
		return s
	}
	return count(doc, nil)
}

func lengthOf(v any) int {
	switch v := v.(type) {
	case []any:
		return len(v)
	case map[string]any:
		return len(v)
	}
	return 0
}

// countValues returns the number of values in v, including v.
func countValues(v any) int {
	n := 1
	switch v := v.(type) {
	case []any:
		for _, part := range v {
			n += countValues(part)
		}
	case map[string]any:
		for _, part := range v {
			n += countValues(part)
		}
	}
	return n
}

type countedPattern struct {
	*pattern
	work *work
}

func (p countedPattern) MatchString(text string) bool {
	p.work.spend(1 + (len(text)+1)*p.size/256)
	return p.pattern.MatchString(text)
}

// anyText stands for a pattern that can't be expressed.
type anyText struct {
	text string
	work *work
}

func (p anyText) String() string { return p.text }
func (p anyText) MatchString(string) bool {
	p.work.spend(1)
	return true
}

var (
	errLoop  = errors.New("leads back to itself without going into the value")
	errChain = fmt.Errorf("more than %d schemas lead to each other without going into the value", maxChain)
)

// checkChains returns a problem if a schema leads back to itself at the same value,
// so that it accepts no value, or if a chain of schemas is too long.
func checkChains(doc any) []string {
	anchors := map[string][]string{}
	var paths [][]string
	var list func(v any, path []string) any
	list = func(v any, path []string) any {
		if s, ok := v.(map[string]any); ok {
			paths = append(paths, path)
			if name, ok := s["$anchor"].(string); ok {
				anchors[name] = path
			}
			mapParts(maps.Clone(s), path, list)
		}
		return v
	}
	list(doc, nil)
	slices.SortFunc(paths, slices.Compare)
	const visiting = -1
	lengths := map[string]int{}
	var visit func(path []string) (int, error)
	visit = func(path []string) (int, error) {
		key := strings.Join(path, "\x00")
		if n, known := lengths[key]; known {
			if n == visiting {
				return 0, errLoop
			}
			return n, nil
		}
		lengths[key] = visiting
		longest := 0
		for _, next := range listInPlace(doc, path, anchors) {
			n, err := visit(next)
			if err != nil {
				return 0, err
			}
			longest = max(longest, n)
		}
		lengths[key] = longest + 1
		if longest >= maxChain {
			return 0, errChain
		}
		return longest + 1, nil
	}
	for _, path := range paths {
		if _, err := visit(path); err != nil {
			return []string{formatPath(path) + ": " + err.Error()}
		}
	}
	return nil
}

// listInPlace returns the paths of the schemas that the schema at path applies to
// the same value.
func listInPlace(doc any, path []string, anchors map[string][]string) [][]string {
	s, _ := findPart(doc, path).(map[string]any)
	path = slices.Clip(path)
	var paths [][]string
	if ref, ok := s["$ref"].(string); ok {
		fragment := strings.TrimPrefix(ref, "#")
		if fragment == "" || fragment[0] == '/' {
			paths = append(paths, splitPointer(fragment))
		} else if at, ok := anchors[fragment]; ok {
			paths = append(paths, at)
		}
	}
	for _, key := range []string{"allOf", "anyOf", "oneOf", "dependentSchemas", "not", "if", "then", "else"} {
		switch parts := s[key].(type) {
		case []any:
			for i := range parts {
				paths = append(paths, append(path, key, strconv.Itoa(i)))
			}
		case map[string]any:
			if key != "dependentSchemas" {
				paths = append(paths, append(path, key))
				continue
			}
			for name := range parts {
				paths = append(paths, append(path, key, name))
			}
		}
	}
	return paths
}
