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

// TestLockIsAFile checks that a session doesn't wait for a lock that a program has
// replaced, and that another one is read.
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
