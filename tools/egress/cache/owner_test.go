package cache

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestOthersDirectory checks that a directory that another user can write to is refused.
func TestOthersDirectory(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(dir, false); err != nil { // the control
		t.Fatal(err)
	}
	for _, sub := range []string{"content", "entries", "tmp"} {
		path := filepath.Join(dir, sub)
		for _, mode := range []fs.FileMode{0o770, 0o702} {
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			if _, err := Open(dir, false); err == nil {
				t.Errorf("%s with mode %v was opened", sub, mode)
			}
		}
		if err := os.Chmod(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() != 0 {
			continue
		}
		if err := os.Chown(path, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir, false); err == nil {
			t.Errorf("%s of another user was opened", sub)
		}
		if err := os.Chown(path, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(dir, false); err != nil {
		t.Fatal(err)
	}
}
