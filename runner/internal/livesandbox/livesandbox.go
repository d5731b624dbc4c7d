// Package livesandbox keeps a session's sandbox alive and runs in it what tools and users
// request. It starts the sandbox on demand, replaces one that reached its limits, captures and
// spills output, runs background commands, and destroys everything at the end. It knows the
// session only by the functions in its options.
package livesandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/internal/diskwatch"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/shell"
)

// DestroyTime bounds the destruction of a sandbox. It exceeds the 30 s after which an
// unresponsive guest is given up.
const DestroyTime = 60 * time.Second

var errDestroySlow = errors.New("no answer in time")

// Options configures a [Sandbox]. Backend, Record and Fail are required.
type Options struct {
	Backend sandbox.Creator
	Spec    sandbox.Spec
	// RefuseLost refuses a sandbox that lacks a protection.
	RefuseLost bool
	// OnStart is called when the first generation begins. It must neither wait nor call the
	// sandbox. Nil does nothing.
	OnStart func()
	// Prepare completes the spec of each generation, and may wait. Nil does nothing.
	Prepare func(ctx context.Context, spec *sandbox.Spec)
	// Record writes a record, and Fail ends the session.
	Record func(record.Payload) error
	Fail   func(error)
	// Describe describes a failed start to users; nil uses the error's text.
	Describe func(error) string
	// Network connects commands to the network; nil for none. It is bound to each generation
	// that runs commands.
	Network Network
	// Touched reports that the workspace differs from the original directory before anything
	// has run in the sandbox, because the session is a fork.
	Touched bool
	// Copy reports that the workspace is a copy, whose changes are collected. With
	// Checkpoints, [Executor.StartCheckpoint] collects them too, and a sandbox lost for other
	// reasons than a limit is also replaced.
	Copy, Checkpoints bool
	// Log may be nil.
	Log *zap.Logger
}

// Network is the network of a session's commands.
type Network interface {
	// BindSandbox serves the connections of a new sandbox, and checks that they are its only
	// way out.
	BindSandbox(ctx context.Context, box sandbox.Sandbox) error
	// TrackCommand returns a function that takes the number of a call's command, and one that
	// returns the connections refused to it since the last call. The last call of that has
	// ended set, after the command's end.
	TrackCommand(callID, script string) (notify func(number int), refused func(ended bool) (refused []shell.Refused, allowed []string))
}

// Sandbox is a session's one sandbox through its generations. EnsureStarted or the first call
// that needs it starts it in the background, and calls wait for it. A failed start is only an
// error of the calls that need the sandbox. It is safe for concurrent use.
//
//	none ──first call──▶ generation 1 ──died of its limits──▶ generation 2 ─▶ … at most maxRestarts
//	                     └──────lost otherwise──────▶ the run ends
type Sandbox struct {
	opts Options

	// making bounds Create; it ends with the session.
	making context.Context
	stop   context.CancelCauseFunc
	starts sync.WaitGroup

	mu       sync.Mutex
	current  *generation // nil before the first
	restarts int
	// begun reports that a generation has begun. suspended counts the generations that
	// Suspend took down. paused is not nil while none may begin.
	begun     bool
	suspended int
	paused    chan struct{}
	// waiting is the number of calls that wait for a generation. usable reports whether any
	// generation ever was ready: before that, nothing can have run.
	waiting  int
	usable   bool
	attested *sandbox.Attestation
	left     []string
	// noService is set at the session's end: no service may start.
	noService bool

	services  serviceBounds
	following sync.WaitGroup

	copy *collector
}

// generation is one sandbox, from the request for it on.
type generation struct {
	number  int           // from 0
	ready   chan struct{} // closed when sandbox or err is set
	sandbox sandbox.Sandbox
	err     error
	once    sync.Once // to handle its loss once
	// taken reports that it was taken down, or that this failed: another try would take as
	// long again, and the next sweep does it.
	taken bool
	after error // the error for calls after the loss
	// unguarded reports that it runs no commands and that its mounts protect nothing.
	unguarded bool
	// helper reports that it only does what is left to do after the run.
	helper bool
	// serviceLife bounds the service and endService ends it. unwatchService must be called
	// once it has ended. All are nil without a service. notice is for the model.
	serviceLife    context.Context //nolint:containedctx // it outlives the start
	endService     context.CancelCauseFunc
	unwatchService func()
	notice         string
	// back describes the state that a copy is back to after the loss.
	back string
	// bounds are the size-bounded directories of commands, such as the home.
	bounds []*diskwatch.Bound
}

// openBounds opens the size-bounded directories of the sandbox, once.
func (g *generation) openBounds(a sandbox.Attestation) error {
	if len(g.bounds) > 0 {
		return nil
	}
	for _, m := range a.Mounts {
		if m.Type != sandbox.MountScratch {
			continue
		}
		b, err := diskwatch.NewBound(m.Target, m.Path, m.Bytes)
		if err != nil {
			return &StartError{fmt.Errorf("watch %s: %w", m.Target, err)}
		}
		g.bounds = append(g.bounds, b)
	}
	return nil
}

