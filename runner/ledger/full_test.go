package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits"
)

// A request is refused if its reservation can't be written, and nothing of the
// count is lost.
func TestFullAndReadOnlyDirectories(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts a small file system")
	}
	state := t.TempDir()
	must(t, unix.Mount("tmpfs", state, "tmpfs", 0, "size=64k,mode=0700"))
	t.Cleanup(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
	l := openLedger(t, Options{StateDir: state, User: perDay(0, 100, 0)})
	use(t, l, "alice", "main", 60)
	entry, exceeded := reserve(t, l, "alice", "main", 10)
	if exceeded != nil {
		t.Fatal(exceeded)
	}
	demand := limits.Demand{Input: 1, Output: 1, MinOutput: 1, Price: price}
	fill := filepath.Join(state, "fill")
	for what, refuse := range map[string]struct{ begin, end func() }{
		"full": {
			func() { _ = os.WriteFile(fill, make([]byte, 128<<10), 0o600) }, // as much as fits
			func() { must(t, os.Remove(fill)) },
		},
		"read-only": {
			func() { must(t, unix.Mount("", state, "", unix.MS_REMOUNT|unix.MS_RDONLY, "")) },
			func() { must(t, unix.Mount("", state, "", unix.MS_REMOUNT, "")) },
		},
	} {
		refuse.begin()
		_, err := l.ForUser("alice").Reserve(t.Context(), "main", demand)
		if failure, ok := errors.AsType[*FileError](err); !ok || failure.Corrupt {
			t.Errorf("%s: reserve: %v", what, err)
		}
		if err := entry.Settle(&limits.Usage{InputTokens: 5}); err == nil {
			t.Errorf("%s: usage that was not written is taken as counted", what)
		}
		refuse.end()
	}
	if _, e := reserve(t, l, "alice", "main", 31); e == nil || e.Used != 70 {
		t.Errorf("afterwards: %v", e)
	}
}
