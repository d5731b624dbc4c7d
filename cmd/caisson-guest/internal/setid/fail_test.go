package setid

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter/filtertest"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
)

// under runs f on its own thread, under a filter.
func under(t *testing.T, program []unix.SockFilter, f func()) {
	t.Helper()
	done := make(chan struct{})
	identity.Dedicate(func() {
		defer close(done)
		if err := errors.Join(identity.NoNewPrivileges(), identity.SetFilter(program)); err != nil {
			t.Error(err)
			return
		}
		f()
	})
	<-done
}

// TestFinishFails checks that the caller does not get a file that can't be made
// as it asked.
func TestFinishFails(t *testing.T) {
	r := newTree(t)
	file := uint32(r.open("file"))
	if err := finishFile(-1, false, 0, 0); !errors.Is(err, unix.EBADF) {
		t.Errorf("a closed file: %v", err)
	}
	for name, program := range map[string][]unix.SockFilter{
		"file system":  filtertest.Refuse(unix.EIO, unix.SYS_FSTATFS),
		"mode":         filtertest.Refuse(unix.EIO, unix.SYS_FCHMOD, file),
		"flags":        filtertest.Refuse(unix.EIO, unix.SYS_FCNTL, file, unix.F_GETFL),
		"change flags": filtertest.Refuse(unix.EIO, unix.SYS_FCNTL, file, unix.F_SETFL),
	} {
		under(t, program, func() {
			if err := finishFile(int(file), true, 0, 0o666); !errors.Is(err, unix.EIO) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// TestUnreadableCaller checks that nothing is done for an unreadable caller.
func TestUnreadableCaller(t *testing.T) {
	gone := &caller{thread: 1 << 30, waits: func() bool { return true }}
	if text, err := gone.readPath(1); text != "" || !errors.Is(err, unix.EPERM) {
		t.Errorf("memory of a thread that is gone: %q, %v", text, err)
	}
	if mask, err := gone.readUmask(); mask != 0 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("umask of a thread that is gone: %o, %v", mask, err)
	}
	if err := gone.chmodDir(-1, 0o755); !errors.Is(err, unix.EBADF) {
		t.Errorf("mode of a closed directory: %v", err)
	}
	// A zombie has no umask.
	zombie := exec.Command("true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, zombie.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Error(err)
	}
	if mask, err := (&caller{thread: zombie.Process.Pid}).readUmask(); mask != 0 || !errors.Is(err, unix.ENOTSUP) {
		t.Errorf("umask of a zombie: %o, %v", mask, err)
	}
	if err := zombie.Wait(); err != nil {
		t.Error(err)
	}
	self := &caller{thread: unix.Gettid(), waits: gone.waits}
	at := int64(unix.AT_FDCWD)
	for call, args := range map[int][6]uint64{
		unix.SYS_OPENAT:  {uint64(at), 1, unix.O_CREAT | unix.O_RDWR, 0o6755},
		unix.SYS_MKNODAT: {uint64(at), 1, unix.S_IFIFO | 0o6755},
	} {
		if made, err := self.performCall(call, args); made != nothing || !errors.Is(err, unix.EFAULT) {
			t.Errorf("call %d of a path that can't be read: %+v, %v", call, made, err)
		}
	}
}

// TestChooseElsewhere checks the choice on other kernels.
func TestChooseElsewhere(t *testing.T) {
	usual := Choose()
	for name, tt := range map[string]struct {
		program []unix.SockFilter
		want    filter.SetID
	}{
		"it refuses the bits":  {filter.Program(filter.RefuseSetID), filter.AllowSetID},
		"it has no such files": {filtertest.Refuse(unix.ENOSYS, unix.SYS_MEMFD_CREATE), usual},
		"no modes at all":      {filtertest.Refuse(unix.EPERM, unix.SYS_FCHMOD), usual},
		"no notifications":     {filtertest.Refuse(unix.EINVAL, unix.SYS_SECCOMP, unix.SECCOMP_GET_NOTIF_SIZES), filter.RefuseSetID},
	} {
		if usual == filter.AllowSetID {
			t.Skip("this kernel refuses the bits")
		}
		under(t, tt.program, func() {
			if got := Choose(); got != tt.want {
				t.Errorf("%s: the choice is %x, want %x", name, got, tt.want)
			}
		})
	}
}

// TestSuperviseFails checks that the supervisor needs its files.
func TestSuperviseFails(t *testing.T) {
	if err := Supervise(-1, AnyUser, nil); !errors.Is(err, unix.EBADF) {
		t.Errorf("no listener: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	under(t, filtertest.Refuse(unix.EIO, unix.SYS_OPENAT), func() {
		if err := Supervise(int(r.Fd()), AnyUser, nil); !errors.Is(err, unix.EIO) {
			t.Errorf("no root: %v", err)
		}
	})
}

// TestReady checks that a notification waits if there is one to read, not
// because the last process under the filter has ended.
func TestReady(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	s := &supervisor{listener: uintptr(fds[0])}
	if s.isReady() {
		t.Error("ready with nothing to read")
	}
	if _, err := unix.Write(fds[1], []byte("x")); err != nil || !s.isReady() {
		t.Error("not ready with something to read", err)
	}
	if _, err := unix.Read(fds[0], make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if err := unix.Close(fds[1]); err != nil || s.isReady() {
		t.Error("ready at the end", err)
	}
}

// TestCallerWithoutDescriptors checks that a caller that can have no more
// descriptors gets an error, and that the guest closes the file.
func TestCallerWithoutDescriptors(t *testing.T) {
	do := filtered(t)
	r := newTree(t)
	before := filtertest.Descriptors(t)
	fd := -1
	var err error
	// Enough for the guest to create the file, and none for the caller.
	filtertest.WithDescriptors(t, 1, func() {
		err = do(func() (err error) {
			fd, err = unix.Open(r.path("new"), unix.O_CREAT|unix.O_WRONLY, 0o6711)
			return err
		})
	})
	if !errors.Is(err, unix.EMFILE) || fd >= 0 || r.mode("new") != unix.S_IFREG|0o711 {
		t.Errorf("descriptor %d, %v, mode %o", fd, err, r.mode("new"))
	}
	if now := filtertest.Descriptors(t); now > before {
		t.Errorf("%d descriptors are open, %d before", now, before)
	}
}
