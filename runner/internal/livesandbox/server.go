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
	// serverLife is the timeout of a server: longer than a session.
	serverLife = 365 * 24 * time.Hour
	// inputGrace is how long a server may take to end once its standard input has.
	inputGrace = 2 * time.Second
)

// errStopped is the cause of the end of a server by Stop.
var errStopped = errors.New("the server was stopped")

// Server is a long-lived program in the sandbox that is no command of a call: its
// standard input and output are pipes. It ends with the sandbox, and its end is that of
// nothing else. It is safe for concurrent use.
type Server struct {
	stdin  *io.PipeWriter
	stdout *io.PipeReader
	cancel context.CancelCauseFunc
	done   chan struct{}
	exit   sandbox.Exit
	err    error
}

// StartServer starts a server in the sandbox that runs, or is just starting, and returns
// once it runs. ctx bounds the start alone. Configure returns the command for a sandbox
// with an attestation, without input and output. What the server writes to its standard
// error goes to stderr. ended is called when it is over, or was not started.
func (x *Executor) StartServer(ctx context.Context, configure func(sandbox.Attestation) (sandbox.Command, error), stderr io.Writer, ended func()) (*Server, error) {
	g, err := x.waitReady(ctx)
	if e, ok := errors.AsType[*tools.Error](err); ok && e.Reason == ReplacedReason {
		g, err = x.waitReady(ctx) // the first one to meet the end of the sandbox before
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
		go func() { _, _ = p.Wait() }() // it ends with its context
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
			_ = x.sandbox.retireSandbox(g, left) // who calls next meets what comes of it
		}
	})
	return s, nil
}

// WaitReady starts the sandbox unless that has begun, and waits until servers can start in
// it.
func (x *Executor) WaitReady(ctx context.Context) error {
	_, err := x.waitReady(ctx)
	return err
}

// Stdin returns the standard input.
func (s *Server) Stdin() io.WriteCloser { return s.stdin }

// Stdout returns the standard output.
func (s *Server) Stdout() io.Reader { return s.stdout }

// Wait waits for the end of the server, and returns why it ended: an *[ExitError], a
// *[limits.ExceededError], or the loss of its sandbox.
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

// Stop ends the server with everything that it started: by the end of its standard
// input, SIGTERM and SIGKILL, in this order. It returns when all of it is gone, or ctx
// ends; the server goes on to end then.
func (s *Server) Stop(ctx context.Context) error {
	_ = s.stdin.Close()
	_ = s.stdout.CloseWithError(errStopped) // or its writing could block its end
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

// ExitError is the end of a server by itself.
type ExitError struct{ Status sandbox.ExitStatus }

// Error describes the exit status.
func (e *ExitError) Error() string { return e.Status.String() }
