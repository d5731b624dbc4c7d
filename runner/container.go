package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

const (
	// maxRestarts is how often a container that died of its limits is replaced.
	maxRestarts = 3
	// destroyTime bounds taking a container down: above the 30 s after which
	// a guest that does not answer is given up.
	destroyTime = 60 * time.Second
	// reasonTime bounds the wait for a lost container's own account of it.
	reasonTime = 5 * time.Second
)

// errSlow is the cause of a clean-up or look that took too long.
var errSlow = errors.New("no answer in time")

// container is the session's one container through its lives. It is started in
// the background, by start or by the first call that needs it; calls wait for
// it. A start that fails is an error of the calls that need the container, and
// of nothing else. It is safe for concurrent use.
//
//	none ──start, running──▶ life 1 ──died of its limits──▶ life 2 ─▶ … at most maxRestarts
//	                            └──────lost otherwise──────▶ the run ends
type container struct {
	backend sandbox.Creator
	spec    sandbox.Spec
	// onStart is called once, with mu held, when the first life begins; it must
	// not wait. Nil does nothing.
	onStart func()
	// record writes a record; fail ends the run; phrase words a problem.
	record func(record.Payload) error
	fail   func(error)
	phrase func(record.Problem) record.Problem
	log    *zap.Logger
	// refuseLost refuses a container that lacks a protection.
	refuseLost bool
	// prepare, where it is set, completes the spec of each life; it may wait.
	prepare func(ctx context.Context, spec *sandbox.Spec)

	// making bounds Create; it ends when the session does.
	making context.Context
	stop   context.CancelCauseFunc
	starts sync.WaitGroup

	mu       sync.Mutex
	life     *life // nil while none has begun
	restarts int
	// waiting is the number of calls that wait for a life to be ready, usable
	// reports whether any life ever was: before, nothing can have run.
	waiting  int
	usable   bool
	attested *sandbox.Attestation
	left     []string
}

// life is one container, from the request for it on.
type life struct {
	number int           // from 0
	ready  chan struct{} // closed when box or err is set
	box    sandbox.Sandbox
	err    error
	once   sync.Once // its loss is handled once
	// taken says that it was taken down, or that this failed: to try again at once
	// would only take as long again, and the next sweep does.
	taken bool
	after error // what calls get after the loss
	// unguarded says that no command runs in it, and that its mounts protect nothing.
	unguarded bool
}

// startError is a sandbox that could not start.
type startError struct{ cause error }

// Error names the cause, without a hint.
func (e *startError) Error() string {
	if c, ok := errors.AsType[*Error](e.cause); ok {
		return fmt.Sprintf("%v: %s", tools.ErrSandboxStart, c.Cause)
	}
	return fmt.Sprintf("%v: %v", tools.ErrSandboxStart, e.cause)
}

// Unwrap returns tools.ErrSandboxStart and the cause.
func (e *startError) Unwrap() []error { return []error{tools.ErrSandboxStart, e.cause} }

func newContainer(ctx context.Context, backend sandbox.Creator, spec sandbox.Spec) *container {
	c := &container{backend: backend, spec: spec, log: zap.NewNop()}
	c.phrase = func(p record.Problem) record.Problem { return p }
	c.making, c.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	return c
}

// start begins to make the container, where that has not begun, and returns at once.
func (c *container) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.startLocked()
}

// startLocked is start for a caller that holds mu. It reports whether there is a
// life: after close, none begins.
func (c *container) startLocked() bool {
	if c.life == nil && c.making.Err() == nil {
		if c.onStart != nil {
			c.onStart()
		}
		c.life = c.begin(&life{})
	}
	return c.life != nil
}

// untouched reports whether nothing can have run in the container so far.
func (c *container) untouched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.usable
}

// begin makes one life; the caller holds mu.
func (c *container) begin(l *life) *life {
	l.ready = make(chan struct{})
	c.starts.Go(func() {
		defer close(l.ready)
		spec := c.spec
		spec.Workspace.Unguarded = l.unguarded
		if c.prepare != nil {
			c.prepare(c.making, &spec)
		}
		begun := time.Now()
		box, err := c.backend.Create(c.making, spec)
		if err == nil {
			l.box = box
			err = c.started(l, time.Since(begun))
		} else {
			err = &startError{err}
		}
		c.settled(l, err)
	})
	return l
}

// settled keeps how the start of a life ended. A failure is reported here only
// where no call waits to return it. One of the records ends the run.
func (c *container) settled(l *life, err error) {
	c.mu.Lock()
	l.err, c.usable = err, c.usable || err == nil
	tell := err != nil && c.waiting == 0 && c.making.Err() == nil
	if err != nil && l.box != nil {
		c.destroy(l)
	}
	c.mu.Unlock()
	switch {
	case errors.Is(err, tools.ErrRecord):
		c.fail(err)
	case tell:
		// A trace that can't be written is found again by the last record.
		_ = c.record(record.Warning{Message: "calls that need the sandbox will fail: " + (&Error{Problem: c.phrase(startProblem(err, otherSandboxHint))}).Error()})
	}
}

