package chat

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// pausableFile is a file whose reader can be held back, also while it waits.
type pausableFile struct {
	f *os.File
	// reading is held by who reads, or holds reading back, which wake interrupts. It
	// guards closed, after which f is not used.
	reading             sync.Mutex
	closed              bool
	wakeReader, wakeEnd *os.File
}

// newPausableFile returns nil if the reader of a file can't be held back.
func newPausableFile(f *os.File) *pausableFile {
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	return &pausableFile{f: f, wakeReader: r, wakeEnd: w}
}

// read reads what there is. It returns 0 bytes if nothing came within a wait that is not
// negative, or if reading was held back, and [os.ErrClosed] after close.
func (p *pausableFile) read(buf []byte, wait time.Duration) (int, error) {
	p.reading.Lock()
	defer p.reading.Unlock()
	if p.closed {
		return 0, os.ErrClosed
	}
	fds := []unix.PollFd{{Fd: int32(p.f.Fd()), Events: unix.POLLIN}, {Fd: int32(p.wakeReader.Fd()), Events: unix.POLLIN}} //nolint:gosec // descriptors are small
	limit := -1
	if wait >= 0 {
		limit = int(wait.Milliseconds())
	}
	switch n, err := unix.Poll(fds, limit); {
	case errors.Is(err, unix.EINTR), err == nil && n == 0, fds[1].Revents != 0:
		return 0, nil
	case err != nil:
		return 0, err
	}
	n, err := unix.Read(int(p.f.Fd()), buf)
	switch {
	case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		return 0, nil
	case n <= 0 && err == nil:
		return 0, io.EOF
	}
	return max(n, 0), err
}

// pause holds reading back until resume is called.
func (p *pausableFile) pause() (resume func()) {
	_, _ = p.wakeEnd.Write([]byte{0})
	p.reading.Lock()
	return func() {
		_, _ = p.wakeReader.Read(make([]byte, 1))
		p.reading.Unlock()
	}
}

// close ends reading. The file itself stays open.
func (p *pausableFile) close() {
	resume := p.pause()
	p.closed = true
	resume()
}
