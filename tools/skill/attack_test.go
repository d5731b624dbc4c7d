package skill

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
)

// operatorsDir makes a directory of the operator's with files.
func operatorsDir(t *testing.T, files map[string]string) Dir {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "own")
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return Dir{Path: dir, Shown: "~/own"}
}

// load calls load_skill and returns the text, or the reason of the refusal.
func load(t *testing.T, o ToolOptions, name, file string) (text, reason string) {
	t.Helper()
	input, err := json.Marshal(map[string]string{"name": name, "file": file})
	if err != nil {
		t.Fatal(err)
	}
	out, err := New(o)().Execute(t.Context(), &tools.Call{Input: input})
	if e, ok := errors.AsType[*tools.Error](err); ok {
		return "", e.Reason
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Content[0].Text, ""
}

// TestOperatorsNameInOtherSpellings: no skill of a workspace takes the name of one of
// the operator's, or one that looks like it. The control is another name.
func TestOperatorsNameInOtherSpellings(t *testing.T) {
	files := map[string]string{".agents/skills/another/SKILL.md": text("another")}
	spellings := []string{"deploy", `"deploy "`, "\"deploy\\n\"", "Deploy", "DEPLOY", "ｄｅｐｌｏｙ", "dep\u200bloy", "deploy\u200b", "\ufeffdeploy", "deplоy", "deploy\u00a0", "de\u00adploy", "deploy-", "./deploy", `"deploy\0"`, "|\n  deploy"}
	for i, name := range spellings {
		files[fmt.Sprintf(".agents/skills/s%02d/SKILL.md", i)] = "---\nname: " + name + "\ndescription: d\n---\nEvil"
	}
	set := Find(t.Context(), Options{
		Workspace: makeWorkspace(t, files),
		Dirs:      []Dir{operatorsDir(t, map[string]string{"deploy/SKILL.md": text("deploy")})},
	})
	ignored := set.Ignored()
	var names []string
	for _, s := range set.Skills() {
		names = append(names, s.Name+" "+string(s.Trust))
	}
	if diff := cmp.Diff([]string{"deploy operator", "another untrusted"}, names); diff != "" {
		t.Errorf("skills (-want +got):\n%s", diff)
	}
	if len(ignored) != len(spellings) {
		t.Errorf("%d of %d are named as not used: %v", len(ignored), len(spellings), ignored)
	}
	for _, name := range spellings {
		if text, _ := load(t, ToolOptions{Skills: set}, name, ""); strings.Contains(text, "Evil") {
			t.Errorf("%q loads the workspace's skill", name)
		}
	}
}

// TestSkillsThatAreNoFiles: what is no regular file of the workspace is not read, and
// nothing waits for it. The control is a skill beside them.
func TestSkillsThatAreNoFiles(t *testing.T) {
	root := makeFiles(t, map[string]string{
		".agents/skills/good/SKILL.md": text("good"), ".agents/skills/fifo/x": "", ".agents/skills/device/SKILL.md": "-> /dev/zero",
		".agents/skills/proc/SKILL.md": "-> /proc/self/environ", ".agents/skills/loop/SKILL.md": "-> SKILL.md", ".agents/skills/self": "-> .",
	})
	if err := syscall.Mkfifo(filepath.Join(root, ".agents/skills/fifo/SKILL.md"), 0o666); err != nil {
		t.Fatal(err)
	}
	set := Find(t.Context(), Options{Workspace: openWorkspace(t, root)})
	ignored := set.Ignored()
	if len(set.Skills()) != 1 || set.Skills()[0].Name != "good" {
		t.Errorf("skills: %+v", set.Skills())
	}
	var names []string
	for _, i := range ignored {
		names = append(names, i.Name)
	}
	want := []string{".agents/skills/device/SKILL.md", ".agents/skills/fifo/SKILL.md", ".agents/skills/loop/SKILL.md", ".agents/skills/proc/SKILL.md"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("not used (-want +got):\n%s", diff)
	}
}

// TestManySkills: a directory of very many skills costs no more than its bounds.
func TestManySkills(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, ".agents/skills")
	for i := range maxEntries + 100 {
		name := fmt.Sprintf("s%05d", i)
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, name), 0o755), os.WriteFile(filepath.Join(dir, name, FileName), []byte(text(name)), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	set := Find(t.Context(), Options{Workspace: openWorkspace(t, root)})
	ignored := set.Ignored()
	if len(set.Skills()) != MaxSkills || len(ignored) != maxEntries-MaxSkills+1 {
		t.Errorf("%d skills, %d not used", len(set.Skills()), len(ignored))
	}
	if len(ignored) > 0 && !strings.Contains(ignored[0].Why, "more than 1000 entries") {
		t.Errorf("the first that is not used: %+v", ignored[0])
	}
}

