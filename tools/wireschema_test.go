package tools

import (
	"encoding/json"
	"errors"
	"testing"

	oracle "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

func TestOfferedSchema(t *testing.T) {
	for name, tt := range map[string]struct{ schema, want string }{
		"as it is":          {`{"type":"object","properties":{"a":{"$ref":"#/$defs/b"},"c":{"anyOf":[{"type":"null"},{"const":9007199254740993}]}},"$defs":{"b":{"type":"string"}},"additionalProperties":{"type":"string"}}`, ``},
		"earlier drafts":    {`{"type":"object","$schema":"http://json-schema.org/draft-07/schema#","properties":{"a":{"items":[{"type":"string"}],"additionalItems":false},"b":{"minimum":1,"exclusiveMinimum":true},"items":{"minimum":2,"exclusiveMinimum":false}}}`, `{"properties":{"a":{"items":false,"prefixItems":[{"type":"string"}]},"b":{"exclusiveMinimum":1},"items":{"minimum":2}},"type":"object"}`},
		"wrong annotations": {`{"type":"object","title":null,"description":1,"examples":{},"deprecated":"no","properties":{"title":{"description":["x"]}}}`, `{"properties":{"title":{}},"type":"object"}`},
		"combinations":      {`{"type":"object","properties":{"a":{"type":"string"}},"oneOf":[{"properties":{"a":{},"b":{"type":"null"}},"required":["b"]},{"required":["a"]}],"if":{},"then":{"properties":{"c":{}}},"not":{"required":["z"]}}`, `{"properties":{"a":{"type":"string"},"b":{"type":"null"},"c":{}},"type":"object"}`},
		"references":        {`{"type":"object","$id":"https://example.com/s#","properties":{"a":{"$ref":"https://example.com/s#/$defs/a"},"b":{"$ref":"#x"}},"$defs":{"a":{},"c":{"$id":"#x"}}}`, `{"$defs":{"a":{},"c":{"$anchor":"x"}},"properties":{"a":{"$ref":"#/$defs/a"},"b":{"$ref":"#x"}},"type":"object"}`},
		"a wrong part":      {`{"type":"object","unevaluatedProperties":1,"properties":{"a":{"unevaluatedItems":false}}}`, `{"properties":{"a":{"unevaluatedItems":false}},"type":"object"}`},
	} {
		s, problems := compileSchema(Definition{InputSchema: json.RawMessage(tt.schema), FullSchema: true})
		if len(problems) > 0 {
			t.Fatalf("%s: %q", name, problems)
		}
		want := tt.want
		if want == "" {
			doc, _ := strictjson.Decode([]byte(tt.schema), 1<<20, 32)
			text, _ := strictjson.Canonical(doc)
			want = string(text)
		}
		if diff := cmp.Diff(want, string(s.offered)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	// The combination still binds the input.
	s, _ := compileSchema(Definition{InputSchema: json.RawMessage(`{"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]}`), FullSchema: true})
	if _, problems := s.acceptInput([]byte(`{"a":1,"b":2}`)); len(problems) != 1 {
		t.Errorf("problems %q", problems)
	}
	if _, problems := compileSchema(Definition{InputSchema: json.RawMessage(`{"type":"object","properties":{"a":{"maximum":1e400}}}`), FullSchema: true}); len(problems) != 1 || problems[0] != "/properties/a/maximum: number is out of range" {
		t.Errorf("problems %q", problems)
	}
}

// What is offered is a valid schema of draft 2020-12, by another implementation, whatever
// a server declares.
func FuzzOfferedSchema(f *testing.F) {
	for _, schema := range []string{
		`{"type":"object","properties":{"a":{"items":[{"type":"string"}],"title":1}},"$schema":"http://json-schema.org/draft-07/schema#"}`,
		`{"type":"object","definitions":{"a":{"dependencies":{"a":["b"]}}},"allOf":[{"$ref":"#/definitions/a"}]}`,
		`{"type":"object","exclusiveMaximum":true,"maximum":2,"contentSchema":1,"$anchor":"a b"}`,
	} {
		f.Add([]byte(schema))
	}
	f.Fuzz(func(t *testing.T, schema []byte) {
		if len(schema) > 1<<11 {
			return
		}
		s, problems := compileSchema(Definition{InputSchema: schema, FullSchema: true})
		if len(problems) > 0 {
			return
		}
		doc, err := strictjson.Decode(s.offered, 1<<20, 64)
		if err != nil {
			t.Fatalf("%s: %v", s.offered, err)
		}
		c := oracle.NewCompiler()
		c.UseLoader(oracle.SchemeURLLoader{})
		if err := c.AddResource("schema:///s.json", doc); err != nil {
			return // an identifier that is no URL
		}
		if _, err := c.Compile("schema:///s.json"); err != nil {
			if invalid, ok := errors.AsType[*oracle.SchemaValidationError](err); ok {
				t.Fatalf("%s becomes %s: %v", schema, s.offered, invalid)
			}
		}
	})
}
