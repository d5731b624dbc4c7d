package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/skill"
)

// skillText returns a SKILL.md; extra are further lines of front matter.
func skillText(name, extra, body string) string {
	return "---\nname: " + name + "\ndescription: Describes " + name + ".\n" + extra + "---\n" + body + "\n"
}

// offered returns the names of a request's tools.
func offered(r loop.Request) map[tools.Name]bool {
	names := map[tools.Name]bool{}
	for _, t := range r.Tools {
		names[t.Name] = true
	}
	return names
}

// TestSkillsRestrictTheSession: before a skill is loaded, all tools are offered and run (the control).
// Afterwards, tools that it does not name are neither offered nor run, even if the model calls one.
func TestSkillsRestrictTheSession(t *testing.T) {
	b := newBench(t, `
  - calls: [{tool: write_file, input: {path: before, content: x}}]
  - calls: [{tool: load_skill, input: {name: look}}]
  - calls: [{tool: write_file, input: {path: after, content: x}}]
  - calls: [{tool: load_skill, input: {name: change}}]
  - calls: [{tool: read_file, input: {path: before}}]
  - text: Done.
`)
	look := skillText("look", "allowed-tools: Read Teleport\n", "Look only. "+order)
	b.file(".agents/skills/look/SKILL.md", look)
	b.file(".agents/skills/change/SKILL.md", skillText("change", "allowed-tools: Write\n", "Change."))
	b.opts.Skills.Workspace = true
	model := &attentive{Model: b.opts.Profiles[0].Model}
	b.opts.Profiles = []loop.Profile{{Model: model}}
	_, records := b.run(t.Context())

	if !offered(model.requests[0])["write_file"] || !b.exists("before") {
		t.Fatal("before a skill is loaded, write_file is not offered or does not run")
	}
	for i, request := range model.requests[2:] {
		if names := offered(request); !names["read_file"] || names["write_file"] || names["shell"] {
			t.Errorf("request %d offers %v", i+2, names)
		}
	}
	if b.exists("after") {
		t.Error("a tool ran that the loaded skill does not name")
	}
	var reasons []string
	for _, f := range of[record.ToolFailed](t, records) {
		reasons = append(reasons, string(f.Name)+" "+string(f.Class)+" "+f.Reason)
	}
	if diff := cmp.Diff([]string{"write_file permission_denied skill", "load_skill permission_denied skill"}, reasons); diff != "" {
		t.Errorf("failed calls (-want +got):\n%s", diff)
	}
	last := model.requests[len(model.requests)-1]
	if n, wrapped := bare(last.Messages, order); n != 0 || wrapped == 0 {
		t.Errorf("the text of a workspace's skill stands %d times outside of a wrapper, %d times inside", n, wrapped)
	}
	if n, wrapped := bare(last.Messages, "Describes look."); n != 0 || wrapped == 0 {
		t.Errorf("the description of a workspace's skill stands %d times outside of a wrapper, %d times inside", n, wrapped)
	}

	created := of[record.SessionCreated](t, records)[0]
	want := []record.Skill{{Name: "change", Path: ".agents/skills/change/SKILL.md", Bytes: created.Skills[0].Bytes, SHA256: created.Skills[0].SHA256, Trust: "untrusted"}, {
		Name: "look", Path: ".agents/skills/look/SKILL.md", Bytes: int64(len(look)), SHA256: hexSum([]byte(look)), Trust: "untrusted",
	}}
	if diff := cmp.Diff(want, created.Skills); diff != "" {
		t.Errorf("recorded skills (-want +got):\n%s", diff)
	}
	found := false
	for _, c := range of[record.ToolCompleted](t, records) {
		found = found || c.Name == skill.ToolName && c.Metadata["skill"] == "look" && c.Metadata["sha256"] == hexSum([]byte(look))
	}
	if !found {
		t.Error("no record has the loaded skill and its hash")
	}
	found = false
	for _, w := range of[record.Warning](t, records) {
		found = found || strings.Contains(w.Message, "Teleport")
	}
	if !found {
		t.Error("no warning names the unknown tool")
	}
}

