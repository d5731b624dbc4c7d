package jsonschema

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	oracle "github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

func decode(t testing.TB, text string) any {
	t.Helper()
	v, err := strictjson.Decode([]byte(text), 1<<20, 32)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// schemaTests are schemas, values, and the problems of each value.
var schemaTests = []struct {
	schema, value string
	want          []string
}{
	{`true`, `1`, nil},
	{`false`, `1`, []string{"/: no value is accepted here"}},
	{`{"x-note":1,"title":"t","default":1,"format":"email","$schema":"https://json-schema.org/draft/2020-12/schema"}`, `"x"`, nil},
	{`{"type":"integer"}`, `1.0`, nil},
	{`{"type":"integer"}`, `1e2`, nil},
	{`{"type":"integer"}`, `1.5`, []string{"/: got number, want integer"}},
	{`{"type":["integer","null"]}`, `"x"`, []string{"/: got string, want null or integer"}},
	{`{"type":"number"}`, `1`, nil},
	{`{"enum":[1,"x",null,[1.0]]}`, `1.0`, nil},
	{`{"enum":[1,"x",null,[1.0]]}`, `[1]`, nil},
	{`{"enum":[1,"x",null,[1.0]]}`, `"1"`, []string{`/: value must be one of 1, "x", null, [1.0]`}},
	{`{"enum":["a","b"]}`, `"c"`, []string{`/: value must be one of "a", "b"`}},
	{`{"enum":[[1.50,{"a":[2e0]}]]}`, `[1.5,{"a":[2]}]`, nil},
	{`{"enum":[-0]}`, `0`, nil},
	{`{"const":9007199254740993}`, `9007199254740992`, []string{"/: value must be 9007199254740993"}},
	{`{"const":{"a":1,"b":[]}}`, `{"b":[],"a":1.0}`, nil},
	{`{"const":null}`, `false`, []string{"/: value must be null"}},
	{`{"minimum":1,"maximum":2.50}`, `0.5`, []string{"/: minimum: got 0.5, want 1"}},
	{`{"minimum":1,"maximum":2.50}`, `3`, []string{"/: maximum: got 3, want 2.5"}},
	{`{"minimum":1,"maximum":1}`, `1`, nil},
	{`{"exclusiveMinimum":1}`, `1`, []string{"/: exclusiveMinimum: got 1, want more than 1"}},
	{`{"exclusiveMaximum":1}`, `1`, []string{"/: exclusiveMaximum: got 1, want less than 1"}},
	{`{"multipleOf":0.01}`, `19.99`, nil},
	{`{"multipleOf":0.01}`, `0.075`, []string{"/: multipleOf: got 0.075, want a multiple of 0.01"}},
	{`{"minLength":2,"maxLength":2}`, `"éa"`, nil},
	{`{"minLength":2,"maxLength":2}`, `"é"`, []string{"/: minLength: got 1, want 2"}},
	{`{"maxLength":1.0}`, `"ab"`, []string{"/: maxLength: got 2, want 1"}},
	{`{"pattern":"^a"}`, `"ba"`, []string{`/: "ba" does not match pattern "^a"`}},
	{`{"pattern":"^a","minimum":3}`, `[]`, nil},
	{`{"prefixItems":[{"type":"string"}],"items":false}`, `["a",1]`, []string{"/1: no value is accepted here"}},
	{`{"prefixItems":[{"type":"string"}]}`, `[1,2]`, []string{"/0: got number, want string"}},
	{`{"items":{"type":"string"}}`, `["a",1,2]`, []string{"/1: got number, want string", "/2: got number, want string"}},
	{`{"minItems":1}`, `[]`, []string{"/: minItems: got 0, want 1"}},
	{`{"maxItems":0}`, `[1]`, []string{"/: maxItems: got 1, want 0"}},
	{`{"uniqueItems":true}`, `[1,"1",[1],{"a":1},true,null]`, nil},
	{`{"uniqueItems":true}`, `["x",{"a":[1.0]},{"a":[1]}]`, []string{"/: items at 1 and 2 are equal"}},
	{`{"uniqueItems":true}`, `[1,1]`, []string{"/: items at 0 and 1 are equal"}},
	{`{"uniqueItems":false}`, `[1,1]`, nil},
	{`{"contains":{"const":1}}`, `[2]`, []string{"/: no items match contains schema"}},
	{`{"contains":{"const":1},"minContains":0,"maxContains":1}`, `[1,1]`, []string{"/: max 1 items required to match contains schema, but matched 2 items at 0 1"}},
	{`{"contains":{"const":1},"minContains":0}`, `[]`, nil},
	{`{"properties":{"a":{"type":"string"},"b":{}},"required":["a","c"]}`, `{"a":1,"d":2}`, []string{`/: missing property "c"`, "/a: got number, want string"}},
	{`{"properties":{"a":{}},"additionalProperties":false}`, `{"a":1,"b":2,"c":3}`, []string{`/: unknown property "b"`, `/: unknown property "c"`}},
	{`{"additionalProperties":{"type":"string"}}`, `{"a/b":1,"c~":2}`, []string{"/a~1b: got number, want string", "/c~0: got number, want string"}},
	{`{"patternProperties":{"^x":{"type":"string"}},"additionalProperties":false}`, `{"xa":1,"y":2}`, []string{`/: unknown property "y"`, "/xa: got number, want string"}},
	{`{"patternProperties":{"^x":{"type":"string"}}}`, `{"xa":1,"y":2}`, []string{"/xa: got number, want string"}},
	{`{"properties":{"xa":{"minimum":2}},"patternProperties":{"^x":{"type":"string"}}}`, `{"xa":1}`, []string{"/xa: got number, want string", "/xa: minimum: got 1, want 2"}},
	{`{"properties":{"` + strings.Repeat("a/", 60) + `":{"type":"string"}}}`, `{"` + strings.Repeat("a/", 60) + `":1}`, []string{"/" + strings.Repeat("a~1", 38) + "a…: got number, want string"}},
	{`{"propertyNames":{"maxLength":1}}`, `{"ab":1}`, []string{`/: property name "ab" is not accepted: maxLength: got 2, want 1`}},
	{`{"minProperties":1,"maxProperties":1}`, `{}`, []string{"/: minProperties: got 0, want 1"}},
	{`{"maxProperties":1}`, `{"a":1,"b":2}`, []string{"/: maxProperties: got 2, want 1"}},
	{`{"dependentRequired":{"a":["b"]}}`, `{"a":1}`, []string{`/: missing property "b", which "a" requires`}},
	{`{"dependentRequired":{"a":["b"]}}`, `{"c":1}`, nil},
	{`{"dependentSchemas":{"a":{"required":["b"]}}}`, `{"a":1}`, []string{`/: missing property "b"`}},
	{`{"dependentSchemas":{"a":false}}`, `{}`, nil},
	{`{"allOf":[{"minimum":2},{"maximum":0}]}`, `1`, []string{"/: maximum: got 1, want 0", "/: minimum: got 1, want 2"}},
	{`{"anyOf":[{"type":"string"},{"minimum":2}]}`, `1`, []string{"/: anyOf: none of the 2 schemas accepts the value (got number, want string; minimum: got 1, want 2)"}},
	{`{"anyOf":[{"type":"string"},{"minimum":2}]}`, `2`, nil},
	{`{"anyOf":[{"minimum":2}]}`, `1`, []string{"/: anyOf: none of the 1 schemas accepts the value (minimum: got 1, want 2)"}},
	{`{"oneOf":[{"minimum":2}]}`, `1`, []string{"/: oneOf: none of the 1 schemas accepts the value (minimum: got 1, want 2)"}},
	{`{"oneOf":[{"minimum":1},{"minimum":2}]}`, `2`, []string{"/: oneOf: the schemas 0 and 1 accept the value, want only one"}},
	{`{"oneOf":[{"minimum":1},{"minimum":2}]}`, `1`, nil},
	{`{"not":{"type":"null"}}`, `null`, []string{"/: not: the schema accepts the value"}},
	{`{"if":{"type":"string"},"then":{"minLength":1},"else":{"minimum":1}}`, `""`, []string{"/: minLength: got 0, want 1"}},
	{`{"if":{"type":"string"},"then":{"minLength":1},"else":{"minimum":1}}`, `0`, []string{"/: minimum: got 0, want 1"}},
	{`{"if":false,"then":false}`, `0`, nil},
	{`{"then":false,"else":false}`, `0`, nil},
}

func TestValidate(t *testing.T) {
	for _, tt := range schemaTests {
		s, problems := Compile(decode(t, tt.schema))
		if len(problems) > 0 {
			t.Errorf("%s is refused: %q", tt.schema, problems)
			continue
		}
		if diff := cmp.Diff(tt.want, s.Validate(decode(t, tt.value), 10)); diff != "" {
			t.Errorf("%s, %s: problems (-want +got):\n%s", tt.schema, tt.value, diff)
		}
		if valid, err := accepts(t, tt.schema, tt.value); err != nil || valid != (len(tt.want) == 0) {
			t.Errorf("%s, %s: the library alone: %v, %v", tt.schema, tt.value, valid, err)
		}
	}
}

// TestLargeBounds: a bound that no machine's integer holds is no other one.
func TestLargeBounds(t *testing.T) {
	const large = "18446744073709551615" // -1 where only the last 64 bits count
	for _, tt := range []struct {
		schema, value string
		valid         bool
	}{
		{`{"maxLength":` + large + `}`, `"a"`, true},
		{`{"maxItems":1e30}`, `[1]`, true},
		{`{"items":{"maxProperties":` + large + `}}`, `[{"a":1}]`, true},
		{`{"contains":{},"maxContains":` + large + `}`, `[1]`, true},
		{`{"minLength":` + large + `}`, `"a"`, false},
		{`{"minItems":` + large + `}`, `[1]`, false},
	} {
		s, problems := Compile(decode(t, tt.schema))
		if len(problems) > 0 {
			t.Errorf("%s is refused: %q", tt.schema, problems)
		} else if got := s.Validate(decode(t, tt.value), 10); (len(got) == 0) != tt.valid {
			t.Errorf("%s, %s: %q", tt.schema, tt.value, got)
		}
	}
}

func TestProblemsAreBounded(t *testing.T) {
	s, _ := Compile(decode(t, `{"items":{"type":"string"}}`))
	for value, more := range map[string][]string{`[1,2]`: nil, `[1,2,3]`: {"and 1 more"}, `[1,2,3,4,5]`: {"and 3 more"}} {
		want := append([]string{"/0: got number, want string", "/1: got number, want string"}, more...)
		if diff := cmp.Diff(want, s.Validate(decode(t, value), 2)); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", value, diff)
		}
	}
	s, _ = Compile(decode(t, `{"pattern":"^$","additionalProperties":false}`))
	for _, v := range []any{strings.Repeat("x", 1<<20), map[string]any{strings.Repeat("x", 1<<20): nil}} {
		if got := s.Validate(v, 2); len(got) != 1 || len(got[0]) > maxProblemBytes {
			t.Errorf("%d problems, the first of %d bytes", len(got), len(got[0]))
		}
	}
}

