package tools

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSchemaSubset(t *testing.T) {
	const types = `anyOf: none of the 2 schemas accepts the value (value must be one of "array", "boolean", "integer", "null", "number", "object", "string"; `
	// Each schema stands as the property "p" of an otherwise good one.
	tests := []struct {
		name, schema string
		want         []string
	}{
		{"types", `{"type":["string","number","integer","boolean","null","object","array"]}`, nil},
		{"annotations", `{"title":"t","description":"d","default":1,"examples":[1],"format":"uri","const":{"a":1}}`, nil},
		{"bounds", `{"minimum":0,"maximum":1.5,"exclusiveMinimum":-1,"exclusiveMaximum":2,"minLength":0,"maxLength":1,"minItems":0,"maxItems":1}`, nil},
		{"pattern", `{"type":"string","pattern":"^a+$"}`, nil},
		{"nested", `{"type":"object","properties":{"a":{"type":"array","items":{"enum":[1,"x",null]}}},"required":["a"],"additionalProperties":false}`, nil},
		{"names of properties are no keywords", `{"type":"object","properties":{"$ref":{"type":"string"},"allOf":{"type":"string"}}}`, nil},
		{"empty", `{}`, nil},

		{"ref", `{"$ref":"#/properties/p"}`, []string{"/properties/p/$ref: keyword is not allowed in tool schemas"}},
		{"oneOf", `{"oneOf":[{}]}`, []string{"/properties/p/oneOf: keyword is not allowed in tool schemas"}},
		{"anyOf", `{"anyOf":[{}]}`, []string{"/properties/p/anyOf: keyword is not allowed in tool schemas"}},
		{"allOf", `{"allOf":[{}]}`, []string{"/properties/p/allOf: keyword is not allowed in tool schemas"}},
		{"not", `{"not":{}}`, []string{"/properties/p/not: keyword is not allowed in tool schemas"}},
		{"conditionals", `{"if":{},"then":{},"else":{}}`, []string{
			"/properties/p/else: keyword is not allowed in tool schemas",
			"/properties/p/if: keyword is not allowed in tool schemas",
			"/properties/p/then: keyword is not allowed in tool schemas",
		}},
		{"patternProperties", `{"patternProperties":{"a":{}}}`, []string{"/properties/p/patternProperties: keyword is not allowed in tool schemas"}},
		{"additionalProperties as a schema", `{"additionalProperties":{"type":"string"}}`, []string{"/properties/p/additionalProperties: must be true or false; a schema is not allowed here"}},
		{"items as a list", `{"items":[{"type":"string"}]}`, []string{"/properties/p/items: must be a schema object"}},
		{"boolean schema", `true`, []string{"/properties/p: must be a schema object"}},
		{"unknown keyword", `{"x-order":1}`, []string{"/properties/p/x-order: unknown keyword"}},
		{"misspelt keyword", `{"require":["a"]}`, []string{"/properties/p/require: unknown keyword"}},
		{"deep inside", `{"items":{"properties":{"a/b":{"items":{"$defs":{}}}}}}`, []string{"/properties/p/items/properties/a~1b/items/$defs: keyword is not allowed in tool schemas"}},
		{"type", `{"type":"file"}`, []string{"/properties/p/type: " + types + "got string, want array)"}},
		{"type twice", `{"type":["string","string"]}`, []string{"/properties/p/type: " + types + "items at 0 and 1 are equal)"}},
		{"no type", `{"type":[]}`, []string{"/properties/p/type: " + types + "minItems: got 0, want 1)"}},
		{"bounds of the wrong kind", `{"minimum":"1","maxLength":-1,"minItems":1.5}`, []string{
			"/properties/p/maxLength: minimum: got -1, want 0",
			"/properties/p/minItems: got number, want integer",
			"/properties/p/minimum: got string, want number",
		}},
		{"enum", `{"enum":[]}`, []string{"/properties/p/enum: must be a list with at least one value"}},
		{"required", `{"required":["a","a"]}`, []string{"/properties/p/required: items at 0 and 1 are equal"}},
		{"required of no names", `{"required":["a",1]}`, []string{"/properties/p/required/1: got number, want string"}},
		{"required alone", `{"required":"a"}`, []string{"/properties/p/required: got string, want array"}},
		{"long keyword", `{"` + strings.Repeat("x", 81) + `":1}`, []string{"/properties/p/" + strings.Repeat("x", 77) + "…: unknown keyword"}},
		{"required is no property", `{"properties":{"a":{}},"required":["b"]}`, []string{`/properties/p/required/0: "b" is not a property`}},
		{"several", `{"$id":"x","foo":1,"description":1}`, []string{
			"/properties/p/$id: keyword is not allowed in tool schemas",
			"/properties/p/description: must be a string",
			"/properties/p/foo: unknown keyword",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			schema := fmt.Sprintf(`{"type":"object","properties":{"p":%s}}`, tt.schema)
			_, problems := compileSchema(Definition{InputSchema: json.RawMessage(schema)})
			if diff := cmp.Diff(tt.want, problems); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSchemaRoot(t *testing.T) {
	many := `{"type":"object","properties":{`
	for i := range maxSchemaProperties + 1 {
		many += fmt.Sprintf(`"p%d":{},`, i)
	}
	many = strings.TrimSuffix(many, ",") + "}}"
	most := strings.Replace(many, `"p0":{},`, "", 1)
	if _, problems := compileSchema(Definition{InputSchema: json.RawMessage(most)}); len(problems) != 0 {
		t.Errorf("as many properties as are allowed: %q", problems)
	}
	tests := []struct{ name, schema, want string }{
		{"none", ``, "/: JSON ends too early"},
		{"no object", `true`, "/: must be a JSON object"},
		{"another type", `{"type":"string"}`, `/type: must be "object": a call's input is an object`},
		{"no type", `{}`, `/type: must be "object": a call's input is an object`},
		{"duplicate key", `{"type":"object","type":"object"}`, `/: key "type" is given twice`},
		{"pattern of another dialect", `{"type":"object","properties":{"p":{"pattern":"(?=x)"}}}`, "/properties/p/pattern: error parsing regexp: invalid or unsupported Perl syntax"},
		{"too large", `{"type":"object","description":"` + strings.Repeat("a", maxSchemaBytes) + `"}`, "/: 65570 bytes, at most 65536 are accepted"},
		{"too deep", `{"type":"object","properties":{"p":` + strings.Repeat(`{"items":`, 40) + `{}` + strings.Repeat(`}`, 40) + `}}`, "/: nested deeper than 32"},
		{"too many properties", many, "/: 257 properties, at most 256 are accepted"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, problems := compileSchema(Definition{InputSchema: json.RawMessage(tt.schema)})
			if len(problems) != 1 || !strings.HasPrefix(problems[0], tt.want) {
				t.Errorf("problems are %q, want one that begins with %q", problems, tt.want)
			}
		})
	}
}

// A tool of a server may have any schema, within the same bounds.
func TestFullSchema(t *testing.T) {
	object := func(rest string) string { return `{"type":"object",` + rest + `}` }
	properties := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"p%d":{}`, i)
		}
		return `{` + strings.TrimPrefix(b.String(), ",") + `}`
	}
	for _, schema := range []string{
		`{"type":"object"}`,
		object(`"$schema":"https://json-schema.org/draft/2020-12/schema","properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}],"default":null}},"x-note":1`),
		object(`"$schema":"http://json-schema.org/draft-07/schema#","definitions":{"n":{"type":"object","properties":{"next":{"$ref":"#/definitions/n"}}}},"properties":{"a":{"$ref":"#/definitions/n"}},"additionalProperties":{"type":"string"}`),
		object(`"properties":` + properties(maxSchemaProperties)),
	} {
		if _, problems := compileSchema(Definition{InputSchema: json.RawMessage(schema), FullSchema: true}); len(problems) > 0 {
			t.Errorf("%.200s is refused: %q", schema, problems)
		}
	}
	for schema, want := range map[string]string{
		`true`:             "/: must be a JSON object",
		`{"type":"array"}`: `/type: must be "object": a call's input is an object`,
		object(`"properties":` + properties(maxSchemaProperties+1)):                                     "/: 257 properties, at most 256 are accepted",
		object(`"$defs":{"a":{"patternProperties":` + properties(maxSchemaProperties+1) + `}}`):         "/: 257 properties, at most 256 are accepted",
		object(`"properties":` + properties(10_000)):                                                    "/: 108922 bytes, at most 65536 are accepted",
		object(`"properties":{"p":` + strings.Repeat(`{"items":`, 40) + `{}` + strings.Repeat(`}`, 41)): "/: nested deeper than 32",
		object(`"$ref":"#"`):                          "/: leads back to itself without going into the value",
		object(`"$ref":"https://example.com/a.json"`): "/$ref: leads to another document, and none is loaded",
	} {
		_, problems := compileSchema(Definition{InputSchema: json.RawMessage(schema), FullSchema: true})
		if diff := cmp.Diff([]string{want}, problems); diff != "" {
			t.Errorf("%.200s: problems (-want +got):\n%s", schema, diff)
		}
	}
	var wrong strings.Builder
	for i := range 100 {
		fmt.Fprintf(&wrong, `"p%d":1,`, i)
	}
	_, problems := compileSchema(Definition{InputSchema: json.RawMessage(object(`"properties":{` + strings.TrimSuffix(wrong.String(), ",") + `}`)), FullSchema: true})
	if len(problems) != maxProblems+1 || problems[maxProblems] != "and 80 more" {
		t.Errorf("%d problems, the last is %q", len(problems), problems[len(problems)-1])
	}
	// Objects stay open, as their author means them.
	s, _ := compileSchema(Definition{InputSchema: json.RawMessage(object(`"properties":{"a":{"type":"string"}}`)), FullSchema: true})
	if canonical, problems := s.acceptInput([]byte(`{"b":1, "a":"x"}`)); string(canonical) != `{"a":"x","b":1}` {
		t.Errorf("input is %s, %q", canonical, problems)
	}
}

// Fuzzed schemas never panic, and what passes can be compiled and validates
// without a panic either.
func FuzzSchema(f *testing.F) {
	schemas := []string{
		editSchema, `{"type":"object"}`, `{"type":"object","properties":{"p":{"$ref":"http://127.0.0.1/x"}}}`,
		`{"type":"object","properties":{"p":{"pattern":"("}}}`, `{"type":"object","$schema":"http://json-schema.org/draft-04/schema#"}`,
		`{"type":"object","const":{"p":[1,{"q":null}]}}`, `{"type":"object","additionalProperties":false}`,
		`{"type":"object","properties":{"p":{"enum":[1.0,"x",null,{"a":[]}],"type":["integer","null"]},"path":{"minLength":2,"maxLength":1,"const":null}}}`,
		`{"type":"object","required":["q"],"properties":{"p":{"items":{"minimum":-1,"exclusiveMaximum":1e2}},"q":{}}}`,
	}
	inputs := []string{
		`{"p":"x","path":"y"}`, `{}`, `{"p":[1,{"q":null}]}`, `{"p":1,"path":null}`, `{"p":[-1,1e2,99.9,1E-3,"x"],"q":0}`, `{"p":1.0,"path":"\u00e9"}`, `{"p":1.5}`,
		`{"path":"a","limit":10.0,"ratio":0.1,"edits":[{"old":"x","new":"y"},{}],"either":[],"kind":"a","name":"ab","free":{"z":1}}`,
	}
	for _, s := range schemas {
		for _, in := range inputs {
			f.Add([]byte(s), []byte(in))
		}
	}
	f.Fuzz(func(t *testing.T, schema, input []byte) {
		if full, problems := compileSchema(Definition{InputSchema: schema, FullSchema: true}); len(problems) == 0 {
			full.acceptInput(input)
		}
		s, problems := compileSchema(Definition{InputSchema: schema})
		if len(problems) > 0 {
			return
		}
		canonical, problems := s.acceptInput(input)
		if (canonical == nil) == (len(problems) == 0) {
			t.Fatalf("neither accepted nor refused: %q, %q", canonical, problems)
		}
		if canonical == nil {
			return
		}
		again, problems := s.acceptInput(canonical)
		if len(problems) > 0 || string(again) != string(canonical) {
			t.Fatalf("canonical form %q is not its own: %q, %q", canonical, again, problems)
		}
	})
}
