package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

// Bounds of a json_schema check. Without references, validation visits each part
// of the schema at most once per value, so the product of both bounds its cost.
const (
	maxSchemaNodes = 2000
	maxSchemaWork  = 5_000_000
	maxJSONDepth   = 100
)

// referenceKeywords are the keywords that apply a schema more than once.
var referenceKeywords = []string{"$ref", "$dynamicRef", "$recursiveRef"}

// refuseLoader refuses to load any referenced schema.
type refuseLoader struct{}

func (refuseLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("load %q: references are not followed", url)
}

// matchSchema validates text as JSON against a schema, by default of draft
// 2020-12.
func matchSchema(schema json.RawMessage, text string) (bool, string) {
	if len(schema) == 0 || string(schema) == "null" {
		return false, "needs schema"
	}
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(schema)))
	if err != nil {
		return false, "the schema is not JSON: " + err.Error()
	}
	m := measurer{schema: true}
	m.countNodes(doc, 0)
	switch {
	case m.problem != "":
		return false, "the schema " + m.problem
	case m.nodes > maxSchemaNodes:
		return false, fmt.Sprintf("the schema has %d parts, at most %d are accepted", m.nodes, maxSchemaNodes)
	case m.patternSize*len(text) > maxRegexWork:
		return false, fmt.Sprintf("the schema's patterns are too large for a text of %d bytes", len(text))
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return false, "not JSON: " + err.Error()
	}
	v := measurer{}
	v.countNodes(value, 0)
	switch {
	case v.problem != "":
		return false, "the JSON " + v.problem
	case m.nodes*v.nodes > maxSchemaWork:
		return false, fmt.Sprintf("the JSON has %d values, too many for this schema", v.nodes)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(refuseLoader{})
	const at = "schema:///check.json"
	if err := c.AddResource(at, doc); err != nil {
		return false, "the schema can't be used: " + err.Error()
	}
	compiled, err := c.Compile(at)
	if err != nil {
		return false, "the schema can't be used: " + err.Error()
	}
	if err := compiled.Validate(value); err != nil {
		return false, firstProblems(err)
	}
	return true, "valid"
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
	text, isText := value.(string)
	if isText && slices.Contains(referenceKeywords, key) {
		m.problem = "holds " + key + ", which is not followed"
	}
	if isText && key == "pattern" {
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

// firstProblems returns the first few problems of a validation error, sorted.
func firstProblems(err error) string {
	invalid, ok := errors.AsType[*jsonschema.ValidationError](err)
	if !ok {
		return err.Error()
	}
	var list []string
	for _, unit := range invalid.BasicOutput().Errors {
		if unit.Error != nil {
			path := unit.InstanceLocation
			if path == "" {
				path = "/"
			}
			list = append(list, clipText(path+": "+unit.Error.String(), 200))
		}
	}
	slices.Sort(list)
	list = slices.Compact(list)
	const maxProblems = 5
	if over := len(list) - maxProblems; over > 0 {
		list = append(list[:maxProblems], fmt.Sprintf("and %d more", over))
	}
	return strings.Join(list, "; ")
}
