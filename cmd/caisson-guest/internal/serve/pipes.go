package serve

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// pipes are a command's three descriptors, both sides.
type pipes struct {
	child                 [3]uintptr
	made                  []int // the child's sides that are ours to close
	stdin, stdout, stderr *os.File
}

func openPipes(null *os.File, stdin bool) (*pipes, error) {
	p := &pipes{}
	p.child[0] = null.Fd()
	var err error
	if stdin {
		p.stdin, err = p.open(0)
	}
	if err == nil {
		p.stdout, err = p.open(1)
	}
	if err == nil {
		p.stderr, err = p.open(2)
	}
	if err != nil {
		p.closeChild()
		p.close()
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	return p, nil
}

// open makes the pipe for the child's descriptor n. Our side does not block, so
// that the runtime's poller and not a thread waits for it; the child's does.
func (p *pipes) open(n int) (*os.File, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	child, ours := fds[1], fds[0]
	if n == 0 {
		child, ours = fds[0], fds[1]
	}
	if err := unix.SetNonblock(ours, true); err != nil {
		return nil, errors.Join(err, unix.Close(child), unix.Close(ours))
	}
	p.child[n] = uintptr(child)
	p.made = append(p.made, child)
	return os.NewFile(uintptr(ours), "pipe"), nil
}

func (p *pipes) closeChild() {
	for _, fd := range p.made {
		_ = unix.Close(fd)
	}
	p.made = nil
}

func (p *pipes) close() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}