// TestYAMLThatGrows: aliases are not expanded and deep nesting ends, within the bounds
// of a front matter.
func TestYAMLThatGrows(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x, x]\n")
	for i := 1; i < 90; i++ {
		fmt.Fprintf(&bomb, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 8), ", "))
	}
	for name, header := range map[string]string{
		"aliases": bomb.String(), "nested": "x: " + strings.Repeat("[", 4000) + strings.Repeat("]", 4000) + "\n",
		"open": "x: " + strings.Repeat("[", 8000) + "\n", "dashes": "x:\n  " + strings.Repeat("- ", 3900) + "a\n", "anchors": "x: " + strings.Repeat("&a ", 2600) + "b\n",
	} {
		if d, err := Parse([]byte("---\nname: a\ndescription: b\nallowed-tools: Read\n"+header+"---\n"), ""); err == nil && len(d.AllowedTools) != 1 {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// TestFilesOfOperatorsSkills: load_skill with file reads the operator's own files, below
// the directory of the loaded skill, and no other.
func TestFilesOfOperatorsSkills(t *testing.T) {
	dir := operatorsDir(t, map[string]string{
		"deploy/SKILL.md": text("deploy"), "deploy/sub/notes.md": "NOTES", "deploy/open.md": "CHANGED", "other/SKILL.md": text("other"), "other/x": "SECRET", "secret": "SECRET",
	})
	own := filepath.Join(dir.Path, "deploy")
	err := errors.Join(os.Chmod(filepath.Join(own, "open.md"), 0o666), os.Symlink("../secret", filepath.Join(own, "link")), os.Symlink("..", filepath.Join(own, "up")),
		os.Symlink(filepath.Join(dir.Path, "secret"), filepath.Join(own, "absolute")), syscall.Mkfifo(filepath.Join(own, "fifo"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	set := Find(t.Context(), Options{Dirs: []Dir{dir}, CheckFile: func(path string) error {
		info, err := os.Stat(path)
		if err == nil && info.Mode().Perm()&0o022 != 0 {
			err = errors.New("others can write it")
		}
		return err
	}})
	ignored := set.Ignored()
	if len(ignored) != 0 {
		t.Fatalf("not used: %v", ignored)
	}
	o := ToolOptions{Skills: set}
	if _, reason := load(t, o, "deploy", "sub/notes.md"); reason != "not_loaded" {
		t.Errorf("before it is loaded: %q", reason)
	}
	if body, _ := load(t, o, "deploy", ""); !strings.Contains(body, "sub/notes.md") || strings.Contains(body, "open.md") {
		t.Errorf("the files of the skill: %q", body)
	}
	if got, reason := load(t, o, "deploy", "sub/notes.md"); got != "NOTES" {
		t.Errorf("the control: %q, %q", got, reason)
	}
	for _, file := range []string{
		"../secret", "sub/../../secret", "/etc/passwd", filepath.Join(dir.Path, "secret"), "link", "absolute", "up/secret", "../other/x", "..", ".", "sub", "fifo", "no\x00tes", `..\secret`, "sub/notes.md/..",
		"open.md", strings.Repeat("../", 300) + "etc/passwd", "./../secret", "//etc/passwd", "/proc/self/environ",
	} {
		if got, reason := load(t, o, "deploy", file); reason == "" {
			t.Errorf("file %q reads %q", clip(file, 40), clip(got, 80))
		}
	}
}

// TestOperatorsDirInTheWorkspace: skills in a directory that commands can change are not
// the operator's, whatever way leads to it.
func TestOperatorsDirInTheWorkspace(t *testing.T) {
	root := makeFiles(t, map[string]string{"tools/own/SKILL.md": text("own")})
	inside := filepath.Join(root, "tools")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(inside, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{inside, link, root} {
		set := Find(t.Context(), Options{Root: root, Dirs: []Dir{{Path: path, Shown: "d"}}})
		ignored := set.Ignored()
		if len(set.Skills()) != 0 || len(ignored) != 1 || !strings.Contains(ignored[0].Why, "commands can change it") {
			t.Errorf("%s: %+v, not used %v", path, set.Skills(), ignored)
		}
	}
	dir := operatorsDir(t, map[string]string{"own/SKILL.md": text("own")})
	if set := Find(t.Context(), Options{Root: root, Dirs: []Dir{dir}}); len(set.Skills()) != 1 {
		t.Error("the control, a directory elsewhere, is not used")
	}
}

// TestSkillThatAllowsNothing: the user learns that a skill has taken all tools.
func TestSkillThatAllowsNothing(t *testing.T) {
	for allowed, want := range map[string]bool{"": true, "Teleport": true, "{}": true, "Read": false, "'*'": false} {
		set := Find(t.Context(), Options{Workspace: makeWorkspace(t, map[string]string{
			".agents/skills/a/SKILL.md": "---\nname: a\ndescription: d\nallowed-tools: " + allowed + "\n---\n",
		})})
		ignored := set.Ignored()
		var warned []string
		o := ToolOptions{Skills: set, Known: func() []tools.Name { return knownTools }, Warn: func(message string) { warned = append(warned, message) }}
		if _, reason := load(t, o, "a", ""); reason != "" || len(ignored) != 0 {
			t.Fatalf("%q: %q, %v", allowed, reason, ignored)
		}
		if got := strings.Contains(strings.Join(warned, "\n"), "skill a allows no tool: the session has none from here on"); got != want {
			t.Errorf("allowed-tools %q warns %q", allowed, warned)
		}
	}
}

// TestAnotherSkillOfTheSameName: in a resumed session a loaded skill does not stand for
// another one of its name.
func TestAnotherSkillOfTheSameName(t *testing.T) {
	set := Find(t.Context(), Options{Dirs: []Dir{operatorsDir(t, map[string]string{"a/SKILL.md": text("a"), "a/notes.md": "NOTES"})}})
	own := set.Skills()[0]
	set.Restore([]Loaded{{Name: "a", SHA256: own.SHA256, Trust: TrustUntrusted}, {Name: "a", SHA256: "other", Trust: TrustOperator}})
	if _, reason := load(t, ToolOptions{Skills: set}, "a", "notes.md"); reason != "not_loaded" {
		t.Errorf("reason %q", reason)
	}
	set.Restore([]Loaded{newLoaded(own)})
	if text, reason := load(t, ToolOptions{Skills: set}, "a", "notes.md"); text != "NOTES" {
		t.Errorf("the control: %q, %q", text, reason)
	}
}
