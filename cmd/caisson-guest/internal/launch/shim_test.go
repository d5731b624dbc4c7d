package launch

import (
	"syscall"
	"testing"
	"time"
)

// TestShimmedExit checks that a shim's report is the exit, and that a shim
// without one was killed, and its command counts as killed.
func TestShimmedExit(t *testing.T) {
	usage := syscall.Rusage{Utime: syscall.Timeval{Sec: 1}, Stime: syscall.Timeval{Usec: 2}, Maxrss: 3}
	before := time.Now()
	e := shimmed{PID: 7, Status: new(uint32(3 << 8)), Usage: usage}.exit()
	if !e.Status.Exited() || e.Status.ExitStatus() != 3 || e.Usage.Utime.Sec != 1 || e.Usage.Stime.Usec != 2 || e.Usage.Maxrss != 3 || e.Time.Before(before) {
		t.Errorf("exit is %+v", e)
	}
	if e := (shimmed{}).exit(); !e.Status.Signaled() || e.Status.Signal() != syscall.SIGKILL {
		t.Errorf("of a shim that told none: %+v", e)
	}
}

func TestShimWithoutProgram(t *testing.T) {
	for _, args := range [][]string{nil, {"/bin/true"}} {
		if code := Shim(args); code != 2 {
			t.Errorf("%q: %d", args, code)
		}
	}
}
