package sessiondir

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// TestSweepWorkspaces: a session's own workspace is removed once its process is dead and its sandbox gone,
// whatever commands did to it.
func TestSweepWorkspaces(t *testing.T) {
	state := t.TempDir()
	if err := os.Chmod(state, 0o700); err != nil {
		t.Fatal(err)
	}
	start := func() *Dir {
		d, err := Create(state, nil)
		if err != nil {
			t.Fatal(err)
		}
		path, err := d.MakeWorkspace()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.MkdirAll(filepath.Join(path, "a/b"), 0o755), os.Symlink(state, filepath.Join(path, "link")), os.Chmod(filepath.Join(path, "a"), 0)); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(d.Path, OutputDir, "exe_1.1"), 0o700); err != nil {
			t.Fatal(err)
		}
		return d
	}
	living, dead, contained, noted := start(), start(), start(), start()
	if err := os.Remove(filepath.Join(dead.Path, SandboxDir)); err != nil { // like a backend
		t.Fatal(err)
	}
	for _, d := range []*Dir{dead, contained, noted} {
		if err := d.file.Close(); err != nil { // like the kernel for a killed process
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(contained.Path, SandboxDir, "bundle"), nil, 0o600),
		os.Mkdir(filepath.Join(state, "cleanup"), 0o700), os.WriteFile(filepath.Join(state, "cleanup", noted.Session+".json"), nil, 0o600),
		os.MkdirAll(WorkspacePath(state, "ses_x"), 0o700), // of a session whose directory is gone
	); err != nil {
		t.Fatal(err)
	}
	if _, err := Sweep(state); err != nil {
		t.Error(err)
	}
	for session, want := range map[string]bool{living.Session: true, dead.Session: false, contained.Session: true, noted.Session: true, "ses_x": false} {
		if _, err := os.Lstat(WorkspacePath(state, session)); (err == nil) != want {
			t.Errorf("the workspace of %s: %v, want it there: %v", session, err, want)
		}
	}
	for _, d := range []*Dir{living, dead, contained, noted} {
		if _, err := os.Lstat(filepath.Join(d.Path, OutputDir)); (err == nil) != (d == living) {
			t.Errorf("the output of commands of %s: %v", d.Session, err)
		}
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(living.Path, OutputDir)), RemoveWorkspace(state, living.Session), RemoveWorkspace(state, living.Session), living.Close()); err != nil {
		t.Error(err)
	}
}

// Sweep removes what a dead process left in a session's directory, and all of it if nothing ran, but
// nothing of a live one, and nothing other than sockets.
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
	unrecorded, _ := make()
	if err := os.WriteFile(filepath.Join(dead.Path, record.TraceFile), []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range []*Dir{dead, full, unrecorded} {
		if err := os.MkdirAll(filepath.Join(f.Path, OverlayDir, overlay.UpperDir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := f.file.Close(); err != nil { // like the kernel for a killed process
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(fullBox, "bundle"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := Sweep(state); n != 2 || err != nil {
		t.Errorf("removed %d folders, %v", n, err)
	}
	for path, want := range map[string]bool{
		filepath.Join(livingBox, sandbox.ExecSocket): true, deadBox: false, filepath.Join(dead.Path, LogFile): true,
		filepath.Join(dead.Path, OverlayDir): false, filepath.Join(full.Path, OverlayDir): false, unrecorded.Path: false,
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

// TestSweepUnmade: layers that a killed process was making are removed, unless they may still be in the
// making.
func TestSweepUnmade(t *testing.T) {
	state := t.TempDir()
	if err := os.Chmod(state, 0o700); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-time.Hour)
	for _, c := range []struct {
		name                        string
		log, old, recorded, changes bool
		stays                       bool
	}{
		{name: "ses_empty", old: true},
		{name: "ses_log", old: true, log: true},
		{name: "ses_recorded", old: true, log: true, recorded: true, stays: true},
		{name: "ses_changes", old: true, log: true, changes: true, stays: true},
		{name: "ses_young", stays: true},
		{name: "ses_younglog", log: true, stays: true},
	} {
		dir := Path(state, c.name)
		err := os.MkdirAll(dir, 0o700)
		if c.log {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, LogFile), nil, 0o600))
		}
		if c.recorded {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, record.TraceFile), []byte("{}\n"), 0o600))
		}
		if c.changes {
			err = errors.Join(err, os.MkdirAll(filepath.Join(dir, OverlayDir, overlay.UpperDir, "changed"), 0o700))
		}
		if c.old {
			err = errors.Join(err, os.Chtimes(dir, long, long))
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Sweep(state); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(dir); (err == nil) != c.stays {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
