package dispatch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Only a scope checker sees where a symlink leads. An escape is refused; other
// errors are left to the tool.
func TestScopeChecker(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/etc", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	scope := func(p string) error {
		_, err := root.Stat(p)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return &workspace.Error{Kind: workspace.KindNotFound, Path: p, Detail: "no such file", Err: err}
		case err != nil:
			return &workspace.Error{Kind: workspace.KindEscape, Path: p, Detail: "leads outside the workspace", Err: err}
		}
		return nil
	}
	rec := &recorder{}
	read := fakeTool{def: testDefinition("read_file", tools.ClassRead), execute: func(_ context.Context, c *tools.Call) (tools.Output, error) {
		text, err := os.ReadFile(filepath.Join(dir, testPaths(c.Input)[0])) // naive on purpose
		return textOutput(string(text)), err
	}}
	checked := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Scope: scope}, read)
	r := roundOK(t, checked, call("a", "read_file", `{"path":"link/passwd"}`))[0]
	wantText(t, r, true, `"link/passwd": leads outside the workspace`)
	if r := roundOK(t, checked, call("b", "read_file", `{"path":"missing"}`))[0]; r.Class != tools.ErrorExecution {
		t.Errorf("a missing file is refused as %q before the tool can say so", r.Class)
	}
	wantEvents(t, rec, "b", "called read", "failed execution_error")
	broken := newDispatcher(t, rec, Options{Policy: preset(t, "default"), Scope: func(string) error { return errors.New("secret detail") }}, read)
	r = roundOK(t, broken, call("c", "read_file", `{"path":"x"}`))[0]
	if r.Class != tools.ErrorPermissionDenied || strings.Contains(blocksText(r.Content), "secret") {
		t.Errorf("a scope that can't be known gives %q, %q", r.Class, blocksText(r.Content))
	}
	// Positive control: checked only by name, the link leads out, and the marker is
	// read.
	naive := newDispatcher(t, rec, Options{Policy: preset(t, "default")}, read)
	if r := roundOK(t, naive, call("d", "read_file", `{"path":"link/passwd"}`))[0]; !strings.Contains(blocksText(r.Content), "root:") {
		t.Fatalf("the control does not reach the file outside, so this test shows nothing: %q", blocksText(r.Content))
	}
}
