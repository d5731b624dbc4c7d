package network

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools/egress"
	"github.com/caisson-run/caisson/tools/egress/cache"
)

// TestLockIsAFile checks that a session doesn't hang on a lock that a program replaced, and reads a
// regular one.
func TestLockIsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	open := func() error {
		n := &Network{opts: Options{Dir: t.TempDir(), LockFile: path}}
		return n.openCache(&egress.Options{})
	}
	var text strings.Builder
	if _, err := cache.NewLock().WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(); err != nil {
		t.Fatalf("control: %v", err)
	}
	if err := errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() { failed <- open() }()
	select {
	case err := <-failed:
		if err == nil {
			t.Error("a pipe was taken for a lock")
		}
	case <-time.After(5 * time.Second):
		t.Error("a session waits for a pipe")
	}
}

// TestLockFollowsNoSymlink checks that a lock is neither read nor written through a symlink that a
// command may have made. The control has a directory in its place.
func TestLockFollowsNoSymlink(t *testing.T) {
	for name, link := range map[string]string{"control": "", "directory": "work", "file": "work/lock"} {
		base := t.TempDir()
		outside, work := filepath.Join(base, "outside"), filepath.Join(base, "work")
		if err := errors.Join(os.Mkdir(outside, 0o755), os.Mkdir(work, 0o755)); err != nil {
			t.Fatal(err)
		}
		n := &Network{opts: Options{Dir: t.TempDir(), LockFile: filepath.Join(work, "lock")}}
		if err := n.openCache(&egress.Options{}); err != nil {
			t.Fatal(err)
		}
		target := outside
		if link == "work/lock" {
			target = filepath.Join(outside, "lock")
		}
		if link != "" {
			if err := errors.Join(os.RemoveAll(filepath.Join(base, link)), os.Symlink(target, filepath.Join(base, link))); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.closeCache(); (err == nil) != (link == "") {
			t.Errorf("%s: written with %v", name, err)
		}
		if made, err := os.ReadDir(outside); err != nil || len(made) > 0 {
			t.Errorf("%s: outside are %v, %v", name, made, err)
		}
		if err := n.openCache(&egress.Options{}); (err == nil) != (link == "") {
			t.Errorf("%s: read with %v", name, err)
		}
	}
}