// TestSkillsLoadedTogether: if one message loads two skills, the first decides about the second. The
// control is a pair whose first skill allows it.
func TestSkillsLoadedTogether(t *testing.T) {
	for allowed, loads := range map[string]int{"Read": 1, "Read load_skill": 2} {
		b := newBench(t, `
  - calls: [{tool: load_skill, input: {name: look}}, {tool: load_skill, input: {name: change}}]
  - calls: [{tool: write_file, input: {path: after, content: x}}]
  - text: Done.
`)
		b.file(".agents/skills/look/SKILL.md", skillText("look", "allowed-tools: "+allowed+"\n", "Look."))
		b.file(".agents/skills/change/SKILL.md", skillText("change", "allowed-tools: "+strings.Replace(allowed, "Read", "Glob", 1)+"\n", "Change."))
		b.opts.Skills.Workspace = true
		model := &attentive{Model: b.opts.Profiles[0].Model}
		b.opts.Profiles = []loop.Profile{{Model: model}}
		_, records := b.run(t.Context())
		loaded := 0
		for _, c := range of[record.ToolCompleted](t, records) {
			if c.Name == skill.ToolName {
				loaded++
			}
		}
		if names := offered(model.requests[1]); loaded != loads || (names["read_file"] && names["glob"]) != (loads == 2) || names["write_file"] || b.exists("after") {
			t.Errorf("allowed-tools %s: %d skills are loaded, and %v offered", allowed, loaded, names)
		}
	}
}

// TestResumedSessionKeepsItsSkills: a loaded skill still restricts the resumed session, even if the skill
// is gone.
func TestResumedSessionKeepsItsSkills(t *testing.T) {
	b := newBench(t, `
  - calls: [{tool: load_skill, input: {name: look}}]
  - text: Loaded.
`)
	b.file(".agents/skills/look/SKILL.md", skillText("look", "allowed-tools: Read\n", "Look only."))
	b.opts.Skills.Workspace = true
	b.run(t.Context())
	if err := os.RemoveAll(filepath.Join(b.dir, ".agents")); err != nil {
		t.Fatal(err)
	}
	c := b.reopen(`
  - calls: [{tool: write_file, input: {path: after, content: x}}]
  - text: Done.
`)
	c.opts.Task = "go on"
	model := &attentive{Model: c.opts.Profiles[0].Model}
	c.opts.Profiles = []loop.Profile{{Model: model}}
	c.run(t.Context())
	if names := offered(model.requests[0]); names["write_file"] || !names["read_file"] || c.exists("after") {
		t.Errorf("the resumed session offers %v, and wrote: %v", names, c.exists("after"))
	}
}

