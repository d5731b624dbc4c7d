package runner

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

// allCapabilities is a file's attribute with all capabilities, version 2.
var allCapabilities = []byte{1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 1, 0, 0, 0, 0, 0, 0}

// setMode sets the mode of a file of the workspace.
func (b *bench) setMode(name string, mode uint32) {
	b.t.Helper()
	if err := unix.Chmod(filepath.Join(b.dir, name), mode); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) mode(name string) uint32 {
	b.t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(b.dir, name), &st); err != nil {
		b.t.Fatal(err)
	}
	return st.Mode & 0o7777
}

// writeMapped changes a file through mapped memory, after which the kernel keeps its mode, and restores
// the modification time.
func (b *bench) writeMapped(name, text string) error {
	path := filepath.Join(b.dir, name)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	mapped, err := unix.Mmap(int(f.Fd()), 0, len(text), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	copy(mapped, text)
	return errors.Join(unix.Msync(mapped, unix.MS_SYNC), unix.Munmap(mapped), os.Chtimes(path, info.ModTime(), info.ModTime()))
}

// TestPrivilegesAreCleared: privileges that got past the sandbox are cleared at the end. Earlier ones
// stay.
func TestPrivilegesAreCleared(t *testing.T) {
	b := newBench(t, plantTurns)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := errors.Join(os.WriteFile(outside, nil, 0o755), unix.Chmod(outside, 0o4755)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"old", "moved", "mapped", "gains", "dir/deep"} {
		b.file(name, "old content")
	}
	for _, name := range []string{"old", "moved", "mapped", "dir/deep"} {
		b.setMode(name, 0o4755)
	}
	b.setMode("gains", 0o2755)
	b.file("olddir/a", "")
	b.setMode("olddir", 0o6755)
	b.backend.Scripts["plant"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		for _, name := range []string{"new/user", "new/group", "new/plain", "new/both"} {
			b.file(name, "evil")
		}
		b.setMode("new/user", 0o4711)
		b.setMode("new/group", 0o2750)
		b.setMode("new/both", 0o6755)
		b.setMode("new", 0o6755)
		b.file("shared/x", "")
		b.setMode("shared", 0o2755)
		b.setMode("dir", 0o4755)
		b.setMode(".", 0o4755)
		b.file("olddir/x", "")
		b.setMode("gains", 0o6755)
		err := errors.Join(
			os.Rename(filepath.Join(b.dir, "moved"), filepath.Join(b.dir, "to")),
			os.Symlink(outside, filepath.Join(b.dir, "link")),
			b.writeMapped("mapped", "evil"),
		)
		if err != nil {
			t.Error(err)
		}
		if b.mode("mapped") != 0o4755 {
			t.Errorf("the control lost its mode: %o", b.mode("mapped"))
		}
		return sandbox.ExitStatus{}
	}
	r, _ := b.run(t.Context())
	want := []record.Cleared{
		{Path: ".", SetUID: true},
		{Path: "dir", SetUID: true},
		{Path: "gains", SetUID: true, SetGID: true},
		{Path: "mapped", SetUID: true},
		{Path: "new", SetUID: true},
		{Path: "new/both", SetUID: true, SetGID: true},
		{Path: "new/group", SetGID: true},
		{Path: "new/user", SetUID: true},
	}
	if got := b.backend.Sandboxes[0].Spec.Workspace.Privileged; !slices.Equal(got, []string{"dir/deep", "gains", "mapped", "moved", "old"}) {
		t.Errorf("%q are mounted read-only", got)
	}
	if diff := cmp.Diff(want, r.Cleared); diff != "" {
		t.Errorf("cleared (-want +got):\n%s", diff)
	}
	for name, want := range map[string]uint32{
		"old": 0o4755, "to": 0o4755, "dir/deep": 0o4755, "olddir": 0o6755, "dir": 0o755, ".": 0o755, "shared": 0o2755, "mapped": 0o755, "gains": 0o755,
		"new": 0o2755, "new/user": 0o711, "new/group": 0o750, "new/both": 0o755, "new/plain": 0o644,
	} {
		if got := b.mode(name); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
	if info, err := os.Stat(outside); err != nil || info.Mode()&fs.ModeSetuid == 0 {
		t.Errorf("a file outside, behind a symlink, was changed: %v, %v", info, err)
	}
}

// TestCapabilitiesAreCleared does the same for capabilities, which only root can give, and which have
// no effect on files that nobody may execute.
func TestCapabilitiesAreCleared(t *testing.T) {
	b := newBench(t, plantTurns)
	give := func(name string) {
		b.setMode(name, 0o755)
		if err := unix.Setxattr(filepath.Join(b.dir, name), "security.capability", allCapabilities, 0); err != nil {
			t.Skip("needs to give capabilities: ", err)
		}
	}
	b.file("old", "x")
	b.file("known", "x")
	give("old")
	b.backend.Scripts["plant"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		b.file("new", "evil")
		give("new")
		give("known")
		for name, mode := range map[string]uint32{"data": 0o644, "others": 0o601} {
			b.file(name, "evil")
			give(name)
			b.setMode(name, mode)
		}
		return sandbox.ExitStatus{}
	}
	r, _ := b.run(t.Context())
	if diff := cmp.Diff([]record.Cleared{{Path: "known", Capabilities: true}, {Path: "new", Capabilities: true}, {Path: "others", Capabilities: true}}, r.Cleared); diff != "" {
		t.Errorf("cleared (-want +got):\n%s", diff)
	}
	for name, want := range map[string]bool{"old": true, "known": false, "new": false, "data": true, "others": false} {
		n, err := unix.Getxattr(filepath.Join(b.dir, name), "security.capability", nil)
		if got := err == nil && n > 0; got != want {
			t.Errorf("%s has capabilities: %v, want %v", name, got, want)
		}
	}
}