func (g *generation) closeBounds() {
	for _, b := range g.bounds {
		_ = b.Close()
	}
}

// StartError reports that a sandbox could not start.
type StartError struct{ Cause error }

func (e *StartError) Error() string {
	return fmt.Sprintf("%v: %v", tools.ErrSandboxStart, e.Cause)
}

func (e *StartError) Unwrap() []error { return []error{tools.ErrSandboxStart, e.Cause} }

// New returns a session's sandbox. Its starts get the values of ctx, but don't end with it.
func New(ctx context.Context, o Options) *Sandbox {
	if o.Describe == nil {
		o.Describe = error.Error
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	c := &Sandbox{opts: o, usable: o.Touched}
	c.making, c.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	c.copy = &collector{opts: o, making: c.making, findRunning: c.findRunning, collecting: make(chan struct{}, 1)}
	return c
}

// EnsureStarted starts the sandbox unless that has begun. It doesn't wait.
func (c *Sandbox) EnsureStarted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.startLocked()
}

// startLocked is EnsureStarted with mu held. It reports whether there is a generation: after
// StopAndDestroy, none begins.
func (c *Sandbox) startLocked() bool {
	if c.current == nil && c.paused == nil && c.making.Err() == nil {
		if !c.begun && c.opts.OnStart != nil {
			c.opts.OnStart()
		}
		c.begun = true
		c.current = c.startGeneration(&generation{})
	}
	return c.current != nil
}

// IsUntouched reports whether the workspace is still the original directory, because nothing
// can have run in the sandbox.
func (c *Sandbox) IsUntouched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.usable
}

// MarkTouched marks the workspace as changed before anything has run in the sandbox, since it
// has the changes of an earlier process of the session.
func (c *Sandbox) MarkTouched() {
	c.mu.Lock()
	c.usable = true
	c.mu.Unlock()
	c.copy.mu.Lock()
	defer c.copy.mu.Unlock()
	c.copy.any = true
}

// startGeneration starts a generation. The caller holds mu.
func (c *Sandbox) startGeneration(g *generation) *generation {
	g.number, g.ready = c.restarts+c.suspended, make(chan struct{})
	c.starts.Go(func() {
		defer close(g.ready)
		spec := c.opts.Spec
		spec.Workspace.Unguarded = g.unguarded
		if g.unguarded {
			spec.Egress = nil
		}
		spec.Service = c.serviceSpec(g)
		c.copy.waitCollected()
		if c.opts.Prepare != nil {
			c.opts.Prepare(c.making, &spec)
		}
		begun := time.Now()
		box, err := c.opts.Backend.Create(c.making, spec)
		if err == nil {
			g.sandbox = box
			if err = bindNetwork(c.making, c.opts.Network, spec, box); err == nil {
				err = errors.Join(c.recordStarted(g, time.Since(begun)), g.openBounds(box.Attestation()))
			}
			c.followService(g)
		} else {
			if g.endService != nil {
				g.unwatchService()
				g.endService(nil)
			}
			g.closeBounds()
			if failure, ok := errors.AsType[*sandbox.ServiceError](err); ok { // before the error's text is shortened
				failure.Output, failure.TestOutput = c.services.redact(failure.Output), c.services.redact(failure.TestOutput)
			}
			err = &StartError{err}
		}
		c.finishStart(g, err)
	})
	return g
}

func bindNetwork(ctx context.Context, n Network, spec sandbox.Spec, box sandbox.Sandbox) error {
	if spec.Egress == nil || n == nil {
		return nil
	}
	if err := n.BindSandbox(ctx, box); err != nil {
		return &StartError{err}
	}
	return nil
}

// finishStart records how the start of a generation ended. It reports a failure only if no
// call waits for it. If a record can't be written, the session fails.
func (c *Sandbox) finishStart(g *generation, err error) {
	c.mu.Lock()
	g.err, c.usable = err, c.usable || err == nil
	tell := err != nil && c.waiting == 0 && c.making.Err() == nil && !errors.Is(err, errSessionEnd)
	if err != nil && g.sandbox != nil {
		c.destroyGeneration(g)
	}
	c.mu.Unlock()
	switch {
	case errors.Is(err, tools.ErrRecord):
		c.opts.Fail(err)
	case tell:
		// If it can't be recorded, the last record can't either.
		_ = c.opts.Record(record.Warning{Message: "calls that need the sandbox will fail: " + c.opts.Describe(err)})
	}
}

