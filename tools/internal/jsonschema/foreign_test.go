package jsonschema

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools/internal/strictjson"
)

const draft7 = `"$schema":"http://json-schema.org/draft-07/schema#"`

// tree is a schema of a tree of names.
const tree = `{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"name":{"type":"string"},"children":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["name"],"additionalProperties":false}}}`

// foreignTests are schemas of others, values, and the problems of each value.
var foreignTests = []struct {
	schema, value string
	want          []string
}{
	{tree, `{"name":"a","children":[{"name":"b","children":[]}]}`, nil},
	{tree, `{"name":"a","children":[{"name":"b","children":[{"name":1}]}]}`, []string{"/children/0/children/0/name: got number, want string"}},
	{`{"$id":"https://example.com/s","properties":{"a":{"$ref":"https://example.com/s#/definitions/x%20y"}},"definitions":{"x y":{"type":"string"}}}`, `{"a":1}`, []string{"/a: got number, want string"}},
	{`{"properties":{"a/b":{"type":"string"},"c":{"$ref":"#/properties/a~1b"}}}`, `{"c":1}`, []string{"/c: got number, want string"}},
	{`{"prefixItems":[{"type":"null"}],"items":{"$ref":"#/prefixItems/0"}}`, `[null,1]`, []string{"/1: got number, want null"}},
	{`{"properties":{"a":{"$ref":"#x"}},"$defs":{"y":{"$anchor":"x","type":"string"}}}`, `{"a":1}`, []string{"/a: got number, want string"}},
	{`{"$defs":{"s":{"type":"string"}},"properties":{"a":{"$ref":"#/$defs/s","minLength":2}}}`, `{"a":"b"}`, []string{"/a: minLength: got 1, want 2"}},
	{`{` + draft7 + `,"definitions":{"s":{"type":"string"}},"properties":{"a":{"$ref":"#/definitions/s","minLength":2}}}`, `{"a":"b"}`, nil},
	{`{` + draft7 + `,"items":[{"type":"string"},{"type":"null"}],"additionalItems":false}`, `["a",null,1]`, []string{"/2: no value is accepted here"}},
	{`{` + draft7 + `,"items":{"type":"string"},"additionalItems":false}`, `["a","b"]`, nil},
	{`{` + draft7 + `,"dependencies":{"a":["b"],"c":{"required":["d"]}}}`, `{"a":1,"c":1}`, []string{`/: missing property "b", which "a" requires`, `/: missing property "d"`}},
	{`{"allOf":[{"properties":{"a":{"type":"string"}}}],"anyOf":[{"required":["a"]},{"required":["b"]}],"not":{"required":["c"]}}`, `{"a":1,"c":2}`, []string{"/: not: the schema accepts the value", "/a: got number, want string"}},
	{`{"x-vendor":{"type":1},"$comment":"c","$vocabulary":{},"title":1,"format":2}`, `{}`, nil},
	{`{"properties":{"a":true,"b":false},"additionalProperties":{"type":"integer"},"patternProperties":{"^x":{}}}`, `{"a":1,"b":1,"c":"d","xa":"y"}`, []string{"/b: no value is accepted here", "/c: got string, want integer"}},
}

func compileForeignForTest(t testing.TB, schema string) *Schema {
	t.Helper()
	s, problems := CompileForeign(decode(t, schema))
	if len(problems) > 0 {
		t.Fatalf("%s is refused: %q", schema, problems)
	}
	return s
}

func TestValidateForeign(t *testing.T) {
	for _, tt := range foreignTests {
		s := compileForeignForTest(t, tt.schema)
		if diff := cmp.Diff(tt.want, s.Validate(decode(t, tt.value), 10)); diff != "" {
			t.Errorf("%s, %s: problems (-want +got):\n%s", tt.schema, tt.value, diff)
		}
		if valid, err := accepts(t, tt.schema, tt.value); err == nil && valid != (len(tt.want) == 0) {
			t.Errorf("%s, %s: another implementation: %v", tt.schema, tt.value, valid)
		}
	}
	for _, tt := range schemaTests { // all that Compile knows
		s := compileForeignForTest(t, tt.schema)
		if diff := cmp.Diff(tt.want, s.Validate(decode(t, tt.value), 10)); diff != "" {
			t.Errorf("%s, %s: problems (-want +got):\n%s", tt.schema, tt.value, diff)
		}
	}
}