// started records the attestation of a life.
func (c *container) started(l *life, took time.Duration) error {
	att := l.box.Attestation()
	if !l.unguarded {
		c.mu.Lock()
		c.attested = &att
		c.mu.Unlock()
	}
	var p record.Payload = record.SandboxStarted{Attestation: att, StartMS: took.Milliseconds()}
	if l.number > 0 {
		p = record.SandboxRestarted{Restart: l.number, Attestation: att, StartMS: took.Milliseconds()}
	}
	if err := c.record(p); err != nil {
		return err
	}
	if c.refuseLost && !l.unguarded && len(att.Lost) > 0 {
		return &startError{fmt.Errorf("%w: it lacks protections, which is refused here (refuse_lost): %s", sandbox.ErrUnsupported, strings.Join(att.Lost, "; "))}
	}
	return nil
}

// running starts the container, where that has not begun, waits for it and
// returns its life.
func (c *container) running(ctx context.Context) (*life, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for sandbox: %w", context.Cause(ctx))
	}
	c.mu.Lock()
	if !c.startLocked() {
		c.mu.Unlock()
		return nil, fmt.Errorf("%w: the session has ended", tools.ErrSandboxLost)
	}
	l := c.life
	c.waiting++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.waiting--
	}()
	select {
	case <-l.ready:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for sandbox: %w", context.Cause(ctx))
	}
	if l.err != nil {
		return nil, l.err
	}
	select {
	case <-l.box.Done():
		return nil, c.lost(l, l.box.Err())
	default:
		return l, nil
	}
}

// settle waits until a life that was begun is ready or has failed, so that its
// attestation, or the warning, is recorded also where no call needed it.
func (c *container) settle(ctx context.Context) {
	c.mu.Lock()
	l := c.life
	c.mu.Unlock()
	if l == nil {
		return
	}
	select {
	case <-l.ready:
	case <-ctx.Done():
	}
}

// check turns the loss of a life into what a call reports; other errors, and
// nil, pass.
func (c *container) check(l *life, err error) error {
	if !errors.Is(err, sandbox.ErrLost) && !errors.Is(err, sandbox.ErrState) {
		return err
	}
	return c.lost(l, err)
}

// revive begins one more life after the run, for what must still be done inside.
func (c *container) revive() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := context.Cause(c.making); err != nil {
		return fmt.Errorf("%w: %w", tools.ErrSandboxLost, err)
	}
	c.restarts++
	c.life = c.begin(&life{number: c.restarts})
	return nil
}

// renew takes the container down when the turns are over and begins one more
// life, in which no command runs and nothing is protected from changes.
func (c *container) renew() error {
	c.mu.Lock()
	l := c.life
	c.mu.Unlock()
	<-l.ready
	if l.box != nil {
		l.once.Do(func() { l.after = c.unnoticed(l) }) // not under mu, as in close
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := context.Cause(c.making); err != nil {
		return fmt.Errorf("%w: %w", tools.ErrSandboxLost, err)
	}
	if l.box != nil {
		c.destroy(l)
	}
	c.restarts++
	c.life = c.begin(&life{number: c.restarts, unguarded: true})
	return nil
}

// destroy takes one life down and keeps what it could not remove. The caller
// holds mu.
func (c *container) destroy(l *life) {
	if l.taken {
		return
	}
	l.taken = true
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(c.making), destroyTime, errSlow)
	defer cancel()
	if err := l.box.Destroy(ctx); err != nil {
		c.log.Error("destroy sandbox", zap.String("container", l.box.ID()), zap.Error(err))
		c.left = append(c.left, err.Error())
	}
}

// kill takes the container down while calls run, because one of them does not
// end. What still runs in it, or is called later, meets its loss.
func (c *container) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life == nil {
		return
	}
	select {
	case <-c.life.ready:
		if c.life.box != nil {
			c.destroy(c.life)
		}
	default:
	}
}

// close ends the making, waits for it, and takes down what there is. It is
// idempotent and does not hurry commands: they are over, or are to be killed.
func (c *container) close() {
	c.mu.Lock()
	c.stop(errors.New("session ended"))
	c.mu.Unlock()
	c.starts.Wait() // from here on no other life begins
	c.mu.Lock()
	l := c.life
	c.mu.Unlock()
	if l == nil || l.box == nil {
		return
	}
	// Not under mu: a call that meets the loss holds the once and waits for mu.
	l.once.Do(func() { l.after = c.unnoticed(l) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.destroy(l)
}

// facts are what session.ended says about the container.
func (c *container) facts() (att *sandbox.Attestation, restarts int, left []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attested, c.restarts, c.left
}
