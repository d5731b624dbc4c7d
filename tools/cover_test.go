package tools

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

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
	for command, want := range map[string]struct{ names, builders string }{
		"sh run.sh":                  {"run.sh", ""},
		"./run.sh a b":               {"./run.sh", ""},
		"a/b.sh; ls run.sh":          {"a/b.sh", ""},
		"python3 -u x.py --in=d":     {"x.py", ""},
		"sh <run.sh":                 {"run.sh", ""},
		". ./env.sh && source b":     {"./env.sh b", ""},
		"bash -c 'sh run.sh; ./x'":   {"sh run.sh; ./x run.sh ./x", ""},
		"bash -c ./x":                {"./x ./x", ""},
		"env A=b timeout 5 sh x.sh":  {"A=b timeout 5 sh x.sh", ""},
		"make test && npm run build": {"test", "make npm"},
		"timeout 9 go test ./...":    {"9 go test ./...", "go"},
		"echo $(sh inner.sh)":        {"inner.sh", ""},
		"tail -f server.log":         {"", ""},
		"git status":                 {"", ""},
		"echo \\\r\nsh run.sh":       {"run.sh", ""},
		"(":                          {"", ""},
	} {
		names, builders := commandScripts(command, 0)
		if got := strings.Join(names, " "); got != want.names {
			t.Errorf("%q runs %q, want %q", command, got, want.names)
		}
		if got := strings.Join(builders, " "); got != want.builders {
			t.Errorf("%q builds with %q, want %q", command, got, want.builders)
		}
	}
}

// TestApprovalCoversScriptsAndDirectory: a change to a file or directory that the
// approval covers changes the state. The control changes files that it doesn't cover.
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
	tool := fakeTool{def: testDefinition("shell", ClassExecute), project: func(ctx context.Context, _ *Call) (Projection, error) { return shown, nil }}
	var asked Confirmation
	d := newDispatcher(t, &recorder{}, Options{Policy: preset(t, "strict"), Broker: brokerFunc(func(_ context.Context, c Confirmation) (Answer, error) {
		asked = c
		return Answer{DecisionDeny, ScopeOnce}, nil
	})}, tool)
	roundOK(t, d, call("a", "shell", `{}`))
	if !slices.Equal(asked.Covers, []string{"small.sh"}) || !slices.Contains(asked.Notices, "this answer does not cover the content of big.sh") {
		t.Errorf("the question covers %q and says %q", asked.Covers, asked.Notices)
	}
}
