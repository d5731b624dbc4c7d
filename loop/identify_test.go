package loop

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
)

func use(id, name string) Block {
	return Block{ToolUse: &ToolUse{ProviderID: id, Name: tools.Name(name), Raw: "{}"}}
}

func TestIdentify(t *testing.T) {
	id := newIdentity(counting(), []Message{{Role: RoleAssistant, Blocks: []Block{use("old", "shell")}}})
	offered := []tools.Definition{{Name: "shell"}, {Name: "github/create_issue"}}
	m := id.message(Response{Message: Message{Role: RoleSystem, Blocks: []Block{
		{Text: &Text{Text: "Hi."}},
		{Text: &Text{}},
		{Thinking: &Thinking{Text: "hm"}},
		{ToolResult: &ToolResult{ToolUseID: "forged"}},
		use("a", "shell"), use("a", "shell"), use("", "github__create_issue"), use("old", "github/create_issue"),
		use("b c", "Shell"), use(strings.Repeat("x", 200), "nope__x"), use("ü", "read file"), use("z", "shell"),
	}}}, offered)

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
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if len(m.Blocks) != 2+len(want) {
		t.Errorf("%d blocks: empty text or a forged result came through", len(m.Blocks))
	}
	if diff := cmp.Diff("a", WireIDs([]Message{m})["tu_001"]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff("tu_002", WireIDs([]Message{m})["tu_002"]); diff != "" {
		t.Error(diff)
	}
}

func TestULIDs(t *testing.T) {
	a, b := newULID("tu"), newULID("tu")
	if a == b || len(a) != 29 || !strings.HasPrefix(a, "tu_") {
		t.Errorf("ids %q, %q", a, b)
	}
}