// A part that can't be expressed makes a schema accept more, never less.
func TestForeignLeavesOut(t *testing.T) {
	const lookahead = `{"type":"string","pattern":"^(?!a)"}`
	for _, tt := range []struct {
		schema   string
		accepted []string
		refused  []string
	}{
		{`{"properties":{"a":` + lookahead + `,"b":{"pattern":"^x$"}}}`, []string{`{"a":"b"}`, `{"a":"a"}`}, []string{`{"a":1}`, `{"b":"y"}`}},
		{`{"properties":{"a":{"not":` + lookahead + `}}}`, []string{`{"a":"ab"}`, `{"a":"b"}`}, nil},
		{`{"properties":{"a":{"oneOf":[` + lookahead + `,{"const":"ab"},{"type":"null"}]}}}`, []string{`{"a":"ab"}`, `{"a":"b"}`}, []string{`{"a":1}`}},
		{`{"if":` + lookahead + `,"then":false}`, []string{`"ab"`}, nil},
		{`{"contains":` + lookahead + `,"maxContains":1}`, []string{`["b","ab"]`}, []string{`[1]`}},
		{`{"patternProperties":{"^(?!a)":{"type":"string"}},"additionalProperties":false}`, []string{`{"b":"c"}`}, nil},
		{`{"properties":{"a":{}},"unevaluatedProperties":false,"required":["a"]}`, []string{`{"a":1}`}, []string{`{}`, `{"a":1,"b":2}`}},
		{`{"properties":{"a":{"$dynamicRef":"#x"}},"unevaluatedProperties":false,"required":["a"]}`, []string{`{"a":1}`, `{"a":1,"b":2}`}, []string{`{}`}},
		{`{"exclusiveMinimum":true,"minimum":1,"maximum":3,"exclusiveMaximum":true}`, []string{`2`}, []string{`1`, `3`}},
	} {
		s := compileForeignForTest(t, tt.schema)
		for _, value := range tt.accepted {
			if problems := s.Validate(decode(t, value), 3); len(problems) > 0 {
				t.Errorf("%s refuses %s: %q", tt.schema, value, problems)
			}
		}
		for _, value := range tt.refused {
			if problems := s.Validate(decode(t, value), 3); len(problems) == 0 {
				t.Errorf("%s accepts %s", tt.schema, value)
			}
		}
	}
}

func TestCompileForeignRefuses(t *testing.T) {
	const loop = ": leads back to itself without going into the value"
	for schema, want := range map[string][]string{
		`{"$ref":"#"}`: {"/" + loop},
		`{"properties":{"a":{"$ref":"#/$defs/b"}},"$defs":{"b":{"allOf":[{"$ref":"#/$defs/c"}]},"c":{"not":{"$ref":"#/$defs/b"}}}}`: {"/$defs/b" + loop},
		`{"$ref":"http://127.0.0.1/x"}`:    {"/$ref: leads to another document, and none is loaded"},
		`{"$ref":"file:///etc/passwd#/a"}`: {"/$ref: leads to another document, and none is loaded"},
		`{"$ref":"other.json"}`:            {"/$ref: leads to another document, and none is loaded"},
		`{"$ref":"#/a"}`:                   {"/$ref: leads to a part that is no schema by its place; move it to $defs"},
		`{"$ref":"#nowhere"}`:              {"/: the reference #nowhere leads to nothing"},
		`{"$ref":"#/%zz"}`:                 {"/$ref: parse \"#/%zz\": invalid URL escape \"%zz\""},
		`{"$ref":1}`:                       {"/$ref: got number, want string"},
		`{"properties":{"a":{"$id":"https://example.com/b"}}}`:                       {"/properties/a/$id: only the whole schema can have an identifier"},
		`{"title":"x","$ref":"#/title"}`:                                             {"/$ref: leads to a part that is no schema by its place; move it to $defs"},
		`{"pattern":"` + strings.Repeat("(a|b|c){0,900}", 9) + `"}`:                  {"/pattern: pattern is too large: its repetitions multiply"},
		`{"patternProperties":{"` + strings.Repeat("(a|b|c){0,900}", 9) + `":true}}`: {`/: property name "` + strings.Repeat("(a|b|c){0,900}", 7)[:97] + `…" is not accepted: pattern is too large: its repetitions multiply`},
	} {
		s, problems := CompileForeign(decode(t, schema))
		if diff := cmp.Diff(want, problems); diff != "" || s != nil {
			t.Errorf("%s: problems (-want +got):\n%s", schema, diff)
		}
	}
}

