//go:build linux

package serve

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/launch"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/reap"
	"github.com/caisson-run/caisson/cmd/caisson-guest/internal/transfer"
)

// stopWait is how long a transfer may take to end once its streams are closed. Only a
// transfer that hangs in the kernel (a stuck file system) should need longer.
const stopWait = 5 * time.Second

// isTransfer reports whether the guest itself runs the command.
func (c *command) isTransfer() bool {
	return c.request.Identity == 0 && transfer.IsCommand(c.s.o.Executable, toStrings(c.request.Argv))
}

// startTransfer starts a command of package transfer on a thread with the identity of
// commands. Only the guest has its pipes.
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
		run.Stdin, theirs = in, append(theirs, in)
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
	run.Stdout, run.Stderr, theirs = out, errOut, append(theirs, out, errOut)
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
		c.s.o.Transfers.DoUnless(c.ended, func() { status = run.Run() })
		for _, f := range theirs {
			_ = f.Close() // only pipes
		}
		exit <- reap.Exit{Time: time.Now(), Status: unix.WaitStatus(status << 8)}
	}()
	return p, nil
}

// awaitTransfer waits for the end of a transfer.
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
