package tools

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a tool's own schema.
const (
	maxSchemaBytes      = 64 << 10
	maxSchemaDepth      = 32
	maxSchemaProperties = 256
)

// keywordCheck returns the problem of a keyword's value, "" for none.
type keywordCheck func(v any) string

// schemaKeywords is the accepted subset: the list of docs/specification.md §7, and const, title, default,
// examples, the bounds of numbers, lengths and items, and pattern
// (docs/tools.md). Keywords that hold schemas are walked by schemaChecker.
func schemaKeywords() map[string]keywordCheck {
	anything := func(any) string { return "" }
	return map[string]keywordCheck{
		"type": checkType, "enum": checkEnum, "const": anything, "default": anything, "examples": checkList,
		"title": checkString, "description": checkString, "format": checkString, "pattern": checkString,
		"minimum": checkNumber, "maximum": checkNumber, "exclusiveMinimum": checkNumber, "exclusiveMaximum": checkNumber,
		"minLength": checkCount, "maxLength": checkCount, "minItems": checkCount, "maxItems": checkCount,
		"additionalProperties": checkBool, "required": checkRequired,
		"properties": checkObject, "items": checkObject,
	}
}

// forbiddenKeywords are known to JSON Schema and left out on purpose, because
// some providers refuse them; the rest of the unknown are only unknown.
var forbiddenKeywords = []string{
	"$ref", "$id", "$schema", "$defs", "definitions", "allOf", "anyOf", "oneOf", "not", "if", "then", "else",
	"patternProperties", "propertyNames", "dependencies", "dependentRequired", "dependentSchemas", "contains",
	"additionalItems", "unevaluatedItems", "unevaluatedProperties",
}

// schemaChecker collects every construct of a schema that is outside the subset.
type schemaChecker struct {
	keywords   map[string]keywordCheck
	properties int
	problems   []string
}

// checkSubset returns everything that keeps a schema from being registered, each
// as "path: message" with the path as a JSON pointer.
func checkSubset(schema any) []string {
	root, ok := schema.(map[string]any)
	if !ok {
		return []string{"/: must be a JSON object"}
	}
	c := &schemaChecker{keywords: schemaKeywords()}
	if root["type"] != "object" {
		c.addProblem("/type", `must be "object": a call's input is an object`)
	}
	c.checkSchema("", root)
	if c.properties > maxSchemaProperties {
		c.addProblem("/", fmt.Sprintf("%d properties, at most %d are accepted", c.properties, maxSchemaProperties))
	}
	return c.problems
}

func (c *schemaChecker) addProblem(path, message string) {
	c.problems = append(c.problems, path+": "+message)
}

func (c *schemaChecker) checkSchema(path string, s map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(s)) {
		at := path + "/" + pointerEscape(key)
		check, known := c.keywords[key]
		switch {
		case slices.Contains(forbiddenKeywords, key):
			c.addProblem(at, "keyword is not allowed in tool schemas")
		case !known:
			c.addProblem(at, "unknown keyword")
		default:
			if problem := check(s[key]); problem != "" {
				c.addProblem(at, problem)
			}
		}
	}
	c.checkChildren(path, s)
}

// checkChildren walks the schemas below one: its properties and its items.
func (c *schemaChecker) checkChildren(path string, s map[string]any) {
	props, _ := s["properties"].(map[string]any)
	c.properties += len(props)
	for _, name := range slices.Sorted(maps.Keys(props)) {
		at := path + "/properties/" + pointerEscape(name)
		sub, ok := props[name].(map[string]any)
		if !ok {
			c.addProblem(at, "must be a schema object")
		}
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

func checkType(v any) string {
	names := []string{"string", "number", "integer", "boolean", "null", "object", "array"}
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	seen := map[string]bool{}
	for _, e := range list {
		name, ok := e.(string)
		if !ok || !slices.Contains(names, name) {
			return "must be one of " + strings.Join(names, ", ") + ", or a list of them"
		}
		if seen[name] {
			return fmt.Sprintf("%q is listed twice", name)
		}
		seen[name] = true
	}
	if len(list) == 0 {
		return "must not be an empty list"
	}
	return ""
}

func checkEnum(v any) string {
	if list, ok := v.([]any); !ok || len(list) == 0 {
		return "must be a list with at least one value"
	}
	return ""
}

func checkList(v any) string {
	if _, ok := v.([]any); !ok {
		return "must be a list"
	}
	return ""
}

func checkString(v any) string {
	if _, ok := v.(string); !ok {
		return "must be a string"
	}
	return ""
}

func checkNumber(v any) string {
	if _, ok := v.(json.Number); !ok {
		return "must be a number"
	}
	return ""
}

func checkCount(v any) string {
	n, ok := v.(json.Number)
	if i, err := strconv.Atoi(string(n)); !ok || err != nil || i < 0 {
		return "must be a whole number of at least 0"
	}
	return ""
}

func checkBool(v any) string {
	if _, ok := v.(bool); !ok {
		return "must be true or false; a schema is not allowed here"
	}
	return ""
}

func checkObject(v any) string {
	if _, ok := v.(map[string]any); !ok {
		return "must be an object"
	}
	return ""
}

func checkRequired(v any) string {
	list, ok := v.([]any)
	seen := map[string]bool{}
	for _, e := range list {
		name, isString := e.(string)
		ok = ok && isString && !seen[name]
		seen[name] = true
	}
	if !ok {
		return "must be a list of different strings"
	}
	return ""
}
