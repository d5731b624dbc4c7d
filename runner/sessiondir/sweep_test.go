//go:build unix

package sessiondir

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// What a dead session's process left in its folder is removed; a living one's,
// and what is no socket, is not.
func TestSweepFolders(t *testing.T) {
	state := t.TempDir()
	if err := os.Chmod(state, 0o700); err != nil {
		t.Fatal(err)
	}
	make := func() (*Dir, string) {
		f, err := Create(state, nil)
		if err != nil {
			t.Fatal(err)
		}
		box := filepath.Join(f.Path, SandboxDir)
		fd, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: filepath.Join(box, sandbox.ExecSocket)})
		if err != nil {
			t.Fatal(err)
		}
		fd.SetUnlinkOnClose(false)
		if err := fd.Close(); err != nil {
			t.Fatal(err)
		}
		return f, box
	}
	living, livingBox := make()
	dead, deadBox := make()
	full, fullBox := make()
	for _, f := range []*Dir{dead, full} {
		if err := f.file.Close(); err != nil { // as the kernel does for a process that is killed
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(fullBox, "bundle"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := Sweep(state); n != 1 || err != nil {
		t.Errorf("removed %d folders, %v", n, err)
	}
	for path, want := range map[string]bool{
		filepath.Join(livingBox, sandbox.ExecSocket): true, deadBox: false, filepath.Join(dead.Path, LogFile): true,
		filepath.Join(fullBox, sandbox.ExecSocket): false, filepath.Join(fullBox, "bundle"): true,
	} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := os.Remove(filepath.Join(livingBox, sandbox.ExecSocket)); err != nil {
		t.Fatal(err)
	}
	if err := living.Close(); err != nil {
		t.Error(err)
	}
	if n, err := Sweep(state); n != 0 || err != nil {
		t.Errorf("second sweep: %d, %v", n, err)
	}
}