func (c *Sandbox) recordStarted(g *generation, took time.Duration) error {
	att := g.sandbox.Attestation()
	if !g.unguarded {
		c.mu.Lock()
		c.attested = &att
		c.mu.Unlock()
	}
	var p record.Payload = record.SandboxStarted{Attestation: att, StartMS: took.Milliseconds()}
	if g.number > 0 {
		p = record.SandboxRestarted{Restart: g.number, Attestation: att, StartMS: took.Milliseconds()}
	}
	if err := c.opts.Record(p); err != nil {
		return err
	}
	if g.unguarded {
		return nil
	}
	return c.opts.checkLost(att)
}

// waitRunning starts the sandbox unless that has begun, waits for it and returns its
// generation.
func (c *Sandbox) waitRunning(ctx context.Context) (*generation, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for sandbox: %w", context.Cause(ctx))
	}
	if err := c.waitResumed(ctx); err != nil {
		return nil, err
	}
	if !c.startLocked() {
		c.mu.Unlock()
		return nil, errGone
	}
	g := c.current
	c.waiting++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.waiting--
	}()
	select {
	case <-g.ready:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for sandbox: %w", context.Cause(ctx))
	}
	if g.err != nil {
		return nil, g.err
	}
	if isClosed(g.sandbox.Done()) {
		return nil, c.handleLoss(g, g.sandbox.Err())
	}
	return g, nil
}

// WaitStarted waits until the started generation, if any, is ready or has failed, so that its
// attestation or warning is recorded even if no call needed it.
func (c *Sandbox) WaitStarted(ctx context.Context) {
	c.mu.Lock()
	g := c.current
	c.mu.Unlock()
	if g == nil {
		return
	}
	select {
	case <-g.ready:
	case <-ctx.Done():
	}
}

// startAgain starts a generation after the run, for remaining work inside.
func (c *Sandbox) startAgain() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := context.Cause(c.making); err != nil {
		return fmt.Errorf("%w: %w", tools.ErrSandboxLost, err)
	}
	c.restarts++
	c.current = c.startGeneration(&generation{helper: true})
	return nil
}

// StartUnguarded destroys the sandbox after the turns and starts a generation in which no
// command runs and nothing is protected.
func (c *Sandbox) StartUnguarded() error {
	c.mu.Lock()
	g := c.current
	c.mu.Unlock()
	<-g.ready
	if g.sandbox != nil {
		c.giveUp(g)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := context.Cause(c.making); err != nil {
		return fmt.Errorf("%w: %w", tools.ErrSandboxLost, err)
	}
	if g.sandbox != nil {
		c.destroyGeneration(g)
	}
	c.restarts++
	c.current = c.startGeneration(&generation{unguarded: true})
	return nil
}

// destroyGeneration destroys a generation and notes what it could not remove. The caller holds
// mu.
func (c *Sandbox) destroyGeneration(g *generation) {
	if g.taken {
		return
	}
	g.taken = true
	g.closeBounds()
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(c.making), DestroyTime, errDestroySlow)
	defer cancel()
	if err := g.sandbox.Destroy(ctx); err != nil {
		c.opts.Log.Error("destroy sandbox", zap.String("container", g.sandbox.ID()), zap.Error(err))
		c.left = append(c.left, err.Error())
	}
}

// KillCurrent destroys the sandbox because a call in it does not end. Calls that run in it, or
// come later, get its loss.
func (c *Sandbox) KillCurrent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g := c.current; g != nil && isClosed(g.ready) && g.sandbox != nil {
		c.destroyGeneration(g)
	}
}

// isClosed reports whether a channel on which nothing is sent is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// StopAndDestroy prevents further generations and takes down the current one. It may be called
// again. It does not wait for commands: they have ended, or are to be killed.
func (c *Sandbox) StopAndDestroy() {
	c.mu.Lock()
	c.stop(errors.New("session ended"))
	c.mu.Unlock()
	defer c.copy.endCheckpoints()
	c.starts.Wait() // from here on, no other generation begins
	c.mu.Lock()
	g := c.current
	c.mu.Unlock()
	if g == nil || g.sandbox == nil {
		return
	}
	c.giveUp(g)
	c.mu.Lock()
	c.destroyGeneration(g)
	c.mu.Unlock()
	c.following.Wait() // the service ends with the sandbox
}

// CloseOn destroys the sandbox when force, which may be nil, is closed. stop ends the wait
// for that.
func (c *Sandbox) CloseOn(force <-chan struct{}) (stop func()) {
	if force == nil {
		return func() {}
	}
	end, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-force:
			c.opts.Log.Warn("forced end: destroying the sandbox")
			c.StopAndDestroy()
		case <-end:
		}
	}()
	return func() {
		close(end)
		<-done
	}
}

// EndFacts returns the facts for session.ended.
func (c *Sandbox) EndFacts() (att *sandbox.Attestation, restarts int, left []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attested, c.restarts, c.left
}
