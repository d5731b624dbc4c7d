package record

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools"
)

// TestAFullDiskTearsAtMostOneLine fills a small file system with records. The
// acknowledged ones are there, the chain is intact, and nothing is written
// after the first failure even if there is room again.
func TestAFullDiskTearsAtMostOneLine(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 16<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := NewRecorder(RecorderOptions{Dir: dir, Session: "ses_01JD0000000000000000000000"})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	written := 0
	for ; written < 1000; written++ {
		if _, err = r.Write(Entry{Actor: ActorSystem, Payload: Warning{Message: strings.Repeat("x", 900)}}); err != nil {
			break
		}
	}
	if !errors.Is(err, tools.ErrRecord) || !errors.Is(err, syscall.ENOSPC) || written < 10 {
		t.Fatalf("%d records, then %v", written, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Write(Entry{Payload: Warning{}}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a record behind the gap: %v", err)
	}
	if trace := readTrace(t, r); len(trace.Records) != written {
		t.Errorf("%d records of %d are there (torn %v)", len(trace.Records), written, trace.Torn)
	}
}
