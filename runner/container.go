package runner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
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
// the background; calls wait for it. It is safe for concurrent use.
//
//	start ─▶ life 1 ──died of its limits──▶ life 2 ─▶ … at most maxRestarts
//	            └──────lost otherwise──────▶ the run ends
type container struct {
	backend sandbox.Backend
	spec    sandbox.Spec
	// record writes a record; fail ends the run.
	record func(Payload) error
	fail   func(error)
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
	life     *life
	restarts int
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

func newContainer(ctx context.Context, backend sandbox.Backend, spec sandbox.Spec) *container {
	c := &container{backend: backend, spec: spec, log: zap.NewNop()}
	c.making, c.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	return c
}

// start begins to make the container and returns at once.
func (c *container) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.life = c.begin(&life{})
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
			err = fmt.Errorf("%w: %w", tools.ErrSandboxStart, err)
		}
		if err != nil {
			l.err = err
			c.fail(err)
		}
	})
	return l
}

// started records the attestation of a life.
func (c *container) started(l *life, took time.Duration) error {
	att := l.box.Attestation()
	if !l.unguarded {
		c.mu.Lock()
		c.attested = &att
		c.mu.Unlock()
	}
	var p Payload = SandboxStarted{Attestation: att, StartMS: milliseconds(took)}
	if l.number > 0 {
		p = SandboxRestarted{Restart: l.number, Attestation: att, StartMS: milliseconds(took)}
	}
	if err := c.record(p); err != nil {
		return err
	}
	if c.refuseLost && !l.unguarded && len(att.Lost) > 0 {
		return fmt.Errorf("%w: %w: it lacks protections, which is refused here (refuse_lost): %s",
			tools.ErrSandboxStart, sandbox.ErrUnsupported, strings.Join(att.Lost, "; "))
	}
	return nil
}

// running waits for the container and gives its life.
func (c *container) running(ctx context.Context) (*life, error) {
	c.mu.Lock()
	l := c.life
	c.mu.Unlock()
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

// settle waits until the first life has begun or failed, so that its
// attestation is recorded also where no call needed it.
func (c *container) settle(ctx context.Context) {
	c.mu.Lock()
	l := c.life
	c.mu.Unlock()
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

// loss is why a life is over before its session is.
type loss struct {
	cause error
	text  string // for records
	limit *limits.ExceededError
	// again says that a fresh container may take its place, and tell what the
	// model is then told.
	again bool
	tell  string
}

// lost handles the loss of a life, once, and gives the error for the call that
// met it: one that the model is told where a fresh container takes its place,
// otherwise one that ends the run.
func (c *container) lost(l *life, err error) error {
	l.once.Do(func() {
		select {
		case <-l.box.Done():
			if own := l.box.Err(); own != nil {
				err = own
			}
		case <-time.After(reasonTime):
		}
		if err == nil { // destroyed by us, because a call would not end
			err = sandbox.ErrLost
		}
		l.after = c.replace(l, lossOf(err))
	})
	return l.after
}

func lossOf(err error) loss {
	exceeded, ofLimits := errors.AsType[*limits.ExceededError](err)
	if !ofLimits {
		return loss{cause: err, text: "the container or its guest went away"}
	}
	return loss{
		cause: err, text: "the container reached its limit: " + limitText(exceeded), limit: exceeded, again: true,
		tell: fmt.Sprintf("The sandbox reached its limit (%s) and was stopped, and this call with it. "+
			"A fresh one runs on the same workspace: files of the workspace are kept, /tmp and running programs are gone. "+
			"The call was not run again; do it in a way that needs less.", limitText(exceeded)),
	}
}

// retire ends a life in which processes were left that could not be killed:
// what can't be stopped may write beside the next command, and at any time.
func (c *container) retire(l *life, left int) error {
	l.once.Do(func() {
		l.after = c.replace(l, loss{
			cause: fmt.Errorf("%w: %d processes could not be killed", sandbox.ErrLost, left),
			text:  fmt.Sprintf("%d processes could not be killed", left), again: true,
			tell: "The sandbox was replaced by a fresh one on the same workspace, because a command before left processes in it that could not be killed. The call was not run.",
		})
	})
	return l.after
}

// replace takes a lost life down and begins the next one, where there may be one.
func (c *container) replace(l *life, why loss) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.making.Err() != nil { // we took it down ourselves
		return fmt.Errorf("%w: %w", tools.ErrSandboxLost, why.cause)
	}
	again := why.again && c.restarts < maxRestarts
	c.log.Warn("sandbox lost", zap.String("container", l.box.ID()), zap.Error(why.cause), zap.Bool("restarting", again))
	err := c.record(SandboxLost{Container: l.box.ID(), Cause: why.text, Limit: wireLimit(why.limit), Restarting: again})
	if err != nil {
		return err
	}
	c.destroy(l)
	if !again {
		// Not wrapped: a container lost for good is not the run's own limit.
		err := fmt.Errorf("%w: %s", tools.ErrSandboxLost, why.cause.Error())
		c.fail(err)
		return err
	}
	c.restarts++
	c.life = c.begin(&life{number: c.restarts})
	return &tools.Error{Class: tools.ErrorExecution, Reason: replacedReason, Visible: true, Err: why.cause, Message: why.tell}
}

// replacedReason is the reason of a call that met the end of a container which
// a fresh one replaces.
const replacedReason = "sandbox_replaced"

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

// limitText says a limit in its unit.
func limitText(e *limits.ExceededError) string {
	switch e.Kind {
	case limits.KindMemory:
		return fmt.Sprintf("memory, %d MiB", e.Limit>>20)
	case limits.KindPIDs:
		return fmt.Sprintf("%d processes and threads", e.Limit)
	}
	return fmt.Sprintf("%s %d", e.Kind, e.Limit)
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

// unnoticed records the loss of a container that no call met, and gives the
// error for a call that still comes.
func (c *container) unnoticed(l *life) error {
	gone := fmt.Errorf("%w: the session has ended", tools.ErrSandboxLost)
	select {
	case <-l.box.Done():
	default:
		return gone
	}
	cause := l.box.Err()
	if cause == nil {
		return gone // taken down by us
	}
	c.log.Warn("sandbox lost", zap.String("container", l.box.ID()), zap.Error(cause))
	why := lossOf(cause)
	// A trace that can't be written is found again by the last record.
	_ = c.record(SandboxLost{Container: l.box.ID(), Cause: why.text, Limit: wireLimit(why.limit)})
	return gone
}

// facts are what session.ended says about the container.
func (c *container) facts() (att *sandbox.Attestation, restarts int, left []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attested, c.restarts, c.left
}
