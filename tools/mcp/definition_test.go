package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/tools"
)

// listing is a server whose tools/list answers with result.
func listing(result string) serverFunc {
	return rawServerWith(func(c *rawConn, m message) (bool, error) {
		if m.Method == "tools/list" {
			return true, c.reply(m, result)
		}
		return false, nil
	})
}

// definitionJSON is one tool, with a schema and a description.
func definitionJSON(name, description, schema string) string {
	quoted, _ := json.Marshal(description)
	return fmt.Sprintf(`{"name":%q,"description":%s,"inputSchema":%s}`, name, quoted, schema)
}

// TestPoisonedDefinitions: every tool is beside one that is good, and that stays.
func TestPoisonedDefinitions(t *testing.T) {
	var many []string
	for i := range 10_000 {
		many = append(many, fmt.Sprintf(`"p%d":{"type":"string"}`, i))
	}
	for _, test := range []struct {
		name, description, schema string
		skipped                   string // "" means that it is offered
		check                     func(def tools.Definition) error
	}{
		{name: "control", description: "Does it.", schema: emptySchema},
		{
			name: "hidden characters", description: "Add.\u202e\U000e0041\U000e0042\u200b\x1b[31m Really\u2028.", schema: emptySchema,
			check: func(def tools.Definition) error {
				return wantText(def.Description, "Add.[31m Really .\n[5 hidden characters removed]")
			},
		},
		{
			name: "1 MB of description", description: strings.Repeat("x", 1<<20-200), schema: emptySchema,
			check: func(def tools.Definition) error {
				if n := len(def.Description); n < maxDescriptionBytes || n > maxDescriptionBytes+100 || !strings.Contains(def.Description, "left out") {
					return fmt.Errorf("%d bytes", n)
				}
				return nil
			},
		},
		{name: "2 MB of description", description: strings.Repeat("x", 2<<20), schema: emptySchema, skipped: "bytes"},
		{name: "no description", schema: emptySchema, check: func(def tools.Definition) error {
			if def.Description == "" {
				return errors.New("is empty")
			}
			return nil
		}},
		{name: "10,000 properties", description: "d", schema: `{"type":"object","properties":{` + strings.Join(many, ",") + `}}`, skipped: "/"},
		{name: "loop of references", description: "d", schema: `{"type":"object","$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}`, skipped: "/"},
		{name: "reference to a file", description: "d", schema: `{"type":"object","properties":{"a":{"$ref":"file:///etc/passwd"}}}`, skipped: "/"},
		{name: "deep schema", description: "d", schema: strings.Repeat(`{"type":"object","properties":{"a":`, 50) + `{}` + strings.Repeat(`}}`, 50), skipped: "nested"},
		{name: "schema that is no object", description: "d", schema: `"any"`, skipped: "no object"},
		{name: "missing schema", description: "d", schema: `null`, skipped: "no object"},
		{
			name: "hidden in the schema", description: "d",
			schema: `{"type":"object","properties":{"a":{"type":"string","description":"x\u202ey\udb40\udc41"}}}`,
			check: func(def tools.Definition) error {
				return wantText(string(def.InputSchema), `{"properties":{"a":{"description":"xy\n[2 hidden characters removed]","type":"string"}},"type":"object"}`)
			},
		},
		{name: "hidden in a key", description: "d", schema: `{"type":"object","properties":{"a\u200b":{}}}`, skipped: "hidden"},
		{name: "hidden in a value", description: "d", schema: `{"type":"object","properties":{"a":{"enum":["a\u202eb"]}}}`, skipped: "hidden"},
		{
			name: "full schema", description: "d",
			schema: `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"a":{"anyOf":[{"type":"string"},{"type":"null"}]}},"$defs":{"x":{}}}`,
		},
		{name: "annotations", description: "d", schema: emptySchema + `,"annotations":{"readOnlyHint":true,"destructiveHint":false}`, check: func(def tools.Definition) error {
			if def.Class != tools.ClassExecute || def.Runs != tools.PlaceSandbox {
				return fmt.Errorf("class %s in %s", def.Class, def.Runs)
			}
			return nil
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := startHarness(t, map[string]serverFunc{"a": listing(`{"tools":[` + definitionJSON("good", "d", emptySchema) + `,` + definitionJSON("x", test.description, test.schema) + `]}`)}, nil)
			started := eventsOf[ServerStarted](h)
			if len(started) != 1 {
				t.Fatalf("failed: %+v", eventsOf[ServerFailed](h))
			}
			if _, ok := h.registry.Find("a/good"); !ok {
				t.Error("the good tool is missing")
			}
			found, ok := h.registry.Find("a/x")
			if test.skipped != "" {
				if ok || len(started[0].Skipped) != 1 || started[0].Skipped[0].Name != "x" || !strings.Contains(started[0].Skipped[0].Why, test.skipped) {
					t.Errorf("skipped: %+v, want %q", started[0].Skipped, test.skipped)
				}
				return
			}
			if !ok {
				t.Fatalf("skipped: %+v", started[0].Skipped)
			}
			if test.check != nil {
				if err := test.check(found.Definition); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func wantText(got, want string) error {
	if got != want {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}

// TestNames: what a server calls its tools replaces nothing.
func TestNames(t *testing.T) {
	names := []string{
		"execute", "read_file", "fetch", "mcp__other__x", "other/x", "", strings.Repeat("n", 500), "twice", "same", "same", "a b", "ü", "dotted.name", "dotted_name", "\x1b[2J", "Good-1",
	}
	list := strings.Replace(toolsResult(names...), "[", "[null,"+definitionJSON("twice", "another", emptySchema)+",", 1)
	h := newHarness(t, map[string]serverFunc{"s": listing(list), "t": listing(toolsResult("other__x"))}, nil)
	if err := h.registry.Register(tools.NewFunc(tools.Definition{
		Name: "read_file", Description: "The built-in.", InputSchema: json.RawMessage(emptySchema), Class: tools.ClassRead,
	}, func(context.Context, struct{}) (string, error) { return "", nil })); err != nil {
		t.Fatal(err)
	}
	h.Start(t.Context())
	want := []string{"read_file", "s/Good-1", "s/dotted_name", "s/execute", "s/fetch", "s/mcp__other__x", "s/other/x", "s/read_file", "s/same", "t/other__x"}
	if got := h.names(); !slices.Equal(got, want) {
		t.Errorf("registered %q, want %q", got, want)
	}
	if found, _ := h.registry.Find("read_file"); found.Definition.Description != "The built-in." {
		t.Error("the built-in was replaced")
	}
	skipped := map[string]string{}
	for _, e := range eventsOf[ServerStarted](h) {
		for _, s := range e.Skipped {
			skipped[s.Name] = s.Why
		}
	}
	wantSkipped := []string{"", strings.Repeat("n", maxShownName-len("…")) + "…", "\\x1b[2J", "a b", "dotted.name", "twice", "ü"}
	slices.Sort(wantSkipped)
	if got := slices.Sorted(maps.Keys(skipped)); !slices.Equal(got, wantSkipped) {
		t.Errorf("skipped %q, want %q", got, wantSkipped)
	}
}

func TestTooManyTools(t *testing.T) {
	var names []string
	for i := range maxTools + 500 {
		names = append(names, fmt.Sprintf("t%d", i))
	}
	h := startHarness(t, map[string]serverFunc{"a": listing(toolsResult(names...))}, nil)
	started := eventsOf[ServerStarted](h)
	if len(h.names()) != maxTools || len(started) != 1 || len(started[0].Skipped) != 1 {
		t.Errorf("%d tools, started %+v", len(h.names()), started)
	}
}

// TestPages has servers whose lists have pages, and some that never end.
func TestPages(t *testing.T) {
	paging := func(next func(page int) string, names ...string) serverFunc {
		page := 0
		return rawServerWith(func(c *rawConn, m message) (bool, error) {
			if m.Method != "tools/list" {
				return false, nil
			}
			page++
			cursor := next(page)
			return true, c.reply(m, strings.TrimSuffix(toolsResult(append(names, fmt.Sprintf("t%d", page))...), "}")+`,"nextCursor":"`+cursor+`"}`)
		})
	}
	h := startHarness(t, map[string]serverFunc{
		"three": paging(func(page int) string { return []string{"", "a", "b", ""}[page] }),
		"stuck": paging(func(int) string { return "x" }, "a", "b"),
		"ever":  paging(func(page int) string { return fmt.Sprint(page) }),
	}, nil)
	got := slices.DeleteFunc(h.names(), func(name string) bool { return strings.HasPrefix(name, "ever/") })
	if want := []string{"stuck/a", "stuck/b", "stuck/t1", "stuck/t2", "three/t1", "three/t2", "three/t3"}; !slices.Equal(got, want) || len(h.names()) != len(want)+maxPages {
		t.Errorf("%d tools, %q, want %q", len(h.names()), got, want)
	}
	want := map[string]string{"three": "", "stuck": "pages that repeat", "ever": "more than 100 pages"}
	for _, e := range eventsOf[ServerStarted](h) {
		if why := want[e.Server]; len(e.Skipped) != min(len(why), 1) || why != "" && !strings.Contains(e.Skipped[0].Why, why) {
			t.Errorf("%s skipped %+v, want %q", e.Server, e.Skipped, why)
		}
	}
}

func TestIncludeExclude(t *testing.T) {
	h := startHarness(t, map[string]serverFunc{"a": listing(toolsResult("read_a", "read_b", "write_a", "other"))}, func(o *Options) {
		o.Servers[0].Include = []string{"read_*", "write_a"}
		o.Servers[0].Exclude = []string{"read_b", "w*"}
	})
	if got, want := h.names(), []string{"a/read_a"}; !slices.Equal(got, want) {
		t.Errorf("tools %q, want %q", got, want)
	}
}

// TestHash: equal definitions have equal hashes, and a change of any part that a
// person or a model sees, or that is hidden from both, has another.
func TestHash(t *testing.T) {
	hash := func(definition string) string {
		t.Helper()
		h := startHarness(t, map[string]serverFunc{"a": listing(`{"tools":[` + definition + `]}`)}, nil)
		list := h.Tools()
		if len(list) != 1 {
			t.Fatalf("tools: %+v", list)
		}
		if found, _ := h.registry.Find("a/x"); found.Definition.Hash != list[0].Hash {
			t.Errorf("definition has hash %q, tool %q", found.Definition.Hash, list[0].Hash)
		}
		return list[0].Hash
	}
	base := hash(`{"name":"x","description":"d","inputSchema":{"type":"object","properties":{"a":{},"b":{}}}}`)
	for definition, equal := range map[string]bool{
		`{"inputSchema":{"properties":{"b":{},"a":{}},"type":"object"},"description":"d","name":"x"}`:                                        true,
		`{"name":"x","description":"d","inputSchema":{"type":"object","properties":{"a":{},"b":{}}},"_meta":{"n":1}}`:                        true,
		`{"name":"x","description":"e","inputSchema":{"type":"object","properties":{"a":{},"b":{}}}}`:                                        false,
		`{"name":"x","description":"d\u200b","inputSchema":{"type":"object","properties":{"a":{},"b":{}}}}`:                                  false,
		`{"name":"x","description":"d","inputSchema":{"type":"object","properties":{"a":{},"c":{}}}}`:                                        false,
		`{"name":"x","description":"d","inputSchema":{"type":"object","properties":{"a":{},"b":{}}},"outputSchema":{"type":"object"}}`:       false,
		`{"name":"x","description":"d","inputSchema":{"type":"object","properties":{"a":{},"b":{}}},"annotations":{"destructiveHint":true}}`: false,
	} {
		if got := hash(definition); (got == base) != equal {
			t.Errorf("%s: equal hash %t, want %t", definition, got == base, equal)
		}
	}
}
