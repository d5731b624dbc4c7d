package ui

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// KeyPressed drops unread input of a terminal, waits for a key, and reports whether one
// was pressed. It drops the key too. Meanwhile the terminal neither collects lines nor
// echoes.
func KeyPressed(ctx context.Context, tty *os.File, wait time.Duration) (pressed bool, err error) {
	fd := int(tty.Fd())
	lines, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return false, nil //nolint:nilerr // without a terminal nothing is typed ahead
	}
	if err := unix.IoctlSetTermios(fd, unix.TCSETSF, singleKeys(lines)); err != nil {
		return false, err
	}
	defer func() { // this drops what was typed since
		err = errors.Join(err, unix.IoctlSetTermios(fd, unix.TCSETSF, lines))
	}()
	return awaitKey(ctx, fd, wait)
}

// singleKeys returns the mode for single keys without echo.
func singleKeys(mode *unix.Termios) *unix.Termios {
	keys := *mode
	keys.Lflag &^= unix.ICANON | unix.ECHO
	keys.Cc[unix.VMIN], keys.Cc[unix.VTIME] = 1, 0
	return &keys
}

// TerminalKeys switches a terminal between lines, single keys without echo that still
// send signals, and raw keys.
type TerminalKeys struct {
	tty   *os.File
	mu    sync.Mutex
	lines *unix.Termios // nil unless it delivers keys
}

// NewTerminalKeys returns the keys of a terminal that delivers lines now.
func NewTerminalKeys(tty *os.File) *TerminalKeys { return &TerminalKeys{tty: tty} }

// SetSingle makes the terminal deliver keys or lines.
func (k *TerminalKeys) SetSingle(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fd := int(k.tty.Fd())
	if !on {
		if k.lines != nil {
			_ = unix.IoctlSetTermios(fd, unix.TCSETS, k.lines) // the terminal may be gone
			k.lines = nil
		}
		return
	}
	now, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return // it is no terminal
	}
	if k.lines == nil {
		k.lines = now
	}
	_ = unix.IoctlSetTermios(fd, unix.TCSETS, singleKeys(now)) // otherwise it keeps delivering lines, which answer too
}

// SetRaw makes the terminal deliver every key, control characters included, and
// show what is written to it unchanged. SetSingle(false) ends that.
func (k *TerminalKeys) SetRaw() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	fd := int(k.tty.Fd())
	lines, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return err
	}
	if _, err := term.MakeRaw(fd); err != nil {
		return err
	}
	if k.lines == nil {
		k.lines = lines
	}
	return nil
}

// Typed returns the next typed text, or "" after wait.
func (k *TerminalKeys) Typed(ctx context.Context, wait time.Duration) (string, error) {
	fd := int(k.tty.Fd())
	if ready, err := awaitKey(ctx, fd, wait); err != nil || !ready {
		return "", err
	}
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	return string(buf[:max(n, 0)]), err
}

// awaitKey waits for a key and reports whether there is one to read.
func awaitKey(ctx context.Context, fd int, wait time.Duration) (bool, error) {
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
		case n > 0: // without input, the terminal hung up
			return ready[0].Revents&unix.POLLIN != 0, nil
		}
	}
	return false, context.Cause(ctx)
}
