package skill

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

var knownTools = []tools.Name{"fetch", "load_skill", "patch_file", "read_file", "shell", "shell_kill", "shell_output", "write_file", "serena/find_symbol"}

// TestAllowedToolsAreAUnion: no declaration restricts nothing, any declaration leaves the
// union, and an empty one leaves nothing.
func TestAllowedToolsAreAUnion(t *testing.T) {
	silent := Skill{Document: Document{Name: "silent"}}
	declares := func(name string, allowed ...string) Skill {
		return Skill{Document: Document{Name: name, Declares: true, AllowedTools: append([]string{}, allowed...)}}
	}
	for _, test := range []struct {
		name   string
		loaded []Skill
		want   string
	}{
		{"nothing is loaded", nil, "fetch load_skill patch_file read_file shell shell_kill shell_output write_file serena/find_symbol"},
		{"no declaration", []Skill{silent}, "fetch load_skill patch_file read_file shell shell_kill shell_output write_file serena/find_symbol"},
		{"one declaration", []Skill{silent, declares("a", "Edit", "Write")}, "patch_file write_file"},
		{"read_file leaves the files of skills", []Skill{declares("a", "Read")}, "load_skill read_file"},
		{"the union", []Skill{declares("a", "Read"), declares("b", "Bash(git:*)")}, "load_skill read_file shell shell_kill shell_output"},
		{"empty", []Skill{declares("a")}, ""},
		{"empty with another", []Skill{declares("a"), declares("b", "WebFetch")}, "fetch"},
		{"unknown names", []Skill{declares("a", "Teleport", "shell2", "")}, ""},
		{"all", []Skill{declares("a", "*")}, "fetch load_skill patch_file read_file shell shell_kill shell_output write_file serena/find_symbol"},
		{"a server's tool", []Skill{declares("a", "mcp__serena__find_symbol")}, "serena/find_symbol"},
		{"a server", []Skill{declares("a", "mcp__serena")}, "serena/find_symbol"},
		{"another server", []Skill{declares("a", "mcp__other__find_symbol", "find_symbol")}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			var s Set
			for _, one := range test.loaded {
				s.loaded = append(s.loaded, newLoaded(one))
			}
			var left []string
			for _, name := range knownTools {
				if s.Allows(name) {
					left = append(left, string(name))
				}
				if reason, _ := s.Refusal(name); (reason == "") != s.Allows(name) {
					t.Errorf("refusal of %s: %q", name, reason)
				}
			}
			if got := strings.Join(left, " "); got != test.want {
				t.Errorf("left: %s, want %s", got, test.want)
			}
		})
	}
}

func TestResolve(t *testing.T) {
	names, unknown, patterns := Resolve([]string{"Bash(git:*)", "Read", "WebSearch", "Bash(*)"}, knownTools)
	if diff := cmp.Diff([]tools.Name{"read_file", "shell", "shell_kill", "shell_output"}, names); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"WebSearch", "Bash(git:*)"}, append(unknown, patterns...)); diff != "" {
		t.Error(diff)
	}
}

// makeWorkspace makes a workspace of files and symlinks ("-> target").
func makeWorkspace(t *testing.T, files map[string]string) *workspace.Reader {
	t.Helper()
	return openWorkspace(t, makeFiles(t, files))
}

