package setid

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter/filtertest"
)

// TestChoose compares the choice with this kernel's features, found in other
// ways.
func TestChoose(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want := filter.RefuseSetID
	action := uint32(unix.SECCOMP_RET_USER_NOTIF)
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action))); errno == 0 {
		want = filter.NotifySetID
	}
	if unix.Chmod(file, unix.S_ISUID|0o700) != nil {
		want = filter.AllowSetID
	}
	if got := Choose(); got != want {
		t.Errorf("the choice is %x, want %x", got, want)
	}
}

// TestNothingIsLeftOpen checks that calls leave no descriptor open in the
// guest, which commands could otherwise use up.
func TestNothingIsLeftOpen(t *testing.T) {
	do := filtered(t)
	r := newTree(t)
	const here = unix.AT_FDCWD
	dir, file := r.open("dir"), r.open("file")
	root := r.open(".")
	open := func(name string, flags int) {
		if fd, err := unix.Open(r.path(name), flags, 0o6700); err == nil {
			_ = unix.Close(fd)
		}
	}
	round := func() {
		_ = do(func() error {
			_ = unix.Fchmod(dir, 0o2755)
			_ = unix.Fchmod(file, 0o2755)
			_ = fchmodat2(here, r.path("dir"), 0o2755, 0)
			_ = fchmodat2(here, r.path("file"), 0o2755, 0)
			_ = fchmodat2(root, "dir", 0o2755, 0)
			_ = fchmodat2(here, "dir", 0o2755, 0)
			_ = fchmodat2(dir, "", 0o2755, unix.AT_EMPTY_PATH)
			open("file", unix.O_CREAT|unix.O_RDWR)
			open("fifo", unix.O_CREAT|unix.O_RDONLY)
			_ = unix.Chdir(r.root)
			if fd, err := unix.Openat(root, "new", unix.O_CREAT|unix.O_RDWR, 0o6700); err == nil {
				_ = unix.Close(fd)
			}
			_ = unix.Mknodat(here, r.path("file"), unix.S_IFIFO|0o6700, 0)
			return unix.Mknodat(root, "dir/file", unix.S_IFIFO|0o6700, 0)
		})
		Choose()
	}
	round()
	before := filtertest.Descriptors(t)
	for range 3 {
		round()
	}
	if after := filtertest.Descriptors(t); after != before {
		t.Errorf("%d descriptors are open, before %d", after, before)
	}
}