// TestOperatorsSkills: the operator's skill and a trusted, unchanged one of the workspace are named in
// the system prompt. A workspace's skill can't take over a name. load_skill reads files of the
// operator's skill, and none outside it.
func TestOperatorsSkills(t *testing.T) {
	b := newBench(t, `
  - calls: [{tool: load_skill, input: {name: deploy, file: notes.md}}]
  - calls: [{tool: load_skill, input: {name: deploy}}]
  - calls: [{tool: load_skill, input: {name: deploy, file: notes.md}}]
  - calls: [{tool: load_skill, input: {name: deploy, file: ../secret}}]
  - calls: [{tool: load_skill, input: {name: deploy, file: link}}]
  - text: Done.
`)
	own := t.TempDir()
	for name, text := range map[string]string{"skills/deploy/SKILL.md": skillText("deploy", "", "Deploy so."), "skills/deploy/notes.md": "The notes.", "skills/secret": "SECRET"} {
		path := filepath.Join(own, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../secret", filepath.Join(own, "skills/deploy/link")); err != nil {
		t.Fatal(err)
	}
	trusted := skillText("mend", "", "Mend so.")
	b.file(".claude/skills/mend/SKILL.md", trusted)
	b.file(".agents/skills/mend/SKILL.md", skillText("mend", "", order))
	b.file(".agents/skills/deploy/SKILL.md", skillText("deploy", "", order))
	b.opts.Skills = SkillOptions{Workspace: true, Dirs: []skill.Dir{{Path: filepath.Join(own, "skills"), Shown: "~/skills"}}}
	b.opts.TrustedInstructions = []approval.TrustedFile{trustedFile(".claude/skills/mend/SKILL.md", trusted)}
	model := &attentive{Model: b.opts.Profiles[0].Model}
	b.opts.Profiles = []loop.Profile{{Model: model}}
	_, records := b.run(t.Context())
	for _, want := range []string{"- deploy: Describes deploy.", "- mend: Describes mend."} {
		if !strings.Contains(messageText(model.requests[0].Messages[0]), want) {
			t.Errorf("the system prompt lacks %q", want)
		}
	}
	var all strings.Builder
	last := model.requests[len(model.requests)-1]
	for _, m := range last.Messages {
		all.WriteString(messageText(m))
	}
	if text := all.String(); !strings.Contains(text, "Deploy so.") || !strings.Contains(text, "The notes.") || strings.Contains(text, "SECRET") || strings.Contains(text, order) {
		t.Errorf("the model got %q", text)
	}
	var ignored []string
	for _, i := range of[record.SessionCreated](t, records)[0].Ignored {
		ignored = append(ignored, i.Name)
	}
	if diff := cmp.Diff([]string{".agents/skills/deploy/SKILL.md", ".agents/skills/mend/SKILL.md"}, ignored); diff != "" {
		t.Errorf("ignored (-want +got):\n%s", diff)
	}
	if failed := of[record.ToolFailed](t, records); len(failed) != 3 {
		t.Errorf("failed calls: %+v", failed)
	}
}

// TestForksKeepTheirSkills: what the parent loaded restricts a fork, and what a fork
// loads restricts neither the parent nor the other fork.
func TestForksKeepTheirSkills(t *testing.T) {
	b := newBench(t, `
  - calls: [{tool: load_skill, input: {name: look}}]
  - text: Loaded.
  - calls: [{tool: write_file, input: {path: parent, content: x}}]
  - text: Done.
`).overlaid()
	b.file(".agents/skills/look/SKILL.md", skillText("look", "allowed-tools: Read Skill\n", "Look only."))
	b.file(".agents/skills/change/SKILL.md", skillText("change", "allowed-tools: Write\n", "Change."))
	b.opts.Skills.Workspace = true
	parent := &attentive{Model: b.opts.Profiles[0].Model}
	b.opts.Profiles = []loop.Profile{{Model: parent}}
	var models []*attentive
	b.opts.OnFork = func(number int, o *Options) {
		turns := "  - calls: [{tool: write_file, input: {path: own, content: x}}]\n  - text: Done.\n"
		if number == 0 {
			turns = "  - calls: [{tool: load_skill, input: {name: change}}]\n" + turns
		}
		m := &attentive{Model: player(t, turns)}
		models = append(models, m)
		o.Profiles = []loop.Profile{{Model: m}}
	}
	s := b.opened()
	startTurn(t, s, "load")
	forks, err := s.Fork(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range forks {
		startTurn(t, f, "go on")
		f.Close()
	}
	startTurn(t, s, "go on")
	s.Close()
	for name, got := range map[string]bool{
		"the parent": offered(parent.requests[len(parent.requests)-1])["write_file"], "the fork that loads nothing": offered(models[1].requests[1])["write_file"],
		"the fork, before it loads": offered(models[0].requests[0])["write_file"],
	} {
		if got {
			t.Errorf("%s is offered write_file", name)
		}
	}
	if names := offered(models[0].requests[1]); !names["write_file"] || !names["read_file"] {
		t.Errorf("the control, the fork that loads another skill, is offered %v", names)
	}
}
