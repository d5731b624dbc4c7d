package overlayfs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A whiteout is a device, or an empty file in a marked directory. No other empty
// file is one.
func TestMakeWhiteout(t *testing.T) {
	for _, devices := range []bool{true, false} {
		if !devices {
			mknodat = func(int, string, uint32, int) error { return unix.EPERM }
			t.Cleanup(func() { mknodat = unix.Mknodat })
		}
		path := t.TempDir()
		dir, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		at := int(dir.Fd())
		if err := os.WriteFile(filepath.Join(path, "empty"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		err = MakeWhiteout(at, "gone")
		if devices && errors.Is(err, unix.EPERM) {
			continue // Linux before 5.8
		}
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(path, "gone"), &st); err != nil || (st.Mode&unix.S_IFMT == unix.S_IFCHR) != devices || st.Size != 0 || st.Rdev != 0 {
			t.Errorf("devices %v: mode %o, %v", devices, st.Mode, err)
		}
		mark := make([]byte, 8)
		n, err := unix.Getxattr(path, OpaqueAttribute, mark)
		if got := string(mark[:max(n, 0)]); devices && !errors.Is(err, unix.ENODATA) || !devices && got != "x" {
			t.Errorf("devices %v: the directory is marked %q, %v", devices, got, err)
		}
		if IsWhiteout(at, "gone") == devices || IsWhiteout(at, "empty") || IsWhiteout(at, "none") {
			t.Errorf("devices %v: a file is taken for a whiteout, or a whiteout for a file", devices)
		}
		if err := MakeWhiteout(at, "empty"); err == nil {
			t.Errorf("devices %v: a whiteout replaced a file", devices)
		}
	}
	// The mark of an opaque directory stays.
	path := t.TempDir()
	dir, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := errors.Join(unix.Setxattr(path, OpaqueAttribute, []byte("y"), 0), MakeWhiteout(int(dir.Fd()), "gone")); err != nil {
		t.Fatal(err)
	}
	mark := make([]byte, 8)
	if n, err := unix.Getxattr(path, OpaqueAttribute, mark); err != nil || string(mark[:n]) != "y" {
		t.Errorf("an opaque directory is marked %q, %v", mark[:max(n, 0)], err)
	}
}
