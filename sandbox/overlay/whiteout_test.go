package overlay

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/overlayfs"
)

// useFiles replaces the whiteouts of the upper layer by files.
func (w *testEnv) useFiles() (replaced int) {
	w.t.Helper()
	upper := filepath.Join(w.layers.Dir(), UpperDir)
	must(w.t, filepath.WalkDir(upper, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeCharDevice == 0 {
			return err
		}
		must(w.t, os.Remove(path))
		must(w.t, os.WriteFile(path, nil, 0o600))
		must(w.t, unix.Setxattr(path, "user.overlay.whiteout", []byte("y"), 0))
		_ = unix.Setxattr(filepath.Dir(path), overlayfs.OpaqueAttribute, []byte("x"), unix.XATTR_CREATE) // an opaque one is marked
		replaced++
		return nil
	}))
	return replaced
}

// Whiteouts that are files mean the same as devices: for changes, diffs, copies,
// frozen and merged layers, apply, and the kernel where it knows them.
func TestFileWhiteouts(t *testing.T) {
	w := newTestEnv(t, func(dir string) {
		runScript(t, dir, `mkdir -p d/sub e/sub f; echo a >a; echo b >d/b; echo c >d/sub/c; echo e >e/sub/e; echo f >f/f; : >empty; : >marked`)
	})
	runScript(t, w.merged, `rm -r a d/sub f; rm -r e; mkdir e; echo new >e/new; : >made; rm empty; echo x >d/x`)
	before, seen, diff := w.listChanges(), describeTree(t, w.merged), w.diff()
	w.unmount()
	if n := w.useFiles(); n < 4 {
		t.Fatalf("only %d whiteouts", n)
	}
	w.requireChanges(before...)
	if d := cmp.Diff(diff, w.diff()); d != "" {
		t.Errorf("diff (-want +got):\n%s", d)
	}
	var name unix.Utsname
	var major, minor int
	must(t, unix.Uname(&name))
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil || major > 6 || major == 6 && minor >= 7 {
		w.mount()
		if d := cmp.Diff(seen, describeTree(t, w.merged)); d != "" {
			t.Errorf("to the kernel (-want +got):\n%s", d)
		}
		w.unmount()
	}
	// In the original it is no whiteout.
	must(t, unix.Setxattr(filepath.Join(w.original, "marked"), "user.overlay.whiteout", []byte("y"), 0))
	copied, _ := w.sendCopy()
	for _, name := range []string{"a", "d/sub", "f", "empty", "e/sub"} {
		if _, err := os.Lstat(filepath.Join(copied, name)); !os.IsNotExist(err) {
			t.Errorf("the copy has %s: %v", name, err)
		}
	}
	for _, name := range []string{"made", "marked", "e/new"} {
		if _, err := os.Lstat(filepath.Join(copied, name)); err != nil {
			t.Errorf("the copy lacks %s: %v", name, err)
		}
	}
	w.freeze()
	runScript(t, filepath.Join(w.layers.Dir(), UpperDir), "echo again >a")
	w.requireChanges(append([]string{"modified a"}, before[1:]...)...)
	must(t, os.Remove(filepath.Join(w.layers.Dir(), UpperDir, "a")))
	must(t, mergeLowers(t.Context(), w.layers))
	w.requireChanges(before...)
	w.apply(ApplyOptions{})
	for name, want := range map[string]bool{"a": false, "d/sub": false, "d/b": true, "f": false, "empty": false, "e/sub": false, "e/new": true, "made": true, "marked": true} {
		if _, err := os.Lstat(filepath.Join(w.original, name)); (err == nil) != want {
			t.Errorf("after the apply, %s: %v", name, err)
		}
	}
}
