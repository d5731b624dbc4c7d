package main

import (
	"strings"
	"testing"
)

const answerSchema = `{
  "$defs": {"item": {"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#/$defs/count"}}, "required": ["name"], "additionalProperties": false},
            "count": {"type": "integer", "minimum": 1},
            "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
  "type": "object",
  "properties": {"tree": {"$ref": "#/$defs/tree"}, "verdict": {"enum": ["pass", "fail"]}, "$ref": {"type": "string"}, "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
                 "n": {"$ref": "#/$defs/count", "maximum": 3, "default": {"$ref": "#/$defs/none"}}},
  "required": ["verdict"]
}`

func TestFormat(t *testing.T) {
	f, err := newAnswerFormat([]byte(answerSchema))
	must(t, err)
	if !strings.Contains(f.Request, `"$defs"`) {
		t.Errorf("the model is not told the schema: %s", f.Request)
	}
	for text, want := range map[string]string{
		`{"verdict":"pass"}`:                                      "",
		" \n```json\n{\"verdict\":\"pass\"}\n```\n":               "",
		"```\n{\"verdict\":\"pass\",\"$ref\":\"x\",\"n\":3}\n```": "",
		`{"verdict":"pass","items":[{"name":"a","next":2}]}`:      "",
		`{"verdict":"pass","items":[{"name":"a","next":0}]}`:      "/items/0/next: minimum: got 0, want 1",
		`{"verdict":"pass","items":[{"name":1,"x":1}]}`:           `/items/0: unknown property "x"`,
		`{"verdict":"pass","tree":[[],[[]]]}`:                     "",
		`{"verdict":"pass","tree":[[],[[1]]]}`:                    "/tree/1/0/0: got number, want array",
		`{"verdict":"pass","n":4}`:                                "/n: maximum: got 4, want 3",
		`{"verdict":"maybe"}`:                                     `/verdict: value must be one of "pass", "fail"`,
		"Sure! {\"verdict\":\"pass\"}":                            "not JSON:",
		"{\"verdict\":\"pass\"} {}":                               "not JSON:",
		"":                                                        "not JSON:",
		"```yaml\n{\"verdict\":\"pass\"}\n```":                    "not JSON:",
	} {
		value, problems := f.Check(text)
		got := strings.Join(problems, "; ")
		if (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		if want == "" && (!strings.HasPrefix(value, "{") || !strings.HasSuffix(value, "}")) {
			t.Errorf("%s: accepted %q", text, value)
		}
	}
}

func TestSchemaIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		`{`:                     "not JSON",
		`{} {}`:                 "not JSON",
		`[]`:                    "want boolean or object",
		`{"type":"thing"}`:      "must be one of",
		`{"$ref":"other.json"}`: "another document",
		`{"$ref":"#/$defs/no"}`: "leads to nothing",
		`{"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"}]}},"$ref":"#/$defs/a"}`: "leads back to itself",
		"[" + strings.Repeat("1,", 10_000) + "1]":                             "parts",
	} {
		if _, err := newAnswerFormat([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
}
