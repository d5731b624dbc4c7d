package setid

import (
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestOldCalls checks that this processor's own calls do the same as their
// successors.
func TestOldCalls(t *testing.T) {
	do := filtered(t)
	for name, tt := range map[string]struct {
		call uintptr
		file string
		args [2]uintptr
		mode uint32 // of the file afterwards
		err  error
	}{
		"chmod":             {unix.SYS_CHMOD, "dir", [2]uintptr{0o2755}, unix.S_IFDIR | 0o2755, nil},
		"chmod of a file":   {unix.SYS_CHMOD, "file", [2]uintptr{0o2755}, unix.S_IFREG | 0o600, unix.EPERM},
		"open":              {unix.SYS_OPEN, "new", [2]uintptr{unix.O_CREAT, 0o6711}, unix.S_IFREG | 0o711, nil},
		"open exclusively":  {unix.SYS_OPEN, "file", [2]uintptr{unix.O_CREAT | unix.O_EXCL, 0o6500}, unix.S_IFREG | 0o600, unix.EEXIST},
		"creat":             {unix.SYS_CREAT, "new", [2]uintptr{0o6711}, unix.S_IFREG | 0o711, nil},
		"mknod":             {unix.SYS_MKNOD, "new", [2]uintptr{unix.S_IFIFO | 0o6711}, unix.S_IFIFO | 0o711, nil},
		"mknod of a device": {unix.SYS_MKNOD, "new", [2]uintptr{unix.S_IFCHR | 0o6711, 0x103}, 0, unix.EPERM},
	} {
		t.Run(name, func(t *testing.T) {
			r := newTree(t)
			p, err := unix.BytePtrFromString(r.path(tt.file))
			if err != nil {
				t.Fatal(err)
			}
			err = do(func() error {
				fd, _, errno := unix.Syscall(tt.call, uintptr(unsafe.Pointer(p)), tt.args[0], tt.args[1])
				if errno == 0 && fd > 0 {
					return unix.Close(int(fd))
				}
				return orNil(errno)
			})
			if !errors.Is(err, tt.err) || r.mode(tt.file) != tt.mode {
				t.Errorf("error %v, want %v; mode %o, want %o", err, tt.err, r.mode(tt.file), tt.mode)
			}
		})
	}
	t.Run("creat truncates", func(t *testing.T) {
		r := newTree(t)
		p, _ := unix.BytePtrFromString(r.path("file"))
		if err := do(func() error {
			fd, _, errno := unix.Syscall(unix.SYS_CREAT, uintptr(unsafe.Pointer(p)), 0o6711, 0)
			if errno != 0 {
				return errno
			}
			got, err := look(int(fd))
			if want := (opened{mode: 0o600, status: unix.O_WRONLY}); got != want {
				t.Errorf("opened %+v, want %+v", got, want)
			}
			return err
		}); err != nil {
			t.Error(err)
		}
	})
}