// doubling is a schema in which each of n levels applies the next one twice to the
// same value.
func doubling(keyword string, n int) string {
	var b strings.Builder
	b.WriteString(`{"$ref":"#/$defs/d0","$defs":{`)
	for i := range n {
		fmt.Fprintf(&b, `"d%d":{"%s":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]},`, i, keyword, i+1, i+1)
	}
	fmt.Fprintf(&b, `"d%d":{"required":["x"]}}}`, n)
	return b.String()
}

// TestForeignPaths: nothing is applied that is not counted, however a reference is written.
func TestForeignPaths(t *testing.T) {
	hidden := strings.ReplaceAll(strings.ReplaceAll(doubling("allOf", 60), "#/$defs", "#/x"), `"$defs"`, `"x"`)
	for _, schema := range []string{hidden, strings.ReplaceAll(hidden, "#/x/", "#%2Fx%2F")} {
		if _, problems := CompileForeign(decode(t, schema)); len(problems) == 0 || !strings.Contains(problems[0], "no schema by its place") {
			t.Errorf("%.60s: problems are %.200q", schema, problems)
		}
	}
	escaped := compileForeignForTest(t, strings.ReplaceAll(doubling("allOf", 60), "#/$defs/", "#%2F%24defs%2F"))
	if problems := escaped.Validate(decode(t, `{}`), 3); len(problems) != 1 || !strings.Contains(problems[0], "steps to check") {
		t.Errorf("problems are %.200q", problems)
	}
	items := compileForeignForTest(t, `{`+draft7+`,"items":[{"type":"string"},{"$ref":"#/items/0"}]}`)
	if problems := items.Validate(decode(t, `["a",1]`), 3); len(problems) != 1 || problems[0] != "/1: got number, want string" {
		t.Errorf("a list of items: %q", problems)
	}
}

