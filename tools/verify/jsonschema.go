package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/caisson-run/caisson/tools/internal/jsonschema"
	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

// Bounds of a json_schema check. A part of the schema is applied at most once to
// each value, so the product of both bounds its cost, and may read all of the
// text: 500 million bytes take a second.
const (
	maxSchemaNodes = 2000
	maxSchemaWork  = 5_000_000
	maxSchemaBytes = 500_000_000
	maxJSONDepth   = 100
	// maxProblems bounds the problems that the reason of a check names.
	maxProblems = 5
)

// matchSchema validates text as JSON against a schema of draft 2020-12.
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

// Schema is a compiled JSON Schema of draft 2020-12, without references. The cost of
// its checks is bounded.
type Schema struct {
	compiled *jsonschema.Schema
	measured measurer
}

// CompileSchema compiles a schema. Its error reads as the end of a sentence about it.
func CompileSchema(schema []byte) (*Schema, error) {
	doc, err := decodeJSON(string(schema))
	if err != nil {
		return nil, fmt.Errorf("is not JSON: %w", err)
	}
	m := measurer{schema: true}
	m.countNodes(doc, 0)
	switch {
	case m.problem != "":
		return nil, errors.New(m.problem)
	case m.nodes > maxSchemaNodes:
		return nil, fmt.Errorf("has %d parts, at most %d are accepted", m.nodes, maxSchemaNodes)
	}
	compiled, problems := jsonschema.Compile(doc)
	if len(problems) > 0 {
		problems = problems[:min(len(problems), maxProblems)]
		return nil, errors.New("can't be used: " + clipText(strings.Join(problems, "; "), 1000))
	}
	return &Schema{compiled, m}, nil
}

// Check validates text as JSON and returns the problems, at most a few of them.
func (s *Schema) Check(text string) (problems []string) {
	m := s.measured
	switch {
	case m.patternSize*len(text) > maxRegexWork:
		return []string{fmt.Sprintf("the schema's patterns are too large for a text of %d bytes", len(text))}
	case m.nodes*len(text) > maxSchemaBytes:
		return []string{fmt.Sprintf("the schema has %d parts, too many for a text of %d bytes", m.nodes, len(text))}
	}
	value, err := decodeJSON(text)
	if err != nil {
		return []string{"not JSON: " + err.Error()}
	}
	v := measurer{}
	v.countNodes(value, 0)
	switch {
	case v.problem != "":
		return []string{"the JSON " + v.problem}
	case m.nodes*v.nodes > maxSchemaWork:
		return []string{fmt.Sprintf("the JSON has %d values, too many for this schema", v.nodes)}
	}
	return s.compiled.Validate(value, maxProblems)
}

// decodeJSON decodes one value and keeps its numbers as they are written.
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

// measurer measures the cost of a document and finds unacceptable parts of it.
type measurer struct {
	// schema reports whether the document is a schema.
	schema bool
	nodes  int
	// patternSize is the program size of all patterns in a schema.
	patternSize int
	problem     string
}

func (m *measurer) countNodes(v any, depth int) {
	m.nodes++
	if depth > maxJSONDepth {
		m.problem = fmt.Sprintf("is nested deeper than %d", maxJSONDepth)
		return
	}
	switch v := v.(type) {
	case map[string]any:
		for key, child := range v {
			m.countKeyword(key, child)
			m.countNodes(child, depth+1)
		}
	case []any:
		for _, child := range v {
			m.countNodes(child, depth+1)
		}
	case json.Number:
		if err := strictjson.CheckNumber(string(v)); err != nil {
			m.problem = "holds a " + err.Error()
		}
	}
}

// countKeyword examines one key of a schema. A property that is named like a
// keyword is told apart by its value: it is a schema and no string.
func (m *measurer) countKeyword(key string, value any) {
	if !m.schema {
		return
	}
	if text, ok := value.(string); ok && key == "pattern" {
		m.countPattern(text)
	}
	if patterns, ok := value.(map[string]any); ok && key == "patternProperties" {
		for p := range patterns {
			m.countPattern(p)
		}
	}
}

func (m *measurer) countPattern(p string) {
	size, err := programSize(p)
	if err != nil {
		m.problem = fmt.Sprintf("holds a bad pattern, %s", err)
	}
	m.patternSize += size
}
