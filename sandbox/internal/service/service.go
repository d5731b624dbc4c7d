package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caisson-run/caisson/sandbox"
)

const (
	// lifeTime is the service's timeout as a command, longer than any session.
	lifeTime = 365 * 24 * time.Hour
	// settleTime is how long a service without a health check must run.
	settleTime = 250 * time.Millisecond
	// firstPause is the pause after the first test. Each pause is twice the
	// previous one, up to the start interval.
	firstPause = 100 * time.Millisecond
	// serviceGrace is the service's grace period. Its state goes with the
	// sandbox.
	serviceGrace = time.Second
	testGrace    = 100 * time.Millisecond
	// liveBytes bounds how much of the service's output is read while it runs.
	liveBytes = 64 << 20
)

// Options connects a service to its sandbox. Start and Life are required.
type Options struct {
	Start func(ctx context.Context, cmd sandbox.Command) (sandbox.Process, error)
	// Life ends the service.
	Life context.Context //nolint:containedctx // it outlives the call
	// Identities is the number of identities in the sandbox.
	Identities int
	// Notify, if not nil, gets the reason for the wait once the service has
	// started.
	Notify func(waiting string)
}

// Service is a started service. It implements sandbox.ServiceProcess.
type Service struct {
	plan     *Plan
	options  Options
	identity int
	begun    time.Time
	output   output
	attested sandbox.AttestedService

	ended context.Context //nolint:containedctx // ends with the service
	exit  sandbox.Exit    // final when ended has ended
	err   error
}

var _ sandbox.ServiceProcess = (*Service)(nil)

// Start starts a service and returns it once it is healthy. Cancelling ctx
// stops the start. After an error the service may still run: the caller must
// destroy the sandbox or end Options.Life.
func Start(ctx context.Context, p *Plan, o Options) (*Service, error) {
	s := &Service{plan: p, options: o, begun: time.Now()}
	if !p.spec.AsAgent && o.Identities > sandbox.ServiceIdentity {
		s.identity = sandbox.ServiceIdentity
	}
	limit := cmp.Or(p.spec.StartTime, sandbox.DefaultServiceTime)
	errSlow := fmt.Errorf("was not healthy within %s", limit)
	starting, cancel := context.WithTimeoutCause(ctx, limit, errSlow)
	defer cancel()
	if err := s.startProgram(starting); err != nil {
		return nil, err
	}
	tests, testOutput, err := s.waitHealthy(starting)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return nil, fmt.Errorf("start service: %w", context.Cause(ctx))
	case errors.Is(err, sandbox.ErrLost), errors.Is(err, sandbox.ErrInvalid):
		return nil, fmt.Errorf("start service: %w", err)
	default:
		return nil, &sandbox.ServiceError{Program: p.program(), Err: err, Output: s.Output(), TestOutput: testOutput}
	}
	s.attested = sandbox.AttestedService{
		Program: p.program(), ArgsSHA256: p.hashArgs(), Identity: s.identity, Healthy: tests > 0, Tests: tests, ReadyMS: time.Since(s.begun).Milliseconds(),
	}
	return s, nil
}

// Attestation describes the service.
func (s *Service) Attestation() sandbox.AttestedService { return s.attested }

// Done is closed when the service has ended.
func (s *Service) Done() <-chan struct{} { return s.ended.Done() }

// Wait waits for the service to end.
func (s *Service) Wait() (sandbox.Exit, error) {
	<-s.ended.Done()
	return s.exit, s.err
}

// Output returns the first and the last bytes that the service has written.
func (s *Service) Output() string { return s.output.String() }

func (s *Service) startProgram(ctx context.Context) error {
	life, end := context.WithCancelCause(s.options.Life)
	cancelled := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	cmd := s.plan.command(s.plan.argv, s.identity)
	cmd.Timeout, cmd.Grace, cmd.Output = lifeTime, serviceGrace, sandbox.OutputLimits{Live: liveBytes}
	cmd.Stdout, cmd.Stderr = &s.output, &s.output
	p, err := s.options.Start(life, cmd)
	if err != nil {
		end(nil)
		return fmt.Errorf("start service: %w", err)
	}
	cancelled() // waitHealthy watches ctx from here on
	ended, finish := context.WithCancelCause(context.Background())
	s.ended = ended
	go func() {
		s.exit, s.err = p.Wait()
		if s.err == nil {
			for _, stream := range []sandbox.Stream{s.exit.Stdout, s.exit.Stderr} {
				s.output.addEnd(stream.Total-stream.Live, stream.Tail)
			}
		}
		finish(s.endError(context.Cause(life)))
		end(nil)
	}()
	return nil
}