// TestNamesDropNoNulls: a refused name drops no null of its neighbours, whose places the
// library may give it.
func TestNamesDropNoNulls(t *testing.T) {
	s, _ := Compile(decode(t, `{"properties":{"x":{"properties":{"y":{"properties":{"z":{"properties":{"a":{"propertyNames":{"maxLength":1}},"c":{}}}}}}}}}`))
	const text = `{"x":{"y":{"z":{"a":{"long":1},"c":null}}}}`
	for range 20 { // the library's order varies
		v := decode(t, text)
		if problems := s.ValidateInput(v, 10); len(problems) != 1 || !cmp.Equal(v, decode(t, text)) {
			t.Fatalf("%q, and the value is %v", problems, v)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	const types = `anyOf: none of the 2 schemas accepts the value (value must be one of "array", "boolean", "integer", "null", "number", "object", "string"; `
	tests := []struct {
		schema string
		want   []string
	}{
		{`1`, []string{"/: got number, want boolean or object"}},
		{`{"type":"file","enum":1,"required":["a","a"],"pattern":"(","minLength":-1,"maxItems":1.5,"minimum":"1","uniqueItems":1}`, []string{
			"/enum: got number, want array",
			"/maxItems: got number, want integer",
			"/minLength: minimum: got -1, want 0",
			"/minimum: got string, want number",
			"/pattern: error parsing regexp: missing closing ): `(`",
			"/required: items at 0 and 1 are equal",
			"/type: " + types + "got string, want array)",
			"/uniqueItems: got number, want boolean",
		}},
		{`{"type":["null","null"],"allOf":[{"type":[]},{"required":["a",1]}]}`, []string{
			"/allOf/0/type: " + types + "minItems: got 0, want 1)",
			"/allOf/1/required/1: got number, want string",
			"/type: " + types + "items at 0 and 1 are equal)",
		}},
		{`{"multipleOf":0}`, []string{"/multipleOf: exclusiveMinimum: got 0, want more than 0"}},
		{`{"properties":[],"patternProperties":{"(":1},"allOf":[],"dependentRequired":{"a":1}}`, []string{
			"/: property name \"(\" is not accepted: error parsing regexp: missing closing ): `(`",
			"/allOf: minItems: got 0, want 1",
			"/dependentRequired/a: got number, want array",
			"/patternProperties/(: got number, want boolean or object",
			"/properties: got array, want object",
		}},
		{`{"anyOf":[{"$ref":"#"}]}`, []string{"/: leads back to itself without going into the value"}},
		{`{"items":{"$dynamicRef":"#x"},"dependencies":{}}`, []string{"/dependencies: is not supported in this draft", "/items/$dynamicRef: is not supported in this draft"}},
		{`{"$schema":"https://example.com/mine"}`, []string{"/$schema: is a dialect that is not supported"}},
	}
	for _, tt := range tests {
		s, problems := Compile(decode(t, tt.schema))
		if diff := cmp.Diff(tt.want, problems); diff != "" || s != nil {
			t.Errorf("%s: problems (-want +got):\n%s", tt.schema, diff)
		}
	}
}

// accepts reports whether the library alone, without what this package does to schemas,
// accepts a value.
func accepts(t testing.TB, schema, value string) (bool, error) {
	t.Helper()
	c := oracle.NewCompiler()
	c.UseLoader(oracle.SchemeURLLoader{})
	if err := c.AddResource("schema:///s.json", decode(t, schema)); err != nil {
		return false, err
	}
	s, err := c.Compile("schema:///s.json")
	if err != nil {
		return false, err
	}
	return s.Validate(decode(t, value)) == nil, nil
}
