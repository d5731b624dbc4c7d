package worktest

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// closed has rows of directories. A command makes a repository in the last one of
// a row. The modes keep the repository from being renamed or found.
var closed = map[string][]closedDirectory{
	"0555 parent": {{"new", 0o555}},
	"0311 parent": {{"new", 0o311}},
	"000 parent":  {{"new", 0}},
	"sticky":      {{"new", 0o555 | os.ModeSticky}},
	"chain":       {{"n", 0o555}, {"n/e", 0o555}, {"n/e/w", 0o555}, {"n/e/w/r", 0o555}},
	"dark chain":  {{"n", 0}, {"n/e", 0}, {"n/e/w", 0}},
}

type closedDirectory struct {
	path string
	mode os.FileMode
}

// plantScript makes a repository whose configuration executes $M in the last of
// the directories, and closes them.
func plantScript(dirs []closedDirectory) string {
	dir := dirs[len(dirs)-1].path
	script := []string{"mkdir -p " + dir, "git init -q " + dir, "git config -f " + dir + `/.git/config core.fsmonitor "$M"`}
	for _, f := range slices.Backward(dirs) {
		bits := f.mode.Perm()
		if f.mode&os.ModeSticky != 0 {
			bits |= 0o1000
		}
		script = append(script, fmt.Sprintf("chmod %#o %s", uint32(bits), f.path))
	}
	return strings.Join(script, "; ")
}

// enterScript enters the last of the directories, as a user would.
func enterScript(dirs []closedDirectory) string {
	var script []string
	for _, f := range dirs {
		if f.mode&0o100 == 0 {
			script = append(script, "chmod u+x "+f.path)
		}
	}
	return strings.Join(append(script, "cd "+dirs[len(dirs)-1].path+" && git status"), "; ")
}

// ClosedDirectories runs a session for each row of the table in a sandbox that
// open creates. Then, as at the end of a session, it opens the directories,
// renames the repository and closes them again by the sandbox's operations.
func ClosedDirectories(t *testing.T, uid int, open func(t *testing.T, dir string) sandbox.Sandbox) {
	needRoot(t)
	eachClosed(t, uid, func(t *testing.T, m marker, dir string, dirs []closedDirectory) {
		s := open(t, dir)
		if out, exit := gitInside(t, s, "set -e; cd /workspace\n"+m.writeScript(plantScript(dirs))); !exit.Status.Success() {
			t.Fatalf("plant: %v %s", exit.Status, out)
		}
		repo := path.Join(dirs[len(dirs)-1].path, ".git")
		rename := workspace.Op{Kind: workspace.OpRename, Path: repo, To: repo + ".quarantined"}
		if last := dirs[len(dirs)-1]; last.mode&0o300 != 0o300 {
			if _, err := s.Apply(t.Context(), rename); err == nil {
				t.Error("the directories are not closed for a rename")
			}
		}
		var were []uint32
		for _, f := range dirs {
			c, err := s.Apply(t.Context(), workspace.Op{Kind: workspace.OpChmod, Path: f.path, Mode: 0o700, Add: true})
			must(t, err)
			were = append(were, c.Mode)
		}
		_, err := s.Apply(t.Context(), rename)
		must(t, err)
		for i, f := range slices.Backward(dirs) {
			_, err := s.Apply(t.Context(), workspace.Op{Kind: workspace.OpChmod, Path: f.path, Mode: were[i]})
			must(t, err)
		}
		must(t, s.Destroy(context.WithoutCancel(t.Context())))
		for _, f := range dirs {
			info, err := os.Lstat(filepath.Join(dir, f.path))
			must(t, err)
			if diff := cmp.Diff(f.mode|os.ModeDir, info.Mode()); diff != "" {
				t.Errorf("%s (-want +got): %s", f.path, diff)
			}
		}
		out, _ := hostGit(t, dir, uid, enterScript(dirs)) // only the marker counts
		if m.checkFired(t) {
			t.Errorf("the host's git ran a session's program: %s", out)
		}
	})
}

// checkClosedControls checks that each row runs the marker without the rename.
func checkClosedControls(t *testing.T, uid int) {
	eachClosed(t, uid, func(t *testing.T, m marker, dir string, dirs []closedDirectory) {
		mustGit(t, dir, uid, "set -e\n"+m.writeScript(plantScript(dirs)))
		out, _ := hostGit(t, dir, uid, enterScript(dirs)) // only the marker counts
		if !m.checkFired(t) {
			t.Errorf("the marker does not fire: %s", out)
		}
	})
}

func eachClosed(t *testing.T, uid int, f func(t *testing.T, m marker, dir string, dirs []closedDirectory)) {
	for name, dirs := range closed {
		t.Run(name, func(t *testing.T) {
			base := hostDirectory(t, uid)
			dir := filepath.Join(base, "workspace")
			must(t, os.Mkdir(dir, 0o755))
			must(t, os.Chown(dir, uid, uid))
			t.Cleanup(func() { mustGit(t, base, os.Geteuid(), "chmod -R u+rwx workspace") })
			f(t, newMarker(t, base), dir, dirs)
		})
	}
}
