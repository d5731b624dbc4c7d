package boot

import (
	"os"
	"os/signal"
	"unsafe"

	"golang.org/x/sys/unix"
)

// faults are the signals of faults, which the Go runtime turns into panics.
var faults = []unix.Signal{unix.SIGILL, unix.SIGTRAP, unix.SIGBUS, unix.SIGFPE, unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSYS}

// lastSignal is the highest signal of Linux.
const lastSignal = 64

// ignoreSignals makes the guest survive every signal that a command of its own
// user can send. The kernel drops a signal to PID 1 from inside its namespace
// unless PID 1 handles it, and the Go runtime handles nearly all: some end the
// program. Those of faults get the default action back, which is dropped so; a
// real fault then ends the guest without a stack. All others are received and
// left alone. None is set to be ignored, because commands would inherit that.
func ignoreSignals() error {
	var others []os.Signal
	for n := unix.Signal(1); n <= lastSignal; n++ {
		if n != unix.SIGCHLD && n != unix.SIGURG { // of the wait loop and the scheduler
			others = append(others, n)
		}
	}
	for _, n := range faults {
		var action [4]uint64 // struct sigaction: SIG_DFL, no flags
		if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0); errno != 0 {
			return errno
		}
	}
	signal.Notify(make(chan os.Signal, 1), others...)
	return nil
}
