package policy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

func openView(t *testing.T, dir string) *workspace.Reader {
	t.Helper()
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	view, err := workspace.NewReader(root, workspace.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return view
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestCommandScripts(t *testing.T) {
	for command, want := range map[string]struct{ names, gaps string }{
		"sh run.sh":                         {"run.sh", ""},
		"./run.sh a b":                      {"./run.sh", ""},
		"a/b.sh; ls run.sh":                 {"a/b.sh", ""},
		"python3 -u x.py --in=d":            {"x.py", "the modules that python3 loads"},
		"sh <run.sh":                        {"run.sh", ""},
		". ./env.sh && source b":            {"./env.sh b", ""},
		"bash -c 'sh run.sh; ./x'":          {"sh run.sh; ./x run.sh ./x", ""},
		"bash -c ./x":                       {"./x ./x", ""},
		"env A=b timeout 5 sh x.sh":         {"A=b timeout 5 sh x.sh", ""},
		"make test && npm run build":        {"test", "the files that make runs, the files that npm runs"},
		"timeout 9 go test ./...":           {"9 go test ./...", "the files that go runs"},
		"echo $(sh inner.sh)":               {"inner.sh", ""},
		"tail -f server.log":                {"", ""},
		"git status":                        {"", ""},
		"echo \\\r\nsh run.sh":              {"run.sh", ""},
		"(":                                 {"", "the scripts that it runs: it can't be parsed whole"},
		"sh run.sh; (":                      {"run.sh", "the scripts that it runs: it can't be parsed whole"},
		"sh ./x":                            {"./x", ""},
		"sh ''":                             {"", ""},
		"ssh h 'sh run.sh'":                 {"h sh run.sh run.sh", ""},
		"timeout 5 'sh run.sh'":             {"5 sh run.sh", ""},
		"python3 a $(sh b)":                 {"a $(sh b) b", "the modules that python3 loads"},
		"man npm":                           {"npm", ""},
		"ls <run.sh":                        {"", ""},
		"sh >run.sh":                        {"", ""},
		"<run.sh":                           {"", ""},
		"(ls) <run.sh":                      {"", ""},
		"sh $F":                             {"$F", "what $F stands for"},
		`"$DIR"/run.sh`:                     {"$DIR/run.sh", `what "$DIR"/run.sh stands for`},
		"$TOOL x":                           {"", "what $TOOL stands for"},
		"sh ./*.sh":                         {"./*.sh", "what ./*.sh stands for"},
		"~/run.sh":                          {"~/run.sh", "what ~/run.sh stands for"},
		"sh <$F":                            {"$F", "what $F stands for"},
		"sh run.sh $X":                      {"run.sh $X", ""},
		"cat run.sh | sh":                   {"", "what sh reads from a pipe"},
		"cat x | sudo bash -s y":            {"bash y", "what bash reads from a pipe"},
		"cat x | python3 -":                 {"", "the modules that python3 loads, what python3 reads from a pipe"},
		"cat x | sh run.sh":                 {"run.sh", ""},
		"cat run.sh |& sh":                  {"", "what sh reads from a pipe"},
		"cat x | bash -x":                   {"", "what bash reads from a pipe"},
		"cat x | sh -c ./x":                 {"./x ./x", ""},
		"cat x | perl -e 1":                 {"1", "the modules that perl loads"},
		"cat x | python3 -m tool":           {"tool", "the modules that python3 loads"},
		"cat x | A=b":                       {"", ""},
		"ls | xargs ./x":                    {"./x", "what xargs reads from a pipe"},
		"cat l | while read f; do $f; done": {"", "what $f stands for"},
		"eval \"$(cat run.sh)\"":            {"$(cat run.sh)", "what \"$(cat run.sh)\" stands for, what $(cat run.sh) stands for"},
		"python3 -c 'import tool'":          {"import tool", "the modules that python3 loads"},
		"PATH=.:$PATH tool":                 {"", "what PATH leads to"},
		"A=b tool; export $X":               {"", ""},
		`sh "run.sh"`:                       {"run.sh", ""},
		`sh "a"~`:                           {"a~", ""},
		"sed -i s/a/$b/ f; cat *.go":        {"s/a/$b/ f", ""},
	} {
		var s scriptSearch
		s.searchScript(command, 0)
		if got := strings.Join(s.names, " "); got != want.names {
			t.Errorf("%q runs %q, want %q", command, got, want.names)
		}
		slices.Sort(s.gaps)
		if got := strings.Join(s.gaps, ", "); got != want.gaps || s.moved {
			t.Errorf("%q does not cover %q, want %q; moved %t", command, got, want.gaps, s.moved)
		}
	}
	for command, want := range map[string]bool{"cd x && sh run.sh": true, "env -C x sh run.sh": true, "(pushd x; ./run.sh)": true, "sh run.sh": false} {
		var s scriptSearch
		if s.searchScript(command, 0); s.moved != want {
			t.Errorf("%q: moved %t, want %t", command, s.moved, want)
		}
	}
}

// TestCommandScriptsAreBounded: an impossible file name, a script that is too long
// and one nested too deeply name nothing.
func TestCommandScriptsAreBounded(t *testing.T) {
	for _, tt := range []struct {
		script string
		want   bool
	}{
		{"sh " + strings.Repeat("x", workspace.MaxPathBytes), true},
		{"sh " + strings.Repeat("x", workspace.MaxPathBytes+1), false},
		{"sh run.sh #" + strings.Repeat("x", maxDangerousBytes-len("sh run.sh #")), true},
		{"sh run.sh #" + strings.Repeat("x", maxDangerousBytes-len("sh run.sh #")+1), false},
	} {
		var s scriptSearch
		s.searchScript(tt.script, 0)
		if tooLong := len(tt.script) > maxDangerousBytes; len(s.names) > 0 != tt.want || len(s.gaps) > 0 != tooLong {
			t.Errorf("%.20s, of %d bytes, names %d files, with %q", tt.script, len(tt.script), len(s.names), s.gaps)
		}
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "run.sh"), "ls")
	script := "sh run.sh"
	for depth := range 7 {
		shown, err := ProjectCommands(t.Context(), openView(t, dir), ".", []string{script})
		if covers := slices.Contains(shown.Covers, "run.sh"); err != nil || covers != (depth <= 4) || covers == slices.Contains(shown.NotCovered, tooDeep) {
			t.Errorf("at depth %d it is covered: %t, %v", depth, covers, err)
		}
		script = "sh -c " + quoteScript(script)
	}
}

type failingView struct{ workspace.View }

func (failingView) ReadFile(context.Context, string, int64, int64) (workspace.File, error) {
	return workspace.File{}, errors.New("sandbox lost")
}

// TestWhatCanNotBeIdentifiedIsNotCovered: without the content of a script, or the
// directory, there is no state to bind an approval to.
func TestWhatCanNotBeIdentifiedIsNotCovered(t *testing.T) {
	view := openView(t, t.TempDir())
	if shown, err := ProjectCommands(t.Context(), failingView{view}, ".", []string{"sh run.sh"}); err == nil || err.Error() != "identify script: sandbox lost" || shown.State != "" {
		t.Errorf("a file that can't be read: %+v, %v", shown, err)
	}
	if shown, err := ProjectCommands(t.Context(), view, "..", []string{"ls"}); err == nil || shown.State != "" {
		t.Errorf("a directory outside: %+v, %v", shown, err)
	}
	if shown, err := ProjectCommands(t.Context(), view, ".", []string{"ls"}); err != nil || shown.State != "" {
		t.Errorf("a command that runs no file: %+v, %v", shown, err)
	}
}

func TestCoverIsBounded(t *testing.T) {
	scripts := func(sizes ...int) (covers, notCovered []string, state func() string) {
		t.Helper()
		dir := t.TempDir()
		var commands []string
		for i, size := range sizes {
			name := fmt.Sprintf("%02d.sh", i)
			commands = append(commands, "sh "+name, "make")
			write(t, filepath.Join(dir, name), strings.Repeat("#", size))
		}
		slices.Reverse(commands)
		project := func() tools.Projection {
			shown, err := ProjectCommands(t.Context(), openView(t, dir), ".", append(commands, "sh missing.sh", "go build", "sh 00.sh"))
			if err != nil {
				t.Fatal(err)
			}
			return shown
		}
		shown := project()
		return shown.Covers, shown.NotCovered, func() string {
			last := fmt.Sprintf("%02d.sh", len(sizes)-1)
			write(t, filepath.Join(dir, last), "changed")
			return project().State + "\n" + shown.State
		}
	}
	builders := []string{"the files that go runs", "the files that make runs"}
	for name, tt := range map[string]struct {
		sizes              []int
		covers, notCovered []string
	}{
		"empty":            {[]int{0, 1}, []string{"00.sh", "01.sh"}, nil},
		"as much as fits":  {[]int{0, maxScriptBytes - 1}, []string{"00.sh", "01.sh"}, nil},
		"one byte more":    {[]int{0, maxScriptBytes}, []string{"00.sh"}, []string{"01.sh"}},
		"two halves":       {[]int{maxScriptBytes/2 + 1, maxScriptBytes / 2}, []string{"00.sh"}, []string{"01.sh"}},
		"when all is used": {[]int{maxScriptBytes, 2}, []string{"00.sh"}, []string{"01.sh"}},
	} {
		covers, notCovered, _ := scripts(tt.sizes...)
		if !slices.Equal(covers, tt.covers) || !slices.Equal(notCovered, slices.Concat(tt.notCovered, builders)) {
			t.Errorf("%s: covers %q, not %q", name, covers, notCovered)
		}
	}
	covers, notCovered, change := scripts(make([]int, maxScripts+1)...)
	if len(covers) != maxScripts || !slices.Contains(notCovered, "32.sh") || slices.Contains(notCovered, "31.sh") {
		t.Errorf("of 33 files %d are covered, not %q", len(covers), notCovered)
	}
	if before, after, _ := strings.Cut(change(), "\n"); before != after {
		t.Error("a file that is not covered changes the state")
	}
}

// TestWorkspaceIsTheSameInAnOverlay: in a sandbox's overlay the workspace's directory has
// another inode. An answer given before the sandbox started still counts.
func TestWorkspaceIsTheSameInAnOverlay(t *testing.T) {
	state := func(content string) string {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "run.sh"), content)
		shown, err := ProjectCommands(t.Context(), openView(t, dir), ".", []string{"sh run.sh"})
		if err != nil || shown.State == "" {
			t.Fatalf("%+v, %v", shown, err)
		}
		return shown.State
	}
	if one, other := state("a"), state("a"); one != other {
		t.Error("another directory's inode changes what was shown")
	}
	if state("a") == state("b") {
		t.Error("control: a script's content doesn't")
	}
}

