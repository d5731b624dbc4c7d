// Package livesandbox keeps the sandbox of a session alive and runs in it what tools and
// users request: it starts the sandbox when the first call needs it, replaces one that
// reached its limits, captures and spills the output of commands, runs commands in the
// background, and destroys everything at the end. It knows its session by the functions
// in its options alone.
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

// DestroyTime bounds the destruction of a sandbox: above the 30 s after which a guest that
// does not answer is given up.
const DestroyTime = 60 * time.Second

// errDestroySlow is the cause of a destruction that took too long.
var errDestroySlow = errors.New("no answer in time")

// Options configures a [Sandbox]. Backend, Record and Fail are required.
type Options struct {
	Backend sandbox.Creator
	Spec    sandbox.Spec
	// RefuseLost refuses a sandbox that lacks a protection.
	RefuseLost bool
	// OnStart is called once when the first generation begins; it must neither wait
	// nor call the sandbox. Nil does nothing.
	OnStart func()
	// Prepare completes the spec of each generation; it may wait. Nil does nothing.
	Prepare func(ctx context.Context, spec *sandbox.Spec)
	// Record writes a record, and Fail ends the session.
	Record func(record.Payload) error
	Fail   func(error)
	// Describe describes a failed start to users; nil takes the error's text.
	Describe func(error) string
	// Network connects commands to the network, nil for none. It is bound to each
	// generation in which commands run.
	Network Network
	// Touched reports that the workspace shows more than the original directory
	// before anything has run in the sandbox: it is that of a fork.
	Touched bool
	// Copy reports that the workspace is a copy, whose changes are collected. With
	// Checkpoints that is also done by [Executor.StartCheckpoint], and a sandbox that
	// was lost for another reason than a limit is replaced too.
	Copy, Checkpoints bool
	// Log is nil for no log.
	Log *zap.Logger
}

// Network is the network of a session's commands.
type Network interface {
	// BindSandbox serves the connections of a sandbox that was just started, and checks
	// that they are the only way out of it.
	BindSandbox(ctx context.Context, box sandbox.Sandbox) error
	// TrackCommand returns the function that gets the number of a call's command, and
	// one that returns the connections that were refused to it since the last call.
	// The last call of the second one is that with ended, when the command is over.
	TrackCommand(callID, script string) (notify func(number int), refused func(ended bool) (refused []shell.Refused, allowed []string))
}

// Sandbox is the session's one sandbox through its generations. It is started in
// the background, by EnsureStarted or by the first call that needs it; calls wait for
// it. A start that fails is an error of the calls that need the sandbox, and
// of nothing else. It is safe for concurrent use.
//
//	none ──first call──▶ generation 1 ──died of its limits──▶ generation 2 ─▶ … at most maxRestarts
//	                     └──────lost otherwise──────▶ the run ends
type Sandbox struct {
	opts Options

	// making bounds Create; it ends when the session does.
	making context.Context
	stop   context.CancelCauseFunc
	starts sync.WaitGroup

	mu       sync.Mutex
	current  *generation // nil while none has begun
	restarts int
	// begun reports that a generation has begun, suspended counts those that
	// Suspend took down, and paused is not nil until it lets others begin.
	begun     bool
	suspended int
	paused    chan struct{}
	// waiting is the number of calls that wait for a generation to be ready, usable
	// reports whether any generation ever was: before, nothing can have run.
	waiting  int
	usable   bool
	attested *sandbox.Attestation
	left     []string
	// noService is set when the session ends: no service is started any more.
	noService bool

	services  serviceBounds
	following sync.WaitGroup // followService

	copy *collector
}

// generation is one sandbox, from the request for it on.
type generation struct {
	number  int           // from 0
	ready   chan struct{} // closed when sandbox or err is set
	sandbox sandbox.Sandbox
	err     error
	once    sync.Once // its loss is handled once
	// taken reports that it was taken down, or that this failed: to try again at once
	// would only take as long again, and the next sweep does.
	taken bool
	after error // what calls get after the loss
	// unguarded reports that no command runs in it, and that its mounts protect nothing.
	unguarded bool
	// helper reports that it only does what is left to do after the run.
	helper bool
	// serviceLife bounds the service, endService ends it, and unwatchService must be
	// called when it has ended; nil without one. notice is for the model.
	serviceLife    context.Context //nolint:containedctx // it outlives the start
	endService     context.CancelCauseFunc
	unwatchService func()
	notice         string
	// back names the state to which the workspace is back after the loss, if that is a copy.
	back string
	// bounds are the bounded directories of commands, such as the home.
	bounds []*diskwatch.Bound
}

// openBounds opens the bounded directories of the sandbox, unless it is done.
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
		_ = b.Close() // nothing is written to it
	}
}

// StartError is a sandbox that could not start.
type StartError struct{ Cause error }

// Error names the cause.
func (e *StartError) Error() string {
	return fmt.Sprintf("%v: %v", tools.ErrSandboxStart, e.Cause)
}

// Unwrap returns tools.ErrSandboxStart and the cause.
func (e *StartError) Unwrap() []error { return []error{tools.ErrSandboxStart, e.Cause} }

