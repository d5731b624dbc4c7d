package hostns

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// On a file system without devices, a whiteout is an empty file with an
// attribute. Other empty files are none.
func TestMakeWhiteout(t *testing.T) {
	for _, devices := range []bool{true, false} {
		path := t.TempDir()
		if !devices {
			path = withoutDevices(t)
		}
		dir, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		at := int(dir.Fd())
		if err := errors.Join(MakeWhiteout(at, "gone"), os.WriteFile(filepath.Join(path, "empty"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(path, "gone"), &st); err != nil || (st.Mode&unix.S_IFMT == unix.S_IFCHR) != devices {
			t.Errorf("devices %v: mode %o, %v", devices, st.Mode, err)
		}
		if IsWhiteout(at, "gone", unix.O_NOFOLLOW) == devices || IsWhiteout(at, "empty", 0) {
			t.Errorf("devices %v: a file is taken for a whiteout, or a whiteout for a file", devices)
		}
		if err := MakeWhiteout(at, "empty"); err == nil {
			t.Errorf("devices %v: a whiteout replaced a file", devices)
		}
	}
}

// withoutDevices returns a directory on an overlay of the kernel, which makes no
// whiteouts for others.
func withoutDevices(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting an overlay needs root")
	}
	base := t.TempDir()
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(base, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	merged := filepath.Join(base, "merged")
	options := "lowerdir=" + base + "/lower,upperdir=" + base + "/upper,workdir=" + base + "/work"
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(merged, unix.MNT_DETACH) })
	return merged
}
