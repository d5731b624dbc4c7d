package tools

import (
	"encoding/json"
	"maps"
	"strconv"

	"github.com/caisson-run/caisson/tools/internal/jsonschema"
	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

// offeredSchema returns the schema of a server's tool as models are offered it. Providers
// check schemas by the rules of draft 2020-12 and refuse a whole request for one tool that
// breaks them, so keywords of earlier drafts are rewritten, annotations of a wrong type
// are left out, and combinations at the top, which OpenAI and Anthropic refuse, become
// properties that are not required. Inputs are validated with the combinations.
func offeredSchema(doc any) json.RawMessage {
	root, ok := jsonschema.Modernize(doc).Schema.(map[string]any)
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
