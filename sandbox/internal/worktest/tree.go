package worktest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Tree describes everything about the files of a directory except access times,
// which reading changes: types, modes, owners, other times, contents, names of
// attributes.
func Tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err == nil {
			out[rel], err = describeEntry(path, d)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func describeEntry(path string, d fs.DirEntry) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 {
		return "whiteout", nil // all are links to one
	}
	what := fmt.Sprintf("%o %d:%d ino %d links %d dev %d size %d mtime %v ctime %v",
		st.Mode, st.Uid, st.Gid, st.Ino, st.Nlink, st.Rdev, st.Size, st.Mtim, st.Ctim)
	switch {
	case d.Type() == fs.ModeSymlink:
		target, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		what += " -> " + target
	case d.Type().IsRegular():
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrPermission) {
			return what + " unreadable", nil // another user's
		}
		if err != nil {
			return "", err
		}
		defer f.Close()
		sum := sha256.New()
		if _, err := io.Copy(sum, f); err != nil {
			return "", err
		}
		what += fmt.Sprintf(" %x", sum.Sum(nil))
	}
	names := make([]byte, 4096)
	if n, err := unix.Llistxattr(path, names); err == nil && n > 0 {
		what += fmt.Sprintf(" attributes %q", names[:n])
	}
	return what, nil
}

// Unchanged checks at the end of the test that the directory is as it was.
func Unchanged(t testing.TB, dir string) {
	t.Helper()
	before := Tree(t, dir)
	t.Cleanup(func() {
		if diff := cmp.Diff(before, Tree(t, dir)); diff != "" {
			t.Errorf("the host's directory %s was changed: %s", dir, diff)
		}
	})
}
