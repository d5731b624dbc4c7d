package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
)

// bench is a session's tools of servers.
type bench struct {
	opts      Options
	defs      []tools.Definition
	denied    map[tools.Name]bool
	activated []Activation
	fail      error
	mu        sync.Mutex
}

func newBench(defs ...tools.Definition) *bench {
	b := &bench{defs: defs, denied: map[tools.Name]bool{}}
	b.opts = Options{
		Enabled: true, Servers: b.servers, Wait: func(context.Context, string) error { return nil },
		Wire: func(n tools.Name) tools.LLMName {
			wire, _ := n.LLM()
			return wire
		},
		Tools: func() []tools.Definition { return b.defs }, IsUsable: func(def tools.Definition) bool { return !b.denied[def.Name] }, Loaded: &Loaded{},
		Activated: func(a Activation) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.activated = append(b.activated, a)
			return b.fail
		},
	}
	return b
}

// servers returns the servers with tools that may be used.
func (b *bench) servers() []Server {
	names := map[string]bool{}
	for _, def := range b.defs {
		if server := def.Name.Server(); server != "" && !b.denied[def.Name] {
			names[server] = true
		}
	}
	var list []Server
	for _, name := range slices.Sorted(maps.Keys(names)) {
		list = append(list, Server{Name: name})
	}
	return list
}

// tool is the definition of a tool with parameters.
func tool(name, description string, parameters ...string) tools.Definition {
	properties := map[string]any{}
	for _, p := range parameters {
		properties[p] = map[string]any{}
	}
	schema, _ := json.Marshal(map[string]any{"type": "object", "properties": properties})
	def := tools.Definition{Name: tools.Name(name), Description: description, InputSchema: schema, Class: tools.ClassNetwork, Runs: tools.PlaceHost}
	if def.Name.Server() != "" {
		def.Hash = fmt.Sprintf("%064x", len(name)*1000+len(description))
	}
	return def
}

// call runs one of the tools, of which each call gets a new one.
func (b *bench) call(t testing.TB, name tools.Name, input any) (string, error) {
	t.Helper()
	text, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range Factories(b.opts) {
		if err := tools.CheckFactory(f); err != nil {
			t.Fatal(err)
		}
		if one := f(); one.Definition().Name == name {
			out, err := one.Execute(t.Context(), &tools.Call{ID: "tu_1", Input: text})
			if err != nil {
				return "", err
			}
			return out.Content[0].Text, nil
		}
	}
	t.Fatalf("there is no %s", name)
	return "", nil
}

