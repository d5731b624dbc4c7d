package serve

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/transfer"
)

// stopWait is how long a transfer may take to end once its streams are closed.
// Only one that hangs in the kernel (a stuck file system) should need longer.
const stopWait = 5 * time.Second

// stallTime is how long a transfer may stall while others wait for its thread.
const stallTime = 30 * time.Second

var errStalled = errors.New("the other end was too slow: no data moved while other transfers waited")

// transferPipe is a pipe of a transfer. Reading and writing end with errStalled
// once no byte has moved for the time stall and other transfers wait.
type transferPipe struct {
	file    *os.File
	waiting *atomic.Int32
	stall   time.Duration
}

func (s *Session) transferPipe(f *os.File) transferPipe {
	return transferPipe{f, &s.waiting, stallTime}
}

func (p transferPipe) Read(b []byte) (int, error) {
	for {
		_ = p.file.SetReadDeadline(time.Now().Add(p.stall)) // a pipe takes deadlines
		if n, err := p.file.Read(b); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if p.waiting.Load() > 0 {
			return 0, errStalled
		}
	}
}

func (p transferPipe) Write(b []byte) (written int, err error) {
	for {
		_ = p.file.SetWriteDeadline(time.Now().Add(p.stall))
		n, err := p.file.Write(b[written:])
		if written += n; !errors.Is(err, os.ErrDeadlineExceeded) {
			return written, err
		}
		if n == 0 && p.waiting.Load() > 0 {
			return written, errStalled
		}
	}
}

// isTransfer reports whether the guest itself runs the command.
func (c *command) isTransfer() bool {
	return c.request.Identity == 0 && c.request.Terminal == nil && transfer.IsCommand(c.s.o.Executable, toStrings(c.request.Argv))
}

// startTransfer starts a command of package transfer on a thread with the
// commands' identity. Only the guest has its pipes.
func (c *command) startTransfer() (p launch.Process, err error) {
	var files []*os.File
	pipe := func() (r, w *os.File) {
		r, w, pipeErr := os.Pipe()
		if err = errors.Join(err, pipeErr); pipeErr == nil {
			files = append(files, r, w)
		}
		return r, w
	}
	run := transfer.Command{
		Argv: toStrings(c.request.Argv), Dir: path.Join(c.s.o.Config.Workspace, string(c.request.Dir)),
		Stdin: strings.NewReader(""), Stop: c.ended,
	}
	var theirs []io.Closer
	if c.stdin != nil {
		var in *os.File
		in, p.Stdin = pipe()
		run.Stdin, theirs = c.s.transferPipe(in), append(theirs, in)
	}
	var out, errOut *os.File
	p.Stdout, out = pipe()
	p.Stderr, errOut = pipe()
	if err != nil {
		for _, f := range files {
			_ = f.Close() // only pipes
		}
		return p, fmt.Errorf("start transfer: %w", err)
	}
	run.Stdout, run.Stderr, theirs = c.s.transferPipe(out), c.s.transferPipe(errOut), append(theirs, out, errOut)
	exit := make(chan reap.Exit, 1)
	p.Exit, p.Release = exit, func() {}
	c.stopTransfer = func() {
		close(c.ended)
		for _, f := range theirs {
			_ = f.Close() // only pipes; this ends whatever waits for them
		}
	}
	go func() {
		status := 1
		begun := sync.OnceFunc(func() { c.s.waiting.Add(-1) })
		c.s.waiting.Add(1)
		c.s.o.Transfers.DoUnless(c.ended, func() { begun(); status = run.Run() })
		begun()
		for _, f := range theirs {
			_ = f.Close() // only pipes
		}
		exit <- reap.Exit{Time: time.Now(), Status: unix.WaitStatus(status << 8)}
	}()
	return p, nil
}

func (c *command) awaitTransfer(p launch.Process, timeout <-chan struct{}) ending {
	e := ending{}
	select {
	case e.exit = <-p.Exit:
		e.reaped = true
		return e
	case <-c.cancelled:
		e.cancelled = true
	case <-timeout:
		e.timedOut = true
	}
	c.stopTransfer()
	select {
	case e.exit = <-p.Exit:
		e.reaped = true
	case <-time.After(stopWait):
		e.report.Unreaped()
	}
	return e
}
