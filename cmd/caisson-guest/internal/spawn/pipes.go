package spawn

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// pipes are the pipes of one child, both sides.
type pipes struct {
	ours  [3]*os.File // ours[0] is nil without a pipe for standard input
	files []uintptr   // the child's descriptors from 0 on
	made  []int       // those of them that are ours to close
}

// openPipes makes the pipes. They are made by the commands' identity: a pipe belongs
// to who made it, and a command opens its own again by /dev/stdout.
func (p *pipes) openPipes(null uintptr, stdin bool) error {
	p.files = []uintptr{null}
	for n := range p.ours {
		if n == 0 && !stdin {
			continue
		}
		if err := p.openOne(n); err != nil {
			p.closeChild()
			p.closeOurs()
			return fmt.Errorf("make pipe: %w", err)
		}
	}
	return nil
}

// openOne makes the pipe for the child's descriptor n. Our side does not block,
// so that the runtime's poller and not a thread waits for it; the child's does.
func (p *pipes) openOne(n int) error {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	child, ours := fds[1], fds[0]
	if n == 0 {
		child, ours = fds[0], fds[1]
		p.files = p.files[:0]
	}
	if err := unix.SetNonblock(ours, true); err != nil {
		return errors.Join(err, unix.Close(child), unix.Close(ours))
	}
	p.files = append(p.files, uintptr(child))
	p.made = append(p.made, child)
	p.ours[n] = os.NewFile(uintptr(ours), "pipe")
	return nil
}

// closeChild closes the child's sides, which the child has by now.
func (p *pipes) closeChild() {
	for _, fd := range p.made {
		_ = unix.Close(fd)
	}
	p.made = nil
}

func (p *pipes) closeOurs() {
	for _, f := range p.ours {
		_ = f.Close() // of nil it fails
	}
}
