package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/caisson-run/caisson/tools/internal/jsonschema"
	"github.com/caisson-run/caisson/tools/internal/strictjson"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// Bounds of a json_schema check. Package jsonschema bounds its work.
const (
	maxSchemaParts = 10_000
	maxJSONDepth   = 100
	// maxProblems bounds the problems in a check's reason.
	maxProblems = 5
)

func matchSchema(schema json.RawMessage, text string) (bool, string) {
	if len(schema) == 0 || string(schema) == "null" {
		return false, "needs schema"
	}
	s, err := CompileSchema(schema)
	if err != nil {
		return false, "the schema " + err.Error()
	}
	if problems := s.Check(text); len(problems) > 0 {
		return false, strings.Join(problems, "; ")
	}
	return true, "valid"
}

// Schema is a compiled JSON Schema of draft 2020-12, or of the draft in its
// $schema. References lead to parts of the schema itself. The cost of a check is
// bounded.
type Schema struct {
	compiled *jsonschema.Schema
}

// CompileSchema compiles a schema. Its error reads as the end of a sentence about it.
func CompileSchema(schema []byte) (*Schema, error) {
	doc, err := decodeJSON(string(schema))
	if err != nil {
		return nil, fmt.Errorf("is not JSON: %w", err)
	}
	parts, err := countValues(doc, 0)
	if err != nil {
		return nil, err
	}
	if parts > maxSchemaParts {
		return nil, fmt.Errorf("has %d parts, at most %d are accepted", parts, maxSchemaParts)
	}
	compiled, problems := jsonschema.Compile(doc)
	if len(problems) > 0 {
		problems = problems[:min(len(problems), maxProblems)]
		return nil, errors.New("can't be used: " + utf8text.Clip(strings.Join(problems, "; "), 1000))
	}
	return &Schema{compiled}, nil
}

// Check validates text as JSON and returns at most a few problems.
func (s *Schema) Check(text string) (problems []string) {
	value, err := decodeJSON(text)
	if err != nil {
		return []string{"not JSON: " + err.Error()}
	}
	if _, err := countValues(value, 0); err != nil {
		return []string{"the JSON " + err.Error()}
	}
	return s.compiled.Validate(value, maxProblems)
}

// decodeJSON decodes one value and keeps its numbers as written.
func decodeJSON(text string) (any, error) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more data after the value")
	}
	return v, nil
}

// countValues returns the number of values in a document. Its error reads as the
// end of a sentence about the document.
func countValues(v any, depth int) (int, error) {
	if depth > maxJSONDepth {
		return 0, fmt.Errorf("is nested deeper than %d", maxJSONDepth)
	}
	n := 1
	count := func(part any) error {
		more, err := countValues(part, depth+1)
		n += more
		return err
	}
	switch v := v.(type) {
	case map[string]any:
		for _, part := range v {
			if err := count(part); err != nil {
				return 0, err
			}
		}
	case []any:
		for _, part := range v {
			if err := count(part); err != nil {
				return 0, err
			}
		}
	case json.Number:
		if err := strictjson.CheckNumber(string(v)); err != nil {
			return 0, fmt.Errorf("holds a %w", err)
		}
	}
	return n, nil
}
