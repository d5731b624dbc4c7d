package worktest

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// RunOnNoExec calls f with a directory on a file system that is mounted noexec.
// Only the thread that runs f sees the mount, which ends with it. It skips the
// test if this process may not mount.
func RunOnNoExec(t *testing.T, f func(dir string)) {
	t.Helper()
	dir := t.TempDir()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it mounts a file system")
	}
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		err = errors.Join(
			unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""),
			unix.Mount("noexec", dir, "tmpfs", unix.MS_NOEXEC|unix.MS_NODEV|unix.MS_NOSUID, "mode=0755"),
		)
		if err == nil {
			f(dir)
		}
	}()
	<-done
	if errors.Is(err, unix.EPERM) {
		t.Skipf("mount a file system: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}
