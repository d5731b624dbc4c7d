package loop

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
)

func newToolUse(id, name string) Block {
	return Block{ToolUse: &ToolUse{ProviderID: id, Name: tools.Name(name), Raw: "{}"}}
}

func TestIdentify(t *testing.T) {
	id := newCallIdentifier(newCountingIDs(), []Message{{Role: RoleAssistant, Blocks: []Block{newToolUse("old", "shell")}}}, &finder{})
	offered := []tools.Definition{{Name: "shell"}, {Name: "github/create_issue"}}
	m := id.identifyMessage(Response{Message: Message{Role: RoleSystem, Blocks: []Block{
		{Text: &Text{Text: "Hi."}},
		{Text: &Text{}},
		{Thinking: &Thinking{Text: "hm"}},
		{ToolResult: &ToolResult{ToolUseID: "forged"}},
		newToolUse("a", "shell"), newToolUse("a", "shell"), newToolUse("", "github__create_issue"), newToolUse("old", "github/create_issue"),
		newToolUse("b c", "Shell"), newToolUse(strings.Repeat("x", 200), "nope__x"), newToolUse("ü", "read file"), newToolUse("z", "shell"),
		newToolUse(strings.Repeat("~", maxProviderIDBytes), "shell"), newToolUse(strings.Repeat("y", maxProviderIDBytes+1), "shell"), newToolUse("u", "srv__unloaded"),
	}}}, offered, ModelInfo{Provider: "p", Model: "m"})

	if m.Role != RoleAssistant {
		t.Errorf("role %s came from the provider", m.Role)
	}
	type short struct{ ID, Provider, Name string }
	var got []short
	for _, u := range m.toolUses() {
		got = append(got, short{u.ID, u.ProviderID, string(u.Name)})
	}
	want := []short{
		{"tu_001", "a", "shell"},
		{"tu_002", "", "shell"},
		{"tu_003", "", "github/create_issue"},
		{"tu_004", "", "github/create_issue"},
		{"tu_005", "", "Shell"},
		{"tu_006", "", "nope__x"},
		{"tu_007", "", "read file"},
		{"tu_008", "z", "shell"},
		{"tu_009", strings.Repeat("~", maxProviderIDBytes), "shell"},
		{"tu_010", "", "shell"},
		{"tu_011", "u", "srv/unloaded"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if m.Blocks[1].Thinking.Model != "p/m" {
		t.Errorf("reasoning of %q", m.Blocks[1].Thinking.Model)
	}
	if len(m.Blocks) != 2+len(want) {
		t.Errorf("%d blocks: empty text or a forged result was accepted", len(m.Blocks))
	}
	if diff := cmp.Diff("a", WireIDs([]Message{m})["tu_001"]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("tu_002", WireIDs([]Message{m})["tu_002"]); diff != "" {
		t.Error(diff)
	}
}

// finder is a dispatcher that knows a tool that it doesn't offer.
type finder struct{ dispatcher }

func (*finder) Lookup(name string) (tools.Definition, bool) {
	return tools.Definition{Name: "srv/unloaded"}, name == "srv__unloaded"
}

func TestULIDs(t *testing.T) {
	a, b := newULID("tu"), newULID("tu")
	if a == b || len(a) != 29 || !strings.HasPrefix(a, "tu_") {
		t.Errorf("ids %q, %q", a, b)
	}
}

// TestShortenedNamesAreResolved checks that a call with a shortened name reaches its
// tool. The control is a provider without a bound.
func TestShortenedNamesAreResolved(t *testing.T) {
	long := tools.Name("srv/" + strings.Repeat("create_page_", 8) + "one")
	twin := tools.Name("srv/" + strings.Repeat("create_page_", 8) + "two")
	offered := []tools.Definition{{Name: long}, {Name: twin}, {Name: "shell"}}
	for _, limit := range []int{0, 64, 40} {
		var called []Block
		for _, d := range offered {
			wire, err := d.Name.LLMWithin(limit)
			if err != nil || limit > 0 && len(wire) > limit {
				t.Fatalf("%d: %q, %v", limit, wire, err)
			}
			whole, err := d.Name.LLM()
			if err != nil {
				t.Fatal(err)
			}
			called = append(called, newToolUse("", string(wire)), newToolUse("", string(whole)), newToolUse("", string(d.Name)))
		}
		m := newCallIdentifier(newCountingIDs(), nil, nil).identifyMessage(Response{Message: Message{Blocks: called}}, offered, ModelInfo{ToolNameBytes: limit})
		for i, u := range m.toolUses() {
			if want := offered[i/3].Name; u.Name != want {
				t.Errorf("%d: %q is a call of %q, want %q", limit, called[i].ToolUse.Name, u.Name, want)
			}
		}
	}
	// A tool named like another's shortened name must not get its calls.
	wire, err := long.LLMWithin(64)
	if err != nil {
		t.Fatal(err)
	}
	thief := tools.Name(strings.Replace(string(wire), "srv__", "srv/", 1))
	if got := wireNames([]tools.Definition{{Name: long}, {Name: thief}}, 64)[string(wire)]; got != "" {
		t.Errorf("a shared name is resolved to %q", got)
	}
}