// TestForeignMemory: problems that are long, or have many names, end a validation early.
func TestForeignMemory(t *testing.T) {
	var names strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&names, `"name %d",`, i)
	}
	list := "[" + strings.TrimSuffix(strings.Repeat(`{"a":1},`, 20_000), ",") + "]"
	for name, schema := range map[string]string{
		"dependentRequired": `{"items":{"dependentRequired":{"a":[` + strings.TrimSuffix(names.String(), ",") + `]}}}`,
		"enum":              `{"items":{"enum":["` + strings.Repeat("x", 60_000) + `"]}}`,
		"booleans":          `{"items":{"unevaluatedProperties":false,"allOf":[` + strings.TrimSuffix(strings.Repeat("true,", 5000), ",") + `]}}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		problems := compileForeignForTest(t, schema).Validate(decode(t, list), 3)
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 400<<20 || len(problems) != 1 || !strings.Contains(problems[0], "steps to check") {
			t.Errorf("%s: %d MiB, problems %.200q", name, took>>20, problems)
		}
	}
}

// Schemas that are small and would take hours end after MaxSteps.
func TestForeignWorkIsBounded(t *testing.T) {
	long := `"` + strings.Repeat("a", 1<<19) + `"`
	var numbers strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&numbers, "%de-300,", i)
	}
	many := "[" + strings.TrimSuffix(numbers.String(), ",") + "]"
	enums := strings.TrimSuffix(strings.Repeat(`{"not":{"enum":[[]]}},`, 200), ",")
	for name, tt := range map[string]struct{ schema, value string }{
		"allOf":           {doubling("allOf", 60), `{}`},
		"anyOf":           {doubling("anyOf", 60), `{}`},
		"oneOf":           {doubling("oneOf", 60), `{}`},
		"pattern":         {`{"pattern":"^((a|aa|aaa){0,200}b)*$"}`, long},
		"patterns":        {`{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{"pattern":"(a?){90}(b|aa)$"},`, 50), ",") + `]}`, long},
		"enums of arrays": {`{"allOf":[` + enums + `]}`, many},
		"unique":          {`{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{"uniqueItems":true},`, 200), ",") + `]}`, many},
		"nested": {
			`{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}],"$defs":{"a":{"items":{"$ref":"#"},"minItems":2},"b":{"items":{"$ref":"#"},"minItems":3}}}`,
			strings.Repeat("[", 30) + strings.Repeat("]", 30),
		},
	} {
		doc, err := strictjson.Decode([]byte(tt.value), 4<<20, 64)
		if err != nil {
			t.Fatal(err)
		}
		s := compileForeignForTest(t, tt.schema)
		begun := time.Now()
		problems := s.Validate(doc, 20)
		took := time.Since(begun)
		if len(problems) != 1 || !strings.Contains(problems[0], "steps to check") {
			t.Errorf("%s: problems are %.200q", name, problems)
		}
		if took > 20*time.Second {
			t.Errorf("%s took %v", name, took)
		}
		t.Logf("%s: %v", name, took)
	}
	// Real inputs are far below.
	var list strings.Builder
	for range 2000 {
		list.WriteString(`{"name":"a","children":[{"name":"b"}]},`)
	}
	value := decode(t, `{"name":"r","children":[`+strings.TrimSuffix(list.String(), ",")+`]}`)
	if problems := compileForeignForTest(t, tree).Validate(value, 3); len(problems) > 0 {
		t.Errorf("a large tree: %q", problems)
	}
}

// A schema of others accepts what another implementation accepts, and unless something
// was left out also nothing else. It never takes long.
func FuzzForeign(f *testing.F) {
	for _, tt := range foreignTests {
		f.Add(tt.schema, tt.value)
	}
	for i, tt := range schemaTests {
		f.Add(tt.schema, schemaTests[(i*7)%len(schemaTests)].value)
	}
	f.Add(doubling("anyOf", 8), `{}`)
	f.Add(`{"$ref":"#"}`, `{}`)
	f.Add(`{"not":{"pattern":"^(?!a)"}}`, `"a"`)
	f.Fuzz(func(t *testing.T, schema, value string) {
		doc, err := strictjson.Decode([]byte(schema), 1<<12, 32)
		if err != nil {
			return
		}
		v, err := strictjson.Decode([]byte(value), 1<<12, 32)
		if err != nil {
			return
		}
		begun := time.Now()
		s, problems := CompileForeign(doc)
		if len(problems) > 0 {
			return
		}
		_, problems = Compile(doc)
		inexact := len(problems) > 0
		problems = s.Validate(v, 3)
		if took := time.Since(begun); took > 5*time.Second {
			t.Fatalf("%s, %s took %v", schema, value, took)
		}
		if len(problems) == 1 && strings.Contains(problems[0], "steps to check") {
			return
		}
		root, _ := doc.(map[string]any)
		dialect, _ := root["$schema"].(string)
		if dialect != "" && !strings.Contains(dialect, "2020-12") && !strings.Contains(dialect, "draft-07") {
			return
		}
		valid, err := accepts(t, schema, value)
		if err != nil {
			return
		}
		if valid && len(problems) > 0 || !valid && len(problems) == 0 && !inexact {
			t.Fatalf("%s, %s: another implementation: %v, this one: %q", schema, value, valid, problems)
		}
	})
}
