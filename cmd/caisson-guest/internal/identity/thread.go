package identity

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Dedicate runs f on a thread of its own. When f returns the thread ends,
// because f may have changed its state. It is never the process's main thread,
// whose credentials are the ones that /proc/PID shows.
func Dedicate(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		locked := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(locked)
			f()
		}()
		<-locked
		runtime.UnlockOSThread()
	}()
}
