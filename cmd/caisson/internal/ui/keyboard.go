package ui

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// KeyPressed drops what was typed at a terminal and not read, waits for a key, and
// reports whether one was pressed, which it drops too. Meanwhile the terminal neither
// collects lines nor echoes.
func KeyPressed(ctx context.Context, tty *os.File, wait time.Duration) (pressed bool, err error) {
	fd := int(tty.Fd())
	lines, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return false, nil //nolint:nilerr // no terminal: nothing is typed ahead
	}
	keys := *lines
	keys.Lflag &^= unix.ICANON | unix.ECHO
	keys.Cc[unix.VMIN], keys.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETSF, &keys); err != nil {
		return false, err
	}
	defer func() { // drops what was typed since
		err = errors.Join(err, unix.IoctlSetTermios(fd, unix.TCSETSF, lines))
	}()
	const step = 50 * time.Millisecond
	for until := time.Now().Add(wait); ctx.Err() == nil; {
		left := time.Until(until)
		if left <= 0 {
			return false, nil
		}
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // descriptors are small
		n, err := unix.Poll(ready, int(min(left, step).Milliseconds())+1)
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return false, err
		case n > 0 && ready[0].Revents&unix.POLLIN == 0: // hung up
			return false, nil
		case n > 0:
			return true, nil
		}
	}
	return false, context.Cause(ctx)
}

// SingleKeys returns a function that makes a terminal deliver keys as they are pressed, without
// echo, or lines as before. Keys still send signals.
func SingleKeys(tty *os.File) func(on bool) {
	var mu sync.Mutex
	var lines *unix.Termios // while it delivers keys
	return func(on bool) {
		mu.Lock()
		defer mu.Unlock()
		fd := int(tty.Fd())
		if !on {
			if lines != nil {
				_ = unix.IoctlSetTermios(fd, unix.TCSETS, lines) // the terminal may be gone
				lines = nil
			}
			return
		}
		now, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return // no terminal: lines
		}
		if lines == nil {
			lines = now
		}
		keys := *now
		keys.Lflag &^= unix.ICANON | unix.ECHO
		keys.Cc[unix.VMIN], keys.Cc[unix.VTIME] = 1, 0
		_ = unix.IoctlSetTermios(fd, unix.TCSETS, &keys) // or it stays with lines, which answer too
	}
}
