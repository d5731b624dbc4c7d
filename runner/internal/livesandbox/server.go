package livesandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

const (
	// serverLife stands for no timeout: it is longer than any session.
	serverLife = 365 * 24 * time.Hour
	// inputGrace is how long a server may take to end after its standard input.
	inputGrace = 2 * time.Second
)

var errStopped = errors.New("the server was stopped")

// Server is a long-lived program in the sandbox that does not belong to a call. Its standard
// input and output are pipes. It ends with the sandbox, and nothing else ends with it. It is
// safe for concurrent use.
type Server struct {
	stdin  *io.PipeWriter
	stdout *io.PipeReader
	cancel context.CancelCauseFunc
	done   chan struct{}
	exit   sandbox.Exit
	err    error
}

// StartServer starts a server, and the sandbox if necessary, and returns once it runs. ctx
// bounds only the start. configure returns the command, without input and output, for a
// sandbox with the attestation. stderr gets the server's standard error. ended is called
// when the server is over or could not start.
func (x *Executor) StartServer(ctx context.Context, configure func(sandbox.Attestation) (sandbox.Command, error), stderr io.Writer, ended func()) (*Server, error) {
	g, err := x.waitReady(ctx)
	if e, ok := errors.AsType[*tools.Error](err); ok && e.Reason == ReplacedReason {
		g, err = x.waitReady(ctx) // it was the first to meet the loss of the previous sandbox
	}
	if err != nil {
		ended()
		return nil, err
	}
	cmd, err := configure(g.sandbox.Attestation())
	if err != nil {
		ended()
		return nil, err
	}
	life, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	watched, unwatch := x.disk.WatchContext(life, g.bounds...)
	input, stdin := io.Pipe()
	stdout, output := io.Pipe()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, output, stderr
	cmd.Output, cmd.Timeout = sandbox.OutputLimits{Live: math.MaxInt64, Tail: 1}, serverLife
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	p, err := g.sandbox.Start(watched, cmd)
	if !stop() && err == nil {
		go func() { _, _ = p.Wait() }() // its context ends it
		err = context.Cause(ctx)
	}
	if err != nil {
		unwatch()
		cancel(nil)
		_ = input.Close()
		ended()
		return nil, fmt.Errorf("start server: %w", x.sandbox.checkLoss(g, err))
	}
	s := &Server{stdin: stdin, stdout: stdout, cancel: cancel, done: make(chan struct{})}
	x.servers.Go(func() {
		defer close(s.done)
		s.exit, s.err = x.waitWatched(p)
		cause := context.Cause(watched)
		unwatch()
		cancel(nil)
		_ = input.Close()
		_ = output.Close()
		ended()
		if full, ok := errors.AsType[*limits.ExceededError](cause); ok && s.err == nil {
			s.err = full
		}
		if left := s.exit.Kill.Left; left > 0 {
			x.opts.Log.Warn("processes of a server are left", zap.Int("left", left))
			_ = x.sandbox.retireSandbox(g, left) // the next call meets the result
		}
	})
	return s, nil
}

// WaitReady starts the sandbox if necessary, and waits until servers can start in it.
func (x *Executor) WaitReady(ctx context.Context) error {
	_, err := x.waitReady(ctx)
	return err
}

// Stdin returns the standard input.
func (s *Server) Stdin() io.WriteCloser { return s.stdin }

// Stdout returns the standard output.
func (s *Server) Stdout() io.Reader { return s.stdout }

// Wait waits for the server's end and returns why it ended: an *[ExitError], a
// *[limits.ExceededError] or the loss of the sandbox.
func (s *Server) Wait() error {
	<-s.done
	if s.err != nil {
		return s.err
	}
	if s.exit.Exceeded != nil {
		return s.exit.Exceeded
	}
	return &ExitError{s.exit.Status}
}

// Stop ends the server and all that it started: it closes standard input, then sends SIGTERM,
// then SIGKILL. It returns when all is gone or ctx ends; the server ends in either case.
func (s *Server) Stop(ctx context.Context) error {
	_ = s.stdin.Close()
	_ = s.stdout.CloseWithError(errStopped) // otherwise a blocked write could delay its end
	timer := time.NewTimer(inputGrace)
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
		s.cancel(errStopped)
	case <-ctx.Done():
		s.cancel(context.Cause(ctx))
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		return fmt.Errorf("stop server: %w", context.Cause(ctx))
	}
	if left := s.exit.Kill.Left; left > 0 {
		return fmt.Errorf("stop server: %d of its processes could not be killed", left)
	}
	return nil
}

// ExitError reports that a server ended on its own.
type ExitError struct{ Status sandbox.ExitStatus }

func (e *ExitError) Error() string { return e.Status.String() }