// New returns the sandbox of a session. Values of ctx are those of its
// starts; its end is not.
func New(ctx context.Context, o Options) *Sandbox {
	if o.Describe == nil {
		o.Describe = error.Error
	}
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	c := &Sandbox{opts: o, usable: o.Touched}
	c.making, c.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	c.copy = &collector{opts: o, making: c.making, findRunning: func() sandbox.Sandbox { return findRunning(c) }, collecting: make(chan struct{}, 1)}
	return c
}

// EnsureStarted begins to start the sandbox unless that has begun, and returns at
// once.
func (c *Sandbox) EnsureStarted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.startLocked()
}

// startLocked is EnsureStarted for a caller that holds mu. It reports whether there is a
// generation: after StopAndDestroy, none begins.
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

// IsUntouched reports whether the workspace still is the original directory: nothing
// can have run in the sandbox so far.
func (c *Sandbox) IsUntouched() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.usable
}

// MarkTouched makes the workspace count as changed before anything has run in the sandbox:
// it has the changes of an earlier process of the session.
func (c *Sandbox) MarkTouched() {
	c.mu.Lock()
	c.usable = true
	c.mu.Unlock()
	c.copy.mu.Lock()
	defer c.copy.mu.Unlock()
	c.copy.any = true
}

// startGeneration makes one generation; the caller holds mu.
func (c *Sandbox) startGeneration(g *generation) *generation {
	g.number, g.ready = c.restarts+c.suspended, make(chan struct{})
	c.starts.Go(func() {
		defer close(g.ready)
		spec := c.opts.Spec
		spec.Workspace.Unguarded = g.unguarded
		if g.unguarded { // no command runs in it
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
			if failure, ok := errors.AsType[*sandbox.ServiceError](err); ok { // before it is cut
				failure.Output, failure.TestOutput = c.services.redact(failure.Output), c.services.redact(failure.TestOutput)
			}
			err = &StartError{err}
		}
		c.finishStart(g, err)
	})
	return g
}

// bindNetwork binds the network of commands, nil for none, to a sandbox that was just
// started.
func bindNetwork(ctx context.Context, n Network, spec sandbox.Spec, box sandbox.Sandbox) error {
	if spec.Egress == nil || n == nil {
		return nil
	}
	if err := n.BindSandbox(ctx, box); err != nil {
		return &StartError{err}
	}
	return nil
}

// finishStart records how the start of a generation ended. A failure is reported here
// only if no call waits to return it. A record that can't be written ends the run.
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
		// A trace that can't be written is found again by the last record.
		_ = c.opts.Record(record.Warning{Message: "calls that need the sandbox will fail: " + c.opts.Describe(err)})
	}
}

// recordStarted records the attestation of a generation.
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

// waitRunning starts the sandbox unless that has begun, waits for it and
// returns its generation.
func (c *Sandbox) waitRunning(ctx context.Context) (*generation, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for sandbox: %w", context.Cause(ctx))
	}
	if err := c.waitResumed(ctx); err != nil {
		return nil, err
	}
	if !c.startLocked() {
		c.mu.Unlock()
		return nil, fmt.Errorf("%w: the session has ended", tools.ErrSandboxLost)
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
	select {
	case <-g.sandbox.Done():
		return nil, c.handleLoss(g, g.sandbox.Err())
	default:
		return g, nil
	}
}

// WaitStarted waits until a generation that was begun is ready or has failed, so that its
// attestation, or the warning, is recorded also where no call needed it.
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

// startAgain begins one more generation after the run, for what must still be done inside.
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

// StartUnguarded destroys the sandbox when the turns are over and begins one more
// generation, in which no command runs and nothing is protected from changes.
func (c *Sandbox) StartUnguarded() error {
	c.mu.Lock()
	g := c.current
	c.mu.Unlock()
	<-g.ready
	if g.sandbox != nil {
		g.once.Do(func() { g.after = c.recordUnnoticedLoss(g) }) // not under mu, as in StopAndDestroy
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

// destroyGeneration destroys one generation and keeps what it could not remove. The caller
// holds mu.
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

// KillCurrent destroys the sandbox while calls run, because one of them does not
// end. Calls that still run in it, or come later, meet its loss.
func (c *Sandbox) KillCurrent() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == nil {
		return
	}
	select {
	case <-c.current.ready:
		if c.current.sandbox != nil {
			c.destroyGeneration(c.current)
		}
	default:
	}
}

// StopAndDestroy ends the making, waits for it, and takes down what there is. It is
// idempotent and does not hurry commands: they are over, or are to be killed.
func (c *Sandbox) StopAndDestroy() {
	c.mu.Lock()
	c.stop(errors.New("session ended"))
	c.mu.Unlock()
	defer c.copy.endCheckpoints()
	c.starts.Wait() // from here on no other generation begins
	c.mu.Lock()
	g := c.current
	c.mu.Unlock()
	if g == nil || g.sandbox == nil {
		return
	}
	// Not under mu: a call that meets the loss holds the once and waits for mu.
	g.once.Do(func() { g.after = c.recordUnnoticedLoss(g) })
	c.mu.Lock()
	c.destroyGeneration(g)
	c.mu.Unlock()
	c.following.Wait() // the sandbox's end is that of its service
}

// CloseOn closes the sandbox when force is closed: the caller does not wait any
// longer. The function that it returns stops waiting for that; force may be nil.
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

// EndFacts returns the facts about the sandbox that session.ended contains.
func (c *Sandbox) EndFacts() (att *sandbox.Attestation, restarts int, left []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attested, c.restarts, c.left
}
