package setid

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/filter"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/identity"
)

// filtered starts a thread under the commands' filter, supervised, and returns
// a function that runs others on it.
func filtered(t *testing.T) func(f func() error) error { return filteredFor(t, AnyUser) }

// filteredFor is filtered with a supervisor that acts as user.
func filteredFor(t *testing.T, user int64) func(f func() error) error {
	t.Helper()
	if Choose() != filter.NotifySetID {
		t.Skip("needs a kernel with notifications")
	}
	helper, err := identity.NewPool(identity.Commands{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	work, ready := make(chan func()), make(chan error)
	identity.Dedicate(func() {
		// Its own working directory and umask, as a command has.
		if err := errors.Join(unix.Unshare(unix.CLONE_FS), identity.NoNewPrivileges()); err != nil {
			ready <- err
			return
		}
		listener, err := identity.SetFilterWithListener(filter.Program(filter.NotifySetID))
		if err == nil {
			err = Supervise(listener, user, helper.Do)
		}
		ready <- err
		for f := range work {
			f()
		}
	})
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(work) })
	return func(f func() error) error {
		result := make(chan error)
		work <- func() { result <- f() }
		return <-result
	}
}

func TestSupervise(t *testing.T) {
	do := filtered(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	mode := func(path string) uint32 {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Mode & 0o7777
	}
	if err := do(func() error { return unix.Chmod(file, 0o2755) }); !errors.Is(err, unix.EPERM) || mode(file) != 0o644 {
		t.Errorf("file: %v, mode %o", err, mode(file))
	}
	if err := do(func() error { return unix.Chmod(dir, 0o2755) }); err != nil || mode(dir) != 0o2755 {
		t.Errorf("directory: %v, mode %o", err, mode(dir))
	}
	made := filepath.Join(dir, "made")
	if err := do(func() error {
		fd, err := unix.Open(made, unix.O_CREAT|unix.O_WRONLY, 0o6755)
		if err != nil {
			return err
		}
		_, err = unix.Write(fd, []byte("x"))
		return errors.Join(err, unix.Close(fd))
	}); err != nil || mode(made) != 0o755 {
		t.Errorf("new file: %v, mode %o", err, mode(made))
	}
}

// TestSuperviseOthers checks that another user's calls are refused, even
// harmless ones: they would be made with the supervisor's rights.
func TestSuperviseOthers(t *testing.T) {
	own := int64(os.Getuid())
	for user, want := range map[int64]error{own: nil, own + 1: unix.EPERM} {
		do, dir := filteredFor(t, user), t.TempDir()
		if err := do(func() error { return unix.Chmod(dir, 0o2755) }); !errors.Is(err, want) {
			t.Errorf("as user %d for %d: %v, want %v", own, user, err, want)
		}
		err := do(func() error {
			fd, err := unix.Open(filepath.Join(dir, "made"), unix.O_CREAT|unix.O_WRONLY, 0o6755)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		})
		if !errors.Is(err, want) {
			t.Errorf("as user %d for %d, a new file: %v, want %v", own, user, err, want)
		}
	}
}