// makeFiles is makeWorkspace, and returns the directory.
func makeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func openWorkspace(t *testing.T, root string) *workspace.Reader {
	t.Helper()
	dir, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	r, err := workspace.NewReader(dir, workspace.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func text(name string) string { return "---\nname: " + name + "\ndescription: d\n---\nBody of " + name }

// TestFindNamesWhatItLeavesOut: each bad skill has a reason, and the good ones are found
// beside it.
func TestFindNamesWhatItLeavesOut(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.MkdirAll(outside, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(outside, FileName), []byte(text("outside")), 0o644); err != nil {
		t.Fatal(err)
	}
	r := makeWorkspace(t, map[string]string{
		".agents/skills/good/SKILL.md":     text("good"),
		".agents/skills/other/SKILL.md":    text("renamed"),
		".agents/skills/bad/SKILL.md":      "---\nname: [\n---\n",
		".agents/skills/big/SKILL.md":      text("big") + strings.Repeat("x", maxFileBytes),
		".agents/skills/escape":            "-> " + outside,
		".agents/skills/up/SKILL.md":       "-> ../../../../etc/passwd",
		".agents/skills/empty/README.md":   "no skill",
		".agents/skills/README.md":         "no skill",
		".agents/skills/dir/SKILL.md/file": "x",
		".claude/skills/good":              "-> ../../.agents/skills/good",
		".claude/skills/also/SKILL.md":     text("good") + " changed",
	})
	set := Find(t.Context(), Options{Workspace: r})
	ignored := set.Ignored()
	var names, why []string
	for _, s := range set.Skills() {
		names = append(names, fmt.Sprint(s.Name, " ", s.Path, " ", s.Warnings))
	}
	for _, i := range ignored {
		why = append(why, i.Name+": "+i.Why)
	}
	if diff := cmp.Diff([]string{"good .agents/skills/good/SKILL.md []", `renamed .agents/skills/other/SKILL.md [its name is not that of its directory, "other"]`}, names); diff != "" {
		t.Errorf("skills (-want +got):\n%s", diff)
	}
	if len(why) != 6 {
		t.Errorf("ignored: %q", why)
	}
	for i, want := range []string{
		".agents/skills/bad/SKILL.md: line ", ".agents/skills/big/SKILL.md: it has more than ", ".agents/skills/dir/SKILL.md: ",
		".agents/skills/escape/SKILL.md: it leads outside", ".agents/skills/up/SKILL.md: it leads outside", ".claude/skills/also/SKILL.md: .agents/skills/good/SKILL.md has a skill of the same name",
	} {
		if i < len(why) && !strings.HasPrefix(why[i], want) {
			t.Errorf("ignored %q, want %q", why[i], want)
		}
	}
}

func TestFindIsBounded(t *testing.T) {
	files := map[string]string{}
	for i := range MaxSkills + 2 {
		name := fmt.Sprintf("s%03d", i)
		files[".agents/skills/"+name+"/SKILL.md"] = text(name)
	}
	set := Find(t.Context(), Options{Workspace: makeWorkspace(t, files)})
	ignored := set.Ignored()
	if len(set.Skills()) != MaxSkills || len(ignored) != 2 || !strings.Contains(ignored[0].Why, "more than 100 skills") {
		t.Errorf("%d skills, ignored %v", len(set.Skills()), ignored)
	}
	files = map[string]string{}
	for i := range 40 {
		name := fmt.Sprintf("s%03d", i)
		files[".agents/skills/"+name+"/SKILL.md"] = "---\nname: " + name + "\ndescription: " + strings.Repeat("d", MaxDescription) + "\n---\n"
	}
	set = Find(t.Context(), Options{Workspace: makeWorkspace(t, files)})
	ignored = set.Ignored()
	if n := len(set.List(false)); n > MaxListBytes || len(set.Skills()) == 0 || len(ignored) != 40-len(set.Skills()) {
		t.Errorf("a list of %d bytes, %d skills, %d ignored", n, len(set.Skills()), len(ignored))
	}
}

// TestOperatorsDirIsChecked: a file that others could have written does not count.
func TestOperatorsDirIsChecked(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "own"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "own", FileName), []byte(text("own")), 0o644); err != nil {
		t.Fatal(err)
	}
	o := Options{Dirs: []Dir{{Path: dir, Shown: "~/s"}, {Path: filepath.Join(dir, "missing")}}}
	set := Find(context.Background(), o)
	ignored := set.Ignored()
	if len(set.Skills()) != 1 || set.Skills()[0].Trust != TrustOperator || len(ignored) != 0 {
		t.Fatalf("%+v, ignored %v", set.Skills(), ignored)
	}
	o.CheckFile = func(path string) error { return fmt.Errorf("others can write %s", filepath.Base(path)) }
	set = Find(context.Background(), o)
	ignored = set.Ignored()
	if len(set.Skills()) != 0 || len(ignored) != 1 {
		t.Errorf("%+v, ignored %v", set.Skills(), ignored)
	}
}
