package worktest

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// touched are the entries of a furnished workspace that Ownership changes.
var touched = []string{".", "set", "third", "new", "directory", "directory/in", "set/in", "set/sub", "by", "by/tool", ".git"}

// Ownership makes commands and a WRITE tool make files in a furnished workspace
// in bind mode, and checks who owns them on the host, and that nothing else
// changed: no owner, no mode, no time of change.
func Ownership(t *testing.T, c Cell) {
	t.Helper()
	before := listRest(t, c.Dir)
	script := "set -e; umask 022; cd /workspace; echo x >new; mkdir directory; echo x >directory/in; chmod 640 new"
	if !c.NoSetgid {
		script += "; echo g >set/in; mkdir set/sub"
	}
	if _, exit := Shell(t, c.Sandbox, script); !exit.Status.Success() {
		t.Fatalf("%v", exit.Status)
	}
	op := workspace.Op{Kind: workspace.OpWrite, Path: "by/tool", Content: []byte("tool")}
	if _, err := c.Sandbox.Apply(t.Context(), op); err != nil {
		t.Error(err)
	}
	set := c.GID
	if c.Thirds {
		set = ThirdGID
		Shell(t, c.Sandbox, "cd /workspace; echo t2 >>third; cat hidden; chmod 777 hidden third; chown 0:0 third; rm -f hidden/x; true")
	}
	want := map[string][2]int{
		"new": {c.UID, c.GID}, "directory": {c.UID, c.GID}, "directory/in": {c.UID, c.GID}, "by": {c.UID, c.GID}, "by/tool": {c.UID, c.GID},
	}
	if !c.NoSetgid {
		want["set/in"], want["set/sub"] = [2]int{c.UID, set}, [2]int{c.UID, set}
	}
	if c.Thirds {
		want["third"], want["hidden"], want["group"] = [2]int{ThirdUID, ThirdGID}, [2]int{ThirdUID, ThirdGID}, [2]int{c.UID, ThirdGID}
	}
	for name, ids := range want {
		Owner(t, filepath.Join(c.Dir, name), ids[0], ids[1])
	}
	if c.Thirds {
		if text, err := os.ReadFile(c.Dir + "/third"); err != nil || string(text) != "t\nt2\n" {
			t.Errorf("another's file that all may write: %q %v", text, err)
		}
	}
	var st unix.Stat_t
	if c.NoSetgid {
		if _, exit := Shell(t, c.Sandbox, "echo g >/workspace/set/in"); exit.Status.Success() {
			t.Error("a file was made in a setgid directory of another group: fix the attestation")
		}
	} else if must(t, unix.Lstat(c.Dir+"/set/sub", &st)); st.Mode&unix.S_ISGID == 0 {
		t.Errorf("a directory in a setgid directory has mode %o", st.Mode)
	}
	if diff := cmp.Diff(before, listRest(t, c.Dir)); diff != "" {
		t.Errorf("what no command changed was changed: %s", diff)
	}
}

// listRest returns the entries of a workspace that Ownership does not change.
func listRest(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := Tree(t, dir)
	maps.DeleteFunc(all, func(name, _ string) bool {
		for _, own := range touched {
			if name == own || own != "." && own != "set" && strings.HasPrefix(name, own+"/") {
				return true
			}
		}
		return false
	})
	if len(all) < 10 {
		t.Fatalf("only %d entries are left to compare", len(all))
	}
	return all
}

// Owner checks the owner of a file on the host.
func Owner(t *testing.T, path string, uid, gid int) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil || int(st.Uid) != uid || int(st.Gid) != gid {
		t.Errorf("%s belongs to %d:%d, not %d:%d: %v", path, st.Uid, st.Gid, uid, gid, err)
	}
}

// RefusedOwner checks that a backend refuses the owner of a workspace, with an
// error that contains says, and leaves the workspace alone.
func RefusedOwner(t *testing.T, b sandbox.Backend, spec sandbox.Spec, says string) {
	t.Helper()
	before := Tree(t, spec.Workspace.Path)
	s, err := b.Create(t.Context(), spec)
	if err == nil {
		must(t, s.Destroy(context.WithoutCancel(t.Context())))
	}
	if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), says) {
		t.Errorf("%s in mode %q, with new files of the caller %t: %v", spec.Workspace.Path, spec.Workspace.Mode, spec.CallerOwnsFiles, err)
	}
	if diff := cmp.Diff(before, Tree(t, spec.Workspace.Path)); diff != "" {
		t.Errorf("what was refused was changed: %s", diff)
	}
}
