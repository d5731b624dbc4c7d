package tools

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/tools/internal/jsonschema"
	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

// offeredSchema returns the schema of a server's tool as models are offered it. Providers
// check schemas by the rules of draft 2020-12 and refuse a whole request for one tool that
// breaks them, so keywords of earlier drafts are rewritten, annotations of a wrong type
// are left out, and combinations at the top, which OpenAI and Anthropic refuse, become
// properties that are not required. Inputs are validated with the schema as it was.
func offeredSchema(doc any) json.RawMessage {
	root, ok := modernSchema(doc).(map[string]any)
	if ok {
		mergeCombinations(root)
	}
	text, _ := strictjson.Canonical(root) // it was decoded from JSON
	return text
}

// combinations are keywords that providers refuse at the top.
var combinations = []string{"allOf", "anyOf", "oneOf", "not", "enum", "const", "if", "then", "else"}

// mergeCombinations replaces the combinations at the top of a schema by the properties
// that they name.
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

// Keywords by what they hold.
var (
	stringKeywords = []string{"title", "description", "format", "$comment", "contentEncoding", "contentMediaType"}
	boolKeywords   = []string{"deprecated", "readOnly", "writeOnly"}
	listKeywords   = []string{"allOf", "anyOf", "oneOf", "prefixItems"}
	namedKeywords  = []string{"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
	partKeywords   = []string{
		"items", "contains", "additionalProperties", "propertyNames", "not", "if", "then", "else", "unevaluatedItems", "unevaluatedProperties", "contentSchema",
	}
)

// modernSchema returns a schema that [jsonschema.CompileForeign] accepts, as draft 2020-12
// has it.
func modernSchema(v any) any {
	s, ok := v.(map[string]any)
	if !ok {
		return v
	}
	out := make(map[string]any, len(s))
	for key, value := range s {
		if kept, ok := modernKeyword(key, value); ok {
			out[key] = kept
		}
	}
	if id, _ := s["$id"].(string); strings.HasPrefix(id, "#") && jsonschema.IsAnchor(id[1:]) {
		out["$anchor"] = id[1:] // as drafts before 2019-09 have it
	}
	if list, ok := s["items"].([]any); ok {
		delete(out, "items")
		if len(list) > 0 {
			out["prefixItems"], _ = modernKeyword("prefixItems", list)
		}
		if rest, ok := s["additionalItems"]; ok {
			out["items"] = modernSchema(rest)
		}
	}
	for bound, limit := range map[string]string{"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"} {
		if exclusive, ok := s[bound].(bool); ok {
			delete(out, bound)
			if n, given := s[limit]; given && exclusive {
				out[bound] = n
				delete(out, limit)
			}
		}
	}
	return out
}

// modernKeyword returns what a keyword holds, and reports whether it stays.
func modernKeyword(key string, value any) (any, bool) {
	text, isString := value.(string)
	flag, isBool := value.(bool)
	list, isList := value.([]any)
	object, isObject := value.(map[string]any)
	switch {
	case slices.Contains(stringKeywords, key):
		return value, isString
	case slices.Contains(boolKeywords, key):
		return flag, isBool
	case key == "examples":
		return value, isList
	case key == "$anchor":
		return value, isString && jsonschema.IsAnchor(text)
	case key == "$ref":
		_, fragment, _ := strings.Cut(text, "#") // it leads to a part of the schema
		return "#" + fragment, true
	case key == "$id" || key == "$dynamicRef" || key == "$dynamicAnchor" || key == "$schema" || key == "additionalItems" || key == "dependencies" || key == "$recursiveRef" || key == "$vocabulary":
		return nil, false
	case slices.Contains(listKeywords, key) && isList:
		parts := make([]any, len(list))
		for i, part := range list {
			parts[i] = modernSchema(part)
		}
		return parts, true
	case slices.Contains(namedKeywords, key) && isObject:
		named := make(map[string]any, len(object))
		for name, part := range object {
			named[name] = modernSchema(part)
		}
		return named, true
	case slices.Contains(partKeywords, key):
		return modernSchema(value), isObject || isBool
	}
	return value, true
}

// checkNumbers returns a problem for each number that a float64 can't hold, which
// libraries of providers read numbers as.
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
