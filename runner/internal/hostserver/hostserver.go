// Package hostserver runs a server of tools on the host, outside any sandbox, if the operator
// has chosen so.
package hostserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/caisson-run/caisson/sandbox/programs"
)

const (
	// inputGrace is how long a server may take to end after its standard input, and termGrace
	// after SIGTERM.
	inputGrace = 2 * time.Second
	termGrace  = 3 * time.Second
)

// Process is a running server. It is safe for concurrent use.
type Process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.ReadCloser
	done   chan struct{}
	err    error
}

// Start starts a program, which [programs.Command] finds outside the writable directories. Its
// environment is env alone. Its standard error goes to stderr.
func Start(argv, env, writable []string, dir string, stderr io.Writer) (*Process, error) {
	cmd, err := programs.Command(context.Background(), env, writable, argv[0], argv[1:]...) // it outlives Start
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stderr = dir, stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = termGrace // its children could hold the pipes
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	output, write, err := os.Pipe() // Wait would close StdoutPipe before all is read
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	p.stdout, p.cmd.Stdout = output, write
	err = p.cmd.Start()
	_ = write.Close()
	if err != nil {
		_ = output.Close()
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
		killGroup(p.cmd, true) // whatever it left behind
		if p.err == nil {
			p.err = errors.New("exit code 0")
		}
	}()
	return p, nil
}

// Stdin returns the standard input.
func (p *Process) Stdin() io.WriteCloser { return p.stdin }

// Stdout returns the standard output.
func (p *Process) Stdout() io.Reader { return p.stdout }

// Wait waits for the server's end and returns why it ended.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Stop ends the server and its process group: it closes standard input, then sends SIGTERM,
// then SIGKILL. It returns when the server is gone or ctx ends.
func (p *Process) Stop(ctx context.Context) error {
	defer func() { _ = p.stdout.Close() }()
	_ = p.stdin.Close()
	for i, grace := range []time.Duration{inputGrace, termGrace} {
		timer := time.NewTimer(grace)
		select {
		case <-p.done:
			timer.Stop()
			return nil
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			killGroup(p.cmd, true)
			return fmt.Errorf("stop server: %w", context.Cause(ctx))
		}
		killGroup(p.cmd, i > 0)
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop server: %w", context.Cause(ctx))
	}
}

// killGroup sends SIGTERM, or SIGKILL if hard, to a program's process group.
func killGroup(cmd *exec.Cmd, hard bool) {
	signal := syscall.SIGTERM
	if hard {
		signal = syscall.SIGKILL
	}
	_ = syscall.Kill(-cmd.Process.Pid, signal) // it may be gone
}
