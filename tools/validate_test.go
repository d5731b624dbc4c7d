package tools

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

const editSchema = `{
  "type": "object",
  "properties": {
    "path": {"type": "string", "minLength": 1, "maxLength": 20},
    "limit": {"type": "integer", "minimum": 1, "maximum": 10},
    "ratio": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "deep": {"type": "boolean"},
    "kind": {"enum": ["a", "b"]},
    "size": {"type": "integer"},
    "nothing": {"type": "null"},
    "either": {"type": ["string", "null"]},
    "name": {"type": "string", "pattern": "^[a-z]+$"},
    "mail": {"type": "string", "format": "email"},
    "edits": {"type": "array", "minItems": 1, "maxItems": 2, "items": {
      "type": "object",
      "properties": {"old": {"type": "string"}, "new": {"type": "string"}, "every": {"type": "boolean"}},
      "required": ["old", "new"]
    }},
    "free": {"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": true}
  },
  "required": ["path"]
}`

func compileForTest(t *testing.T, schema string, aliases map[string]string) *inputSchema {
	t.Helper()
	s, problems := compileSchema(Definition{InputSchema: json.RawMessage(schema), Aliases: aliases})
	if len(problems) > 0 {
		t.Fatalf("schema is refused: %q", problems)
	}
	return s
}

