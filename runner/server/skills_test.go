package server

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/tools"
)

// A client lists a session's skills, with the tools of its own role. A tool
// that requires an administrator does not run for another client's message, and
// a workspace skill gives it to nobody.
func TestSkillsOverHTTP(t *testing.T) {
	w := newTestEnv(t, `
  - calls: [{tool: probe, input: {}}]
  - text: Refused.
  - calls: [{tool: load_skill, input: {name: look}}]
  - calls: [{tool: write_file, input: {path: after, content: x}}, {tool: probe, input: {}}]
  - text: Loaded.
  - calls: [{tool: probe, input: {}}]
  - text: Done.
`, func(o *Options) { o.Tokens = roleTokens() })
	w.opts = func(o *runner.Options) {
		o.Skills.Workspace = true
		o.Tools = []tools.Factory{func() tools.Tool { return &enabledTool{adminTool{true}} }}
	}
	for path, text := range map[string]string{
		".agents/skills/look/SKILL.md": "---\nname: look\ndescription: Looks.\nallowed-tools: Read Teleport probe\n---\nLook only.\n",
		".agents/skills/free/SKILL.md": "---\nname: free\ndescription: Frees.\n---\nDo all.\n", ".agents/skills/bad/SKILL.md": "no skill",
	} {
		full := filepath.Join(w.dir, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	id := w.startSession("bind")
	admin, other := roleToken("boss").Value, roleToken("default").Value
	list := func(token string) (r runner.SkillReport) {
		t.Helper()
		w.do(token, "GET", "/sessions/"+id+"/skills", "").requireStatus(t, 200).decodeInto(t, &r)
		return r
	}
	got := list(other)
	var about []string
	for _, s := range got.Skills {
		about = append(about, s.Name+" "+string(s.Trust)+" "+s.Path+" "+strings.Join(s.Unknown, ""))
		if s.Loaded || s.Body != "" || len(s.SHA256) != 64 {
			t.Errorf("listed: %+v", s)
		}
	}
	if diff := cmp.Diff([]string{"free untrusted .agents/skills/free/SKILL.md ", "look untrusted .agents/skills/look/SKILL.md Teleport"}, about); diff != "" {
		t.Errorf("skills (-want +got):\n%s", diff)
	}
	if len(got.Ignored) != 1 || got.Ignored[0].Name != ".agents/skills/bad/SKILL.md" {
		t.Errorf("ignored: %+v", got.Ignored)
	}
	if slices.Contains(got.Tools, "probe") || !slices.Contains(got.Tools, "write_file") {
		t.Errorf("a client that is no administrator has the tools %v", got.Tools)
	}
	if all := list(admin).Tools; !slices.Contains(all, "probe") {
		t.Errorf("the control, an administrator, has the tools %v", all)
	}
	var one struct{ Name, Body string }
	w.do(other, "GET", "/sessions/"+id+"/skills/look", "").requireStatus(t, 200).decodeInto(t, &one)
	if one.Name != "look" || one.Body != "Look only." {
		t.Errorf("the skill is %+v", one)
	}
	w.do(other, "GET", "/sessions/"+id+"/skills/bad", "").requireProblem(t, 404, "no_skill")

	turn := func(token string) {
		t.Helper()
		var v Started
		w.do(token, "POST", "/sessions/"+id+"/turns", `{"message":"go on"}`).requireStatus(t, 202).decodeInto(t, &v)
		w.waitForTurn(id, v.Turn)
	}
	turn(other)
	turn(other)
	got = list(other)
	for _, s := range got.Skills {
		if s.Loaded != (s.Name == "look") {
			t.Errorf("loaded: %+v", s)
		}
	}
	if diff := cmp.Diff([]tools.Name{"load_skill", "read_file"}, got.Tools); diff != "" {
		t.Errorf("tools that are left (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]tools.Name{"load_skill", "probe", "read_file"}, list(admin).Tools); diff != "" {
		t.Errorf("tools that are left to an administrator (-want +got):\n%s", diff)
	}
	turn(admin)
	var calls []string
	for _, r := range w.trace(id) {
		if k := string(r.Kind); k == "tool.completed" || k == "tool.failed" {
			var p struct {
				Name   string `json:"tool_name"`
				Class  string `json:"error_class"`
				Reason string `json:"reason"`
			}
			if err := json.Unmarshal(r.Payload, &p); err != nil {
				t.Fatal(err)
			}
			calls = append(calls, strings.TrimSpace(p.Name+" "+p.Class+" "+p.Reason))
		}
	}
	want := []string{"probe permission_denied not_permitted", "load_skill", "write_file permission_denied skill", "probe permission_denied not_permitted", "probe"}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	w.do(other, "DELETE", "/sessions/"+id, "").requireStatus(t, 200)
	w.do(other, "GET", "/sessions/"+id+"/skills", "").requireProblem(t, 410, "ended")
	w.do(other, "GET", "/sessions/ses_00000000000000000000000000/skills/look", "").requireProblem(t, 404, "no_session")
}

// enabledTool is on by default.
type enabledTool struct{ adminTool }

func (e enabledTool) Definition() tools.Definition {
	def := e.adminTool.Definition()
	def.EnabledByDefault = true
	return def
}
