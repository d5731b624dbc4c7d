package livesandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// CollectTime bounds one collection of the changes of a copy.
const CollectTime = 10 * time.Minute

// collector collects the changes of a workspace that is a copy. Its mu may be locked
// while that of the sandbox is held, not the other way around.
type collector struct {
	opts Options
	// making ends when the session does.
	making context.Context //nolint:containedctx // that of the sandbox
	// findRunning returns the sandbox that runs, or nil.
	findRunning func() sandbox.Sandbox
	// collecting has one element while changes are collected, or must not be.
	collecting chan struct{}

	mu sync.Mutex
	// uses counts the commands and changes of files that have begun, of which active
	// run, and collected those that had ended before the last collection. overlapped
	// reports that others ran during it, and any that there was one.
	uses, active, collected int
	overlapped, any         bool

	// checkpoints waits for the goroutine of startCheckpoint, which runs while running
	// is set, and collects once more if again is. None begins once ended is set.
	checkpoints           sync.WaitGroup
	running, again, ended bool
	warned                bool
}

// beginUse counts a command, or a change of files, that begins; done must be called
// when it has ended, and may be called again.
func (c *collector) beginUse() (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uses++
	c.active++
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.active--
	})
}

// collectChanges collects the changes from the sandbox that runs. Without one there is
// nothing to collect. It does not wait for one that starts: that waits until nothing is
// collected, and has no changes yet.
func (c *collector) collectChanges(ctx context.Context) error {
	release, err := c.holdCollecting(ctx)
	if err != nil {
		return err
	}
	defer release()
	c.mu.Lock()
	ended := c.uses - c.active
	c.mu.Unlock()
	from := c.findRunning()
	if from == nil {
		return nil
	}
	err = from.Collect(ctx)
	if err == nil || errors.As(err, new(*overlay.IncompleteError)) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.any, c.collected, c.overlapped = true, ended, c.uses != ended
	}
	return err
}

// holdCollecting waits until nothing is collected, and lets nothing be before release
// is called.
func (c *collector) holdCollecting(ctx context.Context) (release func(), err error) {
	select {
	case c.collecting <- struct{}{}:
		return func() { <-c.collecting }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("collect changes: %w", context.Cause(ctx))
	}
}

// waitCollected waits until nothing is collected. A generation that starts is sent
// what was collected from the one before.
func (c *collector) waitCollected() {
	if release, err := c.holdCollecting(c.making); err == nil {
		release()
	}
}

// StartCheckpoint begins to collect the changes of a copy, so that a fresh sandbox has
// them after a loss, if something may have changed since the last time. It does not
// wait. While changes are being collected, it has them collected once more afterwards.
func (x *Executor) StartCheckpoint() {
	if c := x.sandbox; c.opts.Checkpoints {
		c.copy.startCheckpoint(c.opts.Spec.Service != nil || x.background.isRunning())
	}
}

// startCheckpoint is StartCheckpoint; changing reports that something other than counted
// uses may change files.
func (c *collector) startCheckpoint(changing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.collected == c.uses && !changing || c.ended || c.making.Err() != nil:
	case c.running:
		c.again = true
	default:
		c.running = true
		c.checkpoints.Go(c.makeCheckpoints)
	}
}

// makeCheckpoints collects the changes as long as startCheckpoint was called meanwhile.
func (c *collector) makeCheckpoints() {
	for {
		c.collectOrWarn()
		c.mu.Lock()
		if !c.again {
			c.running = false
			c.mu.Unlock()
			return
		}
		c.again = false
		c.mu.Unlock()
	}
}

// endCheckpoints waits for the checkpoint that runs. The session has ended, and no other
// one begins.
func (c *collector) endCheckpoints() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.checkpoints.Wait()
}

// collectOrWarn collects the changes, and records, once, that this failed. What is left
// out is reported at the session's end, and the loss of the sandbox by itself.
func (c *collector) collectOrWarn() {
	ctx, cancel := context.WithTimeoutCause(c.making, CollectTime, errors.New("no answer in time"))
	defer cancel()
	err := c.collectChanges(ctx)
	if err == nil || c.making.Err() != nil || errors.Is(err, sandbox.ErrLost) || errors.Is(err, sandbox.ErrState) || errors.As(err, new(*overlay.IncompleteError)) {
		return
	}
	c.opts.Log.Warn("make checkpoint", zap.Error(err))
	c.mu.Lock()
	warned := c.warned
	c.warned = true
	c.mu.Unlock()
	if !warned {
		// A trace that can't be written is found again by the last record.
		_ = c.opts.Record(record.Warning{Message: "a fresh sandbox would lack the latest changes of the workspace: " + err.Error()})
	}
}

// describeWorkspace describes what a fresh sandbox has of the workspace.
func (c *collector) describeWorkspace() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	lost := c.uses - c.collected
	of := "the last command or change of files"
	if lost > 1 {
		of = fmt.Sprintf("the last %d commands and changes of files", lost)
	}
	switch {
	case !c.opts.Copy:
		return "files of the workspace are kept"
	case !c.any:
		return "files of the workspace are back to what they were when the session began: all changes since are lost"
	case lost == 0:
		return "files of the workspace are back to what they were after " + of
	case c.overlapped:
		return fmt.Sprintf("files of the workspace are back to what they were while or before %s ran", of)
	}
	return fmt.Sprintf("files of the workspace are back to what they were before %s", of)
}

// Collect collects the changes of a workspace that is a copy from the sandbox that
// runs. Without one there is nothing to collect.
func (c *Sandbox) Collect(ctx context.Context) error { return c.copy.collectChanges(ctx) }

// findRunning returns the sandbox that runs, or nil.
func findRunning(c *Sandbox) sandbox.Sandbox {
	c.mu.Lock()
	g := c.current
	c.mu.Unlock()
	if g == nil {
		return nil
	}
	select {
	case <-g.ready:
		if g.err == nil {
			return g.sandbox
		}
	default:
	}
	return nil
}

// tellBack lets the next command tell the model what the workspace is back to after
// the loss of a generation that a user's command met.
func (c *Sandbox) tellBack(g *generation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.back != "" && c.current != nil {
		c.current.notice = "Note: the sandbox was lost and replaced by a fresh one; " + g.back + "."
	}
}