func TestInputIsAcceptedOrEveryProblemIsNamed(t *testing.T) {
	s := compileForTest(t, editSchema, map[string]string{"file_path": "path", "filePath": "path"})
	tests := []struct {
		name, input string
		want        string   // canonical
		problems    []string // a part of each, in order
	}{
		{name: "least", input: `{"path":"a"}`, want: `{"path":"a"}`},
		{name: "keys are sorted, space is dropped, HTML is left alone", input: "{ \"path\" : \"<a&b>\",\n\"deep\":true, \"limit\": 3 }", want: `{"deep":true,"limit":3,"path":"<a&b>"}`},
		{name: "numbers keep their digits", input: `{"path":"a","ratio":0.50}`, want: `{"path":"a","ratio":0.50}`},
		{name: "whole numbers are integers", input: `{"path":"a","limit":6.0,"free":{"x":"1.0","y":[1e1,-0.0,2.50,1e30]}}`, want: `{"free":{"x":"1.0","y":[10,0,2.50,1e30]},"limit":6,"path":"a"}`},
		{name: "an integer of more than 64 bits", input: `{"path":"a","size":1e19}`, problems: []string{"/size: maximum: got 10000000000000000000, want 9223372036854775807"}},
		{name: "null is absent", input: `{"path":"a","limit":null,"kind":null,"either":null,"nothing":null,"free":null,"edits":[{"old":"x","new":"y","every":null}]}`, want: `{"edits":[{"new":"y","old":"x"}],"either":null,"nothing":null,"path":"a"}`},
		{name: "null where a value must be given", input: `{"path":null,"edits":[{"old":"x","new":null}]}`, problems: []string{"/edits/0/new: got null, want string", "/path: got null, want string"}},
		{name: "null of an unknown argument", input: `{"path":"a","other":null}`, problems: []string{"/: unknown property"}},
		{name: "null in a list of types", input: `{"path":"a","either":null}`, want: `{"either":null,"path":"a"}`},
		{name: "format is an annotation", input: `{"path":"a","mail":"nobody"}`, want: `{"mail":"nobody","path":"a"}`},
		{name: "additionalProperties true", input: `{"path":"a","free":{"x":"1","y":2}}`, want: `{"free":{"x":"1","y":2},"path":"a"}`},
		{name: "alias is rewritten", input: `{"file_path":"a"}`, want: `{"path":"a"}`},
		{name: "alias beside its name", input: `{"file_path":"a","path":"b"}`, problems: []string{`/file_path: means the same as "path"`}},
		{name: "two aliases of one name", input: `{"file_path":"a","filePath":"b"}`, problems: []string{`/file_path: means the same as "filePath", give only "path"`}},
		{name: "missing", input: `{}`, problems: []string{"/: missing property \"path\""}},
		{name: "empty input is an empty object", input: ``, problems: []string{"/: missing property \"path\""}},
		{name: "string", input: `{"path":1}`, problems: []string{"/path: got number, want string"}},
		{name: "integer", input: `{"path":"a","limit":1.5}`, problems: []string{"/limit: got number, want integer"}},
		{name: "number", input: `{"path":"a","ratio":"0.5"}`, problems: []string{"/ratio: got string, want number"}},
		{name: "boolean", input: `{"path":"a","deep":"true"}`, problems: []string{"/deep: got string, want boolean"}},
		{name: "null", input: `{"path":"a","nothing":0}`, problems: []string{"/nothing: got number, want null"}},
		{name: "enum", input: `{"path":"a","kind":"c"}`, problems: []string{"/kind: value must be one of"}},
		{name: "object", input: `{"path":"a","free":[]}`, problems: []string{"/free: got array, want object"}},
		{name: "array", input: `{"path":"a","edits":{}}`, problems: []string{"/edits: got object, want array"}},
		{name: "pattern", input: `{"path":"a","name":"A"}`, problems: []string{"/name: \"A\" does not match pattern"}},
		{name: "bounds", input: `{"path":"","limit":11,"ratio":1,"edits":[]}`, problems: []string{"/edits: minItems", "/limit: maximum", "/path: minLength", "/ratio: exclusiveMaximum"}},
		{name: "inside items", input: `{"path":"a","edits":[{"old":"x","new":"y"},{"old":1}]}`, problems: []string{"/edits/1: missing property \"new\"", "/edits/1/old: got number"}},
		{name: "unknown argument", input: `{"path":"a","privileged":true}`, problems: []string{"/: unknown property \"privileged\""}},
		{name: "unknown argument below", input: `{"path":"a","edits":[{"old":"x","new":"y","all":true}]}`, problems: []string{"/edits/0: unknown property \"all\""}},
		{name: "another case is another key", input: `{"Path":"a"}`, problems: []string{"/: missing property \"path\"", "/: unknown property \"Path\""}},
		{name: "everything at once", input: `{"limit":0,"deep":1,"kind":2,"x":3}`, problems: []string{"/: missing property \"path\"", "/: unknown property \"x\"", "/deep:", "/kind:", "/limit:"}},
		{name: "not JSON", input: `{"path":`, problems: []string{"/: JSON ends too early"}},
		{name: "not an object", input: `["path"]`, problems: []string{"/: input must be a JSON object"}},
		{name: "NaN", input: `{"path":"a","limit":NaN}`, problems: []string{"/: not JSON"}},
		{name: "huge number", input: `{"path":"a","limit":1e18}`, problems: []string{"/limit: maximum"}},
		{name: "number that takes long to compare", input: `{"path":"a","limit":1e1000000}`, problems: []string{"/: number 1e1000000 is out of range"}},
		{name: "exponent that is no number", input: `{"path":"a","limit":1E-99999999999999999999}`, problems: []string{"/: number 1E-99999999999999999999 is out of range"}},
		{name: "too many digits", input: `{"path":"a","limit":` + strings.Repeat("9", 101) + `}`, problems: []string{"/: number 999"}},
		{name: "duplicate key", input: `{"path":"a","path":"/etc/passwd"}`, problems: []string{`/: key "path" is given twice`}},
		{name: "duplicate key below, by an escape", input: `{"path":"a","free":{"x":"1","\u0078":"2"}}`, problems: []string{`/: key "x" is given twice`}},
		{name: "trailing data", input: `{"path":"a"} {"path":"b"}`, problems: []string{"/: more data after the JSON value"}},
		{name: "invalid UTF-8", input: "{\"path\":\"\xff\"}", problems: []string{"/: not valid UTF-8"}},
		{name: "too deep", input: `{"path":"a","free":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`, problems: []string{"/: nested deeper than 64"}},
		{name: "too many values", input: `{"path":"a","edits":[` + strings.Repeat("1,", strictjson.MaxValues) + `1]}`, problems: []string{"/: more than 50000 values"}},
		{name: "too large", input: `{"path":"` + strings.Repeat("a", MaxInputBytes) + `"}`, problems: []string{"/: 4194315 bytes, at most 4194304 are accepted"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, problems := s.acceptInput([]byte(tt.input))
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("canonical input (-want +got):\n%s", diff)
			}
			if len(problems) != len(tt.problems) {
				t.Fatalf("problems are %q, want %q", problems, tt.problems)
			}
			for i, part := range tt.problems {
				if !strings.HasPrefix(problems[i], part) {
					t.Errorf("problem %d is %q, want it to begin with %q", i, problems[i], part)
				}
			}
		})
	}
}

// TestManyProblemsAreCounted: the model is told of the first twenty.
func TestManyProblemsAreCounted(t *testing.T) {
	s := compileForTest(t, `{"type":"object","properties":{"list":{"type":"array","items":{"type":"string"}}}}`, nil)
	for wrong, last := range map[int]string{20: "/list/19: got number, want string", 21: "and 1 more", 30: "and 10 more"} {
		_, problems := s.acceptInput([]byte(`{"list":[` + strings.TrimSuffix(strings.Repeat("1,", wrong), ",") + `]}`))
		if len(problems) != min(wrong, 21) || problems[len(problems)-1] != last {
			t.Errorf("%d wrong values give %d problems, the last is %q", wrong, len(problems), problems[len(problems)-1])
		}
	}
}