// endError returns why the service ended, for a failed start. cause is why it
// was stopped, or nil.
func (s *Service) endError(cause error) error {
	after := time.Since(s.begun).Round(10 * time.Millisecond)
	switch {
	case s.err != nil:
		return s.err
	case s.exit.Status.Cancelled && cause != nil:
		return fmt.Errorf("was stopped after %s: %w", after, cause)
	}
	return fmt.Errorf("ended with %s after %s", s.exit.Status, after)
}

// waitHealthy waits until a test has succeeded, and returns the number of
// tests. Tests run like Docker's, and sooner at the beginning: failures do not
// count until the start period and the first interval are over.
func (s *Service) waitHealthy(ctx context.Context) (tests int, testOutput string, err error) {
	check := s.plan.check
	if s.plan.test == nil {
		return 0, "", s.pauseFor(ctx, settleTime)
	}
	uncounted := max(check.StartPeriod, check.Interval)
	pause, failures := firstPause, 0
	for {
		since := time.Since(s.begun)
		text, failure, err := s.runTest(ctx)
		tests++
		if err != nil || failure == nil {
			return tests, text, err
		}
		next := check.Interval
		if since < uncounted {
			next = min(pause, check.StartInterval, max(uncounted-time.Since(s.begun), 0))
			pause = min(2*pause, check.StartInterval)
		} else if failures++; failures >= check.Retries {
			return tests, text, fmt.Errorf("failed %d tests of its health check, the last one with %w", failures, failure)
		}
		if tests == 1 && s.options.Notify != nil {
			s.options.Notify("waiting for the health check of its service")
		}
		if err := s.pauseFor(ctx, next); err != nil {
			return tests, text, err
		}
	}
}

// pauseFor waits for d. It returns an error if the service or ctx ends.
func (s *Service) pauseFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-s.ended.Done():
		return context.Cause(s.ended)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// runTest runs a test and returns its output and why it failed. An error ends
// the start: the service or ctx has ended, or commands can't be started.
func (s *Service) runTest(ctx context.Context) (text string, failure, err error) {
	own, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ended, func() { cancel(context.Cause(s.ended)) })()
	var out output
	cmd := s.plan.command(s.plan.test, s.identity)
	cmd.Timeout, cmd.Grace, cmd.Output = s.plan.check.Timeout, testGrace, sandbox.OutputLimits{Live: keptBytes, Tail: keptBytes}
	cmd.Stdout, cmd.Stderr = &out, &out
	var exit sandbox.Exit
	p, err := s.options.Start(own, cmd)
	if err == nil {
		exit, err = p.Wait()
	}
	if cause := context.Cause(own); cause != nil {
		return out.String(), nil, cause
	}
	if err != nil {
		return out.String(), nil, err
	}
	for _, stream := range []sandbox.Stream{exit.Stdout, exit.Stderr} {
		out.addEnd(stream.Total-stream.Live, stream.Tail)
	}
	switch {
	case exit.Kill.Left > 0:
		return out.String(), nil, fmt.Errorf("left %d processes of a test that could not be killed", exit.Kill.Left)
	case !exit.Status.Success():
		failure = errors.New(exit.Status.String())
	}
	return out.String(), failure, nil
}

// keptBytes is how many of an output's first and of its last bytes are kept.
const keptBytes = 4 << 10

// output keeps the first and last bytes written to it. It is safe for
// concurrent use, and Write never fails.
type output struct {
	mu         sync.Mutex
	head, tail []byte
	total      int64
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.total += int64(len(p))
	rest := p
	if room := keptBytes - len(o.head); room > 0 {
		n := min(room, len(rest))
		o.head, rest = append(o.head, rest[:n]...), rest[n:]
	}
	o.tail = append(o.tail, rest[max(0, len(rest)-keptBytes):]...)
	if n := len(o.tail) - keptBytes; n > 0 {
		o.tail = append(o.tail[:0], o.tail[n:]...)
	}
	return len(p), nil
}

// addEnd adds what the sandbox counted and kept beyond a stream's live bytes.
func (o *output) addEnd(missing int64, tail []byte) {
	if missing <= 0 {
		return
	}
	_, _ = o.Write(tail)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.total += missing - int64(len(tail))
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if omitted := o.total - int64(len(o.head)+len(o.tail)); omitted > 0 {
		return fmt.Sprintf("%s\n[%d bytes left out]\n%s", o.head, omitted, o.tail)
	}
	return string(o.head) + string(o.tail)
}