// TestApprovalCoversScriptsAndDirectory: changing a covered file or directory
// changes the state. The control changes other files.
func TestApprovalCoversScriptsAndDirectory(t *testing.T) {
	for name, tc := range map[string]struct {
		dir, command string
		change       func(dir string) error
		same, fails  bool
	}{
		"the script changes":           {".", "sh run.sh", func(d string) error { return os.WriteFile(d+"/run.sh", []byte("rm x"), 0o600) }, false, false},
		"it becomes a symlink":         {".", "sh run.sh", func(d string) error { return errors.Join(os.Remove(d+"/run.sh"), os.Symlink("other", d+"/run.sh")) }, false, false},
		"it is removed":                {".", "sh run.sh", func(d string) error { return os.Remove(d + "/run.sh") }, false, false},
		"one comes that was not there": {".", "sh new.sh", func(d string) error { return os.WriteFile(d+"/new.sh", []byte("rm x"), 0o600) }, false, false},
		"one in the directory changes": {"sub", "./run.sh", func(d string) error { return os.WriteFile(d+"/sub/run.sh", []byte("rm x"), 0o600) }, false, false},
		"the directory is another one": {"sub", "ls", func(d string) error {
			return errors.Join(os.Rename(d+"/sub", d+"/old"), os.Rename(d+"/twin", d+"/sub"))
		}, false, false},
		"the directory is a symlink":    {"sub", "ls", func(d string) error { return errors.Join(os.Rename(d+"/sub", d+"/old"), os.Symlink("twin", d+"/sub")) }, false, true},
		"the one above it is a symlink": {"sub/deep", "ls", func(d string) error { return errors.Join(os.Rename(d+"/sub", d+"/old"), os.Symlink("old", d+"/sub")) }, false, true},
		"the directory is gone":         {"sub", "ls", func(d string) error { return os.RemoveAll(d + "/sub") }, false, true},
		"control: another file changes": {"sub", "sh run.sh", func(d string) error { return os.WriteFile(d+"/other", []byte("y"), 0o600) }, true, false},
		"control: nothing is run":       {".", "tail -f run.sh", func(d string) error { return os.WriteFile(d+"/run.sh", []byte("y"), 0o600) }, true, false},
	} {
		dir := t.TempDir()
		for _, file := range []string{"run.sh", "other", "sub/run.sh", "sub/deep/x", "twin/run.sh"} {
			write(t, filepath.Join(dir, file), "echo "+file)
		}
		view := openView(t, dir)
		before, err := ProjectCommands(t.Context(), view, tc.dir, []string{tc.command})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := tc.change(dir); err != nil {
			t.Fatal(err)
		}
		after, err := ProjectCommands(t.Context(), view, tc.dir, []string{tc.command})
		if (err != nil) != tc.fails || !tc.same && before.State == "" || (before.State == after.State) != tc.same {
			t.Errorf("%s: the state is %q, then %q, %v", name, before.State, after.State, err)
		}
	}
}

func TestApprovalSaysWhatItDoesNotCover(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "big.sh"), strings.Repeat("#", maxScriptBytes+1))
	write(t, filepath.Join(dir, "small.sh"), "ls")
	shown, err := ProjectCommands(t.Context(), openView(t, dir), ".", []string{"sh big.sh; sh small.sh; make"})
	if err != nil || !slices.Equal(shown.Covers, []string{"small.sh"}) || !slices.Equal(shown.NotCovered, []string{"big.sh", "the files that make runs"}) {
		t.Errorf("%+v, %v", shown, err)
	}
	write(t, filepath.Join(dir, "run.sh"), "ls")
	moved, err := ProjectCommands(t.Context(), openView(t, dir), ".", []string{"cd sub && sh run.sh; sh " + dir + "/small.sh"})
	if err != nil || len(moved.Covers) > 1 || !slices.Contains(moved.NotCovered, "run.sh, which another directory may have") {
		t.Errorf("after cd: %+v, %v", moved, err)
	}
}
