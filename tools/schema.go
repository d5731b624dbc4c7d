package tools

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/caisson-run/caisson/tools/internal/jsonschema"
	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

const (
	maxSchemaBytes      = 64 << 10
	maxSchemaDepth      = 32
	maxSchemaProperties = 256
)

// subsetKeywords lists the accepted keywords: those of
// docs/internal/specification.md §7, and const, title, default, examples, pattern
// and the bounds of numbers, lengths and items (docs/tools.md).
var subsetKeywords = []string{
	"type", "enum", "const", "default", "examples", "title", "description", "format", "pattern",
	"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems",
	"additionalProperties", "required", "properties", "items",
}

// forbiddenKeywords are left out of the subset because some providers refuse them.
var forbiddenKeywords = []string{
	"$ref", "$id", "$schema", "$defs", "definitions", "allOf", "anyOf", "oneOf", "not", "if", "then", "else",
	"patternProperties", "propertyNames", "dependencies", "dependentRequired", "dependentSchemas", "contains",
	"additionalItems", "unevaluatedItems", "unevaluatedProperties",
}

type schemaChecker struct {
	properties int
	problems   []string
}

// checkSubset returns what is outside the subset, each as "path: message" with a
// JSON pointer. jsonschema.Compile checks the keywords' values.
func checkSubset(schema any) []string {
	c := &schemaChecker{}
	if root, ok := c.checkRoot(schema); ok {
		c.checkSchema("", root)
		c.checkCount()
	}
	return c.problems
}

// checkFull returns what is wrong with a schema that may have any keyword.
func checkFull(schema any) []string {
	c := &schemaChecker{}
	if root, ok := c.checkRoot(schema); ok {
		c.properties = countProperties(root)
		c.checkCount()
		c.problems = append(c.problems, checkNumbers(root, "")...)
	}
	return c.problems
}

// countProperties counts the properties in all parts of a schema.
func countProperties(v any) int {
	n := 0
	switch v := v.(type) {
	case []any:
		for _, part := range v {
			n += countProperties(part)
		}
	case map[string]any:
		for key, part := range v {
			if named, ok := part.(map[string]any); ok && (key == "properties" || key == "patternProperties") {
				n += len(named)
			}
			n += countProperties(part)
		}
	}
	return n
}

func (c *schemaChecker) checkRoot(schema any) (root map[string]any, ok bool) {
	if root, ok = schema.(map[string]any); !ok {
		c.addProblem("/", "must be a JSON object")
		return nil, false
	}
	if root["type"] != "object" {
		c.addProblem("/type", `must be "object": a call's input is an object`)
	}
	return root, true
}

func (c *schemaChecker) checkCount() {
	if c.properties > maxSchemaProperties {
		c.addProblem("/", fmt.Sprintf("%d properties, at most %d are accepted", c.properties, maxSchemaProperties))
	}
}

func (c *schemaChecker) addProblem(path, message string) {
	c.problems = append(c.problems, path+": "+message)
}

func (c *schemaChecker) checkSchema(path string, s map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(s)) {
		at := path + "/" + jsonschema.EscapeKey(key)
		_, isString := s[key].(string)
		_, isObject := s[key].(map[string]any)
		list, isList := s[key].([]any)
		switch {
		case slices.Contains(forbiddenKeywords, key):
			c.addProblem(at, "keyword is not allowed in tool schemas")
		case !slices.Contains(subsetKeywords, key):
			c.addProblem(at, "unknown keyword")
		case key == "additionalProperties" && isObject:
			c.addProblem(at, "must be true or false; a schema is not allowed here")
		case key == "items" && !isObject:
			c.addProblem(at, "must be a schema object")
		case key == "enum" && isList && len(list) == 0:
			c.addProblem(at, "must be a list with at least one value")
		case (key == "title" || key == "description" || key == "format") && !isString:
			c.addProblem(at, "must be a string")
		}
	}
	c.checkChildren(path, s)
}

func (c *schemaChecker) checkChildren(path string, s map[string]any) {
	props, _ := s["properties"].(map[string]any)
	c.properties += len(props)
	for _, name := range slices.Sorted(maps.Keys(props)) {
		at := path + "/properties/" + jsonschema.EscapeKey(name)
		if _, isBool := props[name].(bool); isBool {
			c.addProblem(at, "must be a schema object")
		}
		sub, _ := props[name].(map[string]any)
		c.checkSchema(at, sub)
	}
	if items, ok := s["items"].(map[string]any); ok {
		c.checkSchema(path+"/items", items)
	}
	required, _ := s["required"].([]any)
	for i, name := range required {
		if name, ok := name.(string); ok && props != nil && props[name] == nil {
			c.addProblem(path+"/required/"+strconv.Itoa(i), fmt.Sprintf("%q is not a property", name))
		}
	}
}

// offeredSchema returns a server tool's schema as models are offered it. Providers
// check schemas by draft 2020-12 and refuse the whole request for one bad tool. So
// keywords of earlier drafts are rewritten and annotations of a wrong type dropped.
// Combinations at the top, which OpenAI and Anthropic refuse, become optional
// properties. Inputs are still validated with the combinations.
func offeredSchema(doc any) json.RawMessage {
	root, ok := jsonschema.Modernize(doc).Schema.(map[string]any)
	if ok {
		mergeCombinations(root)
	}
	text, _ := strictjson.Canonical(root) // it was decoded from JSON
	return text
}

// combinations are the keywords that providers refuse at the top.
var combinations = []string{"allOf", "anyOf", "oneOf", "not", "enum", "const", "if", "then", "else"}

// mergeCombinations replaces the combinations at the top of a schema by the
// properties that they name.
func mergeCombinations(root map[string]any) {
	properties, _ := root["properties"].(map[string]any)
	properties = maps.Clone(properties)
	for _, key := range combinations {
		parts, _ := root[key].([]any)
		if one, ok := root[key].(map[string]any); ok && (key == "then" || key == "else") {
			parts = []any{one}
		}
		for _, part := range parts {
			named, _ := part.(map[string]any)
			more, _ := named["properties"].(map[string]any)
			for name, schema := range more {
				if properties == nil {
					properties = map[string]any{}
				}
				if _, known := properties[name]; !known {
					properties[name] = schema
				}
			}
		}
		delete(root, key)
	}
	if properties != nil {
		root["properties"] = properties
	}
}

// checkNumbers returns a problem for each number out of a float64's range:
// providers' libraries read numbers as float64.
func checkNumbers(v any, path string) []string {
	var problems []string
	switch v := v.(type) {
	case json.Number:
		if _, err := v.Float64(); err != nil {
			problems = append(problems, path+": number is out of range")
		}
	case []any:
		for i, part := range v {
			problems = append(problems, checkNumbers(part, path+"/"+strconv.Itoa(i))...)
		}
	case map[string]any:
		for key, part := range v {
			problems = append(problems, checkNumbers(part, path+"/"+jsonschema.EscapeKey(key))...)
		}
	}
	return problems
}
