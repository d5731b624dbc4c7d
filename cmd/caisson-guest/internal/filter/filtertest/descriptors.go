package filtertest

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// Descriptors returns the number of the process's open descriptors. Files that
// earlier tests left to the garbage collector can go at any time.
func Descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// WithDescriptors calls f while the process can open only n more descriptors.
func WithDescriptors(t *testing.T, n int, f func()) {
	t.Helper()
	free, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 0)
	if err := errors.Join(err, unix.Close(free)); err != nil {
		t.Fatal(err)
	}
	var was unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &was, nil); err != nil {
			t.Fatal(err)
		}
	}()
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free + n), Max: was.Max}, nil); err != nil {
		t.Fatal(err)
	}
	f()
}
