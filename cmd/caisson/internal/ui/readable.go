package ui

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// WaitReadable reports whether a file has input, or ends, within limit. It reads
// nothing.
func WaitReadable(f *os.File, limit time.Duration) bool {
	end := time.Now().Add(limit)
	for {
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(max(time.Until(end), 0)/time.Millisecond))
		if err == unix.EINTR { // from a system call
			continue
		}
		return err != nil || n > 0 // reading reports the error
	}
}