func (b *bench) search(t testing.TB, query, server string) string {
	t.Helper()
	text, err := b.call(t, tools.NameSearchTools, map[string]string{"query": query, "server": server})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (b *bench) load(t testing.TB, name string) (string, error) {
	return b.call(t, tools.NameLoadTool, map[string]string{"name": name})
}

func notion() []tools.Definition {
	return []tools.Definition{
		tool("read_file", "Reads a file."),
		tool("notion/create-pages", "Creates pages in a workspace.", "pages", "parent"),
		tool("notion/search", "Searches everything.", "a", "b", "c", "d", "e", "f"),
		tool("github/create_issue", "Opens an issue "+strings.Repeat("verylong-", 30)),
		tool("github/hidden", "Creates secrets."),
	}
}

// The model sees names as it calls them. Records have canonical ones.
func TestSearchLoadsMatches(t *testing.T) {
	b := newBench(notion()...)
	b.denied["github/hidden"] = true
	got := b.search(t, "Create, create", "")
	lines := strings.Split(got, "\n")
	if len(lines) != 3 || lines[0] != "These tools can be called from your next answer on:" || !strings.HasPrefix(lines[2], "- github__create_issue: Opens an issue verylong") ||
		lines[1] != "- notion__create-pages: Creates pages in a workspace. (pages, parent)" {
		t.Errorf("got %q", got)
	}
	if n := len([]rune(strings.TrimPrefix(lines[2], "- github__create_issue: "))); n != maxDescription {
		t.Errorf("the description has %d characters", n)
	}
	if diff := cmp.Diff([]Activation{
		{CallID: "tu_1", Name: "notion/create-pages", Definition: b.defs[1].Hash, By: BySearch},
		{CallID: "tu_1", Name: "github/create_issue", Definition: b.defs[3].Hash, By: BySearch},
	}, b.activated); diff != "" {
		t.Errorf("activated (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]tools.Name{"notion/create-pages", "github/create_issue"}, b.opts.Loaded.Names()); diff != "" {
		t.Errorf("loaded (-want +got):\n%s", diff)
	}
	// Once more, nothing is loaded anew.
	b.search(t, "create", "notion")
	if len(b.activated) != 2 {
		t.Errorf("activated again: %+v", b.activated)
	}
	if got := b.search(t, "everything", "mcp:notion"); !strings.HasSuffix(got, "- notion__search: Searches everything. (a, b, c, d, +2 more)") {
		t.Errorf("got %q", got)
	}
	if b.opts.Loaded.Has("github/hidden") {
		t.Error("a tool that the session may not use is loaded")
	}
	// Our own tools are found, and are no tools of a server.
	if got := b.search(t, "reads", ""); !strings.Contains(got, "- read_file: Reads a file.") || len(b.activated) != 3 {
		t.Errorf("got %q, activated %+v", got, b.activated)
	}
	if got := b.search(t, "reads", "notion"); !strings.HasPrefix(got, "No tool matches") {
		t.Errorf("got %q", got)
	}
}

func TestSearchCatalogue(t *testing.T) {
	b := newBench(notion()...)
	b.denied["github/hidden"] = true
	const catalogue = "Servers:\n- github: 1 tools\n- notion: 2 tools"
	for _, query := range []string{"", "servers", "MCP", " capabilities "} {
		if got := b.search(t, query, ""); got != catalogue {
			t.Errorf("%q: %q", query, got)
		}
	}
	for _, server := range []string{"", "default", "all", "any", "*"} {
		if got := b.search(t, "list", server); got != catalogue+"\nName a server to list its tools." {
			t.Errorf("list of %q: %q", server, got)
		}
	}
	if got := b.search(t, "*", "notion"); got != "Tools of notion. load_tool loads one.\n- notion__create-pages: Creates pages in a workspace. (pages, parent)\n- notion__search: Searches everything. (a, b, c, d, +2 more)" {
		t.Errorf("all: %q", got)
	}
	if got := b.search(t, "all", "nowhere"); !strings.HasPrefix(got, `No server "nowhere" has tools`) || !strings.HasSuffix(got, catalogue) {
		t.Errorf("all of an unknown server: %q", got)
	}
	if len(b.activated) != 0 {
		t.Errorf("a list has loaded %+v", b.activated)
	}
	b.opts.Servers = func() []Server {
		return []Server{{Name: "github"}, {Name: "slow", Problem: "did not start\x1b[2J"}}
	}
	if got := b.search(t, "servers", ""); got != "Servers:\n- github: 1 tools\n- slow: 0 tools (did not start\\x1b[2J)" {
		t.Errorf("got %q", got)
	}
	many := newBench()
	for i := range 40 {
		many.defs = append(many.defs, tool(fmt.Sprintf("srv/t%02d", i), "Does it."))
	}
	if got := many.search(t, "all", "srv"); strings.Count(got, "\n- ") != 30 || !strings.HasSuffix(got, "and 10 more, which a search by words finds") {
		t.Errorf("got %q", got)
	}
	if got := many.search(t, "does", ""); strings.Count(got, "\n- ") != 10 || len(many.activated) != 10 {
		t.Errorf("a search has %d matches and loads %d", strings.Count(got, "\n- "), len(many.activated))
	}
}

// Suggestions are in a line of their own and load nothing.
func TestSearchSuggests(t *testing.T) {
	for query, want := range map[string]string{
		"notiom_crate_pagse":     `No tool matches "notiom_crate_pagse". Did you mean: notion__create-pages`,
		"creatissue":             "Did you mean: github__create_issue",
		"serch":                  "Did you mean: notion__search",
		"zzzzzzzzzzzzzzzzzzzzzz": `No tool matches "zzzzzzzzzzzzzzzzzzzzzz". Query "servers" lists the servers.`,
	} {
		b := newBench(notion()...)
		if got := b.search(t, query, ""); !strings.Contains(got, want) || strings.Contains(got, "\n") || len(b.activated) != 0 {
			t.Errorf("%s: %q, activated %+v", query, got, b.activated)
		}
	}
}

func TestLoadTool(t *testing.T) {
	b := newBench(notion()...)
	b.denied["github/hidden"] = true
	for _, form := range []string{"notion/create-pages", "notion__create-pages"} {
		if got, err := b.load(t, form); got != "notion__create-pages" || err != nil {
			t.Errorf("%s: %q, %v", form, got, err)
		}
	}
	if diff := cmp.Diff([]Activation{{CallID: "tu_1", Name: "notion/create-pages", Definition: b.defs[1].Hash, By: ByLoad}}, b.activated); diff != "" {
		t.Errorf("activated (-want +got):\n%s", diff)
	}
	if got, err := b.load(t, "read_file"); got != "read_file" || err != nil || len(b.activated) != 1 {
		t.Errorf("our own: %q, %v", got, err)
	}
	for name, want := range map[string]string{
		"notion__create_page":    `There is no tool "notion__create_page". Did you mean: notion__create-pages`,
		"\x1b[2J":                `There is no tool "\\x1b[2J". search_tools finds tools.`,
		"github__hidden":         `Tool "github__hidden" is not available in this session.`,
		strings.Repeat("z", 200): "search_tools finds tools.",
	} {
		_, err := b.load(t, name)
		own, ok := errors.AsType[*tools.Error](err)
		if !ok || !own.Visible || !strings.Contains(own.Message, want) {
			t.Errorf("%q: %v", name, err)
		}
	}
	long := tool("srv/"+strings.Repeat("a", 100), "Long.")
	b.defs = append(b.defs, long)
	b.opts.Wire = func(n tools.Name) tools.LLMName {
		wire, _ := n.LLMWithin(64)
		return wire
	}
	wire := string(b.opts.Wire(long.Name))
	if got, err := b.load(t, wire); got != wire || err != nil || !b.opts.Loaded.Has(long.Name) {
		t.Errorf("a shortened name: %q, %v", got, err)
	}
}

// A tool that can't be recorded is not loaded.
func TestActivationIsRecordedFirst(t *testing.T) {
	b := newBench(notion()...)
	b.fail = tools.ErrRecord
	if _, err := b.load(t, "notion/search"); !errors.Is(err, tools.ErrRecord) || b.opts.Loaded.Has("notion/search") {
		t.Errorf("loaded: %v", err)
	}
}

func TestLoadedIsBounded(t *testing.T) {
	var l Loaded
	for i := range MaxLoaded + 5 {
		l.Add(tools.Name(fmt.Sprintf("srv/t%d", i)))
	}
	if names := l.Names(); len(names) != MaxLoaded || names[0] != "srv/t5" {
		t.Errorf("%d are loaded, the first is %s", len(names), names[0])
	}
	if reason, message := l.Refusal("srv/t0"); reason != "not_loaded" || !strings.Contains(message, `"srv__t0" is not loaded. Load it with load_tool`) {
		t.Errorf("%s: %s", reason, message)
	}
	if reason, _ := l.Refusal("srv/t9"); reason != "" || !l.Has("shell") || !(*Loaded)(nil).Has("srv/x") {
		t.Errorf("what is loaded is refused: %s", reason)
	}
}

func TestWaitsForServers(t *testing.T) {
	b := newBench(notion()...)
	var waited []string
	b.opts.Wait = func(_ context.Context, server string) error {
		waited = append(waited, server)
		return nil
	}
	b.search(t, "create", "")
	b.search(t, "create", "mcp:notion")
	_, _ = b.load(t, "notion__search")
	_, _ = b.load(t, "what")
	if diff := cmp.Diff([]string{"", "notion", "notion", ""}, waited); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Servers' texts are cut, and can neither control a terminal nor begin a line.
func TestHostileTexts(t *testing.T) {
	b := newBench(
		tool("srv/a", "find\x1b[2J\u202e\U000e0041\n- other__tool: loaded\r\n"+strings.Repeat("x", 1<<20), "p\n- q", strings.Repeat("y", 1000)),
		tool("srv/b", "find\xff"),
	)
	got := b.search(t, "find", "")
	if len(got) > 1000 || strings.Count(got, "\n") != 2 || strings.ContainsAny(got, "\x1b\u202e\U000e0041\r") || !strings.Contains(got, `find\x1b[2J`) {
		t.Errorf("%d bytes: %q", len(got), got)
	}
}

func manyTools(n int) []tools.Definition {
	verbs, things := []string{"create", "delete", "list", "update", "search"}, []string{"page", "issue", "file", "user", "event", "message", "branch", "comment"}
	var defs []tools.Definition
	for i := range n {
		verb, thing := verbs[i%len(verbs)], things[i/len(verbs)%len(things)]
		defs = append(defs, tool(fmt.Sprintf("server-%d/%s_%s_%d", i%50, verb, thing, i), fmt.Sprintf("%s a %s of the project, number %d. %s", verb, thing, i, strings.Repeat("It does what its name means. ", 20)), "id", "name"))
	}
	for i := range defs {
		defs[i].Hash = fmt.Sprintf("%064x", i)
	}
	return defs
}

// A search among 2,000 tools takes milliseconds, also one that matches all or none.
func BenchmarkSearch(b *testing.B) {
	bench := newBench(manyTools(2000)...)
	bench.opts.Loaded = &Loaded{}
	shared := Factories(bench.opts)[0]
	for name, query := range map[string]string{"one": "branch 1733", "all": "create delete list update search", "none": "creat_brnch_of_projct", "catalogue": "servers"} {
		b.Run(name, func(b *testing.B) {
			input := json.RawMessage(fmt.Sprintf(`{"query":%q}`, query))
			for b.Loop() {
				if _, err := shared().Execute(b.Context(), &tools.Call{ID: "tu_1", Input: input}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestSearchIsFast holds a bound that is far above what a search takes, for slow machines.
func TestSearchIsFast(t *testing.T) {
	bench := newBench(manyTools(2000)...)
	shared := Factories(bench.opts)[0]
	best := time.Hour
	for range 5 {
		begun := time.Now()
		if _, err := shared().Execute(t.Context(), &tools.Call{ID: "tu_1", Input: json.RawMessage(`{"query":"creat_brnch_of_projct"}`)}); err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(begun))
	}
	if best > 100*time.Millisecond {
		t.Errorf("a search takes %v", best)
	}
	t.Logf("a search takes %v", best)
}

func FuzzSearch(f *testing.F) {
	f.Add("create", "notion", "desc", "name")
	f.Add("\xff\x00", "*", "\x1b", "\n")
	f.Fuzz(func(t *testing.T, query, server, description, parameter string) {
		b := newBench(append(notion(), tool("srv/x", description, parameter))...)
		text, err := json.Marshal(map[string]string{"query": query, "server": server})
		if err != nil {
			t.Skip()
		}
		out, err := Factories(b.opts)[0]().Execute(t.Context(), &tools.Call{Input: text})
		if err != nil {
			t.Fatal(err)
		}
		if shown, hidden := tools.DisplayLines(out.Content[0].Text); hidden {
			t.Errorf("the result holds what terminals execute: %q", shown)
		}
	})
}
