package tracker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

// newPrivilegeCheck returns a check of an empty workspace.
func newPrivilegeCheck(t *testing.T) (path string, c *privilegeCheck) {
	t.Helper()
	path = t.TempDir()
	dir, err := workspace.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	reader, err := workspace.NewReader(dir, workspace.ReaderOptions{HostPath: path, MaxEntries: 500_000})
	if err != nil {
		t.Fatal(err)
	}
	files, err := workspace.NewPrivileges(dir)
	if err != nil {
		t.Fatal(err)
	}
	return path, &privilegeCheck{reader: reader, files: files, log: zap.NewNop()}
}

func makeFile(t *testing.T, dir, name string, mode uint32) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func modeOf(t *testing.T, path string) uint32 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Mode & 0o7777
}

// TestPrivilegesOfUnknownFilesStay: if the scan at the start failed, a file may be the user's.
func TestPrivilegesOfUnknownFilesStay(t *testing.T) {
	dir, c := newPrivilegeCheck(t)
	makeFile(t, dir, "mine", 0o4755)
	c.before = snapshot{}
	found, err := c.files.Read("mine", false)
	if err != nil {
		t.Fatal(err)
	}
	got := c.clearNew(privileged{"mine": found})
	if len(got) != 1 || got[0].Why == "" || modeOf(t, filepath.Join(dir, "mine")) != 0o4755 {
		t.Errorf("%+v, mode %o", got, modeOf(t, filepath.Join(dir, "mine")))
	}
	c.before.whole = true // the control
	if got := c.clearNew(privileged{"mine": found}); len(got) != 1 || got[0].Why != "" || modeOf(t, filepath.Join(dir, "mine")) != 0o755 {
		t.Errorf("known to be new: %+v, mode %o", got, modeOf(t, filepath.Join(dir, "mine")))
	}
}

// TestAReplacedFileIsNotCleared: content is only read from the file that was found. A replacement is
// left, and named.
func TestAReplacedFileIsNotCleared(t *testing.T) {
	dir, c := newPrivilegeCheck(t)
	makeFile(t, dir, "mine", 0o4755)
	look, err := c.findPrivileged(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	c.before = look.snap
	found, err := c.files.Read("mine", true)
	if err != nil {
		t.Fatal(err)
	}
	found.Inode++
	found.Changed--
	was := found
	was.Changed--
	c.was = privileged{"old": was}
	got := c.clearNew(privileged{"mine": found})
	if len(got) != 1 || got[0].Why != "another file is in its place" || modeOf(t, filepath.Join(dir, "mine")) != 0o4755 {
		t.Errorf("%+v, mode %o", got, modeOf(t, filepath.Join(dir, "mine")))
	}
}

// TestPrivilegesThatCannotBeRead make the scan incomplete.
func TestPrivilegesThatCannotBeRead(t *testing.T) {
	dir, c := newPrivilegeCheck(t)
	if err := os.Mkdir(filepath.Join(dir, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	makeFile(t, dir, "dir/x", 0o644)
	if err := unix.Chmod(filepath.Join(dir, "dir"), 0o4755); err != nil {
		t.Fatal(err)
	}
	if look, err := c.findPrivileged(t.Context(), true); err != nil || look.snap.isIncomplete() {
		t.Fatalf("control: %+v, %v", look.snap, err)
	}
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(errScanSlow)
	if _, err := c.findPrivileged(ended, true); !errors.Is(err, errScanSlow) {
		t.Errorf("a look that did not end: %v", err)
	}
	elsewhere := t.TempDir()
	if err := os.Mkdir(filepath.Join(elsewhere, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(elsewhere, "dir"), 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(elsewhere)
	if err != nil {
		t.Fatal(err)
	}
	if c.files, err = workspace.NewPrivileges(held); err != nil {
		t.Fatal(err)
	}
	if look, err := c.findPrivileged(t.Context(), true); err != nil || !look.snap.isIncomplete() {
		t.Errorf("what can't be read: %+v, %v", look.snap, err)
	}
	held.Close()
	if _, err := c.findPrivileged(t.Context(), true); err == nil {
		t.Error("the workspace itself can't be read")
	}
}
