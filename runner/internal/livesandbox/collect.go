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

// copyState is what is known of a workspace that is a copy. The sandbox's mu guards it.
type copyState struct {
	// collecting has one element while changes are collected, or must not be.
	collecting chan struct{}
	// uses counts the commands and changes of files that have begun, of which active
	// run, and collected those that had ended before the last collection. overlapped
	// reports that others ran during it, and any that there was one.
	uses, active, collected int
	overlapped, any         bool

	// checkpoints waits for the goroutine of StartCheckpoint, which runs while running
	// is set, and collects once more if again is.
	checkpoints    sync.WaitGroup
	running, again bool
	warned         bool
}

// beginUse counts a command, or a change of files, that begins; done must be called
// when it has ended, and may be called again.
func (c *Sandbox) beginUse() (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.copy.uses++
	c.copy.active++
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.copy.active--
	})
}

// Collect collects the changes of a workspace that is a copy from the sandbox that
// runs. Without one there is nothing to collect.
func (c *Sandbox) Collect(ctx context.Context) error {
	release, err := c.holdCollecting(ctx)
	if err != nil {
		return err
	}
	defer release()
	return c.collectHeld(ctx)
}

// holdCollecting waits until nothing is collected, and lets nothing be before release
// is called.
func (c *Sandbox) holdCollecting(ctx context.Context) (release func(), err error) {
	select {
	case c.copy.collecting <- struct{}{}:
		return func() { <-c.copy.collecting }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("collect changes: %w", context.Cause(ctx))
	}
}

// collectHeld is Collect for a caller of holdCollecting. It does not wait for a
// generation that starts: that one waits until nothing is collected, and has no
// changes yet.
func (c *Sandbox) collectHeld(ctx context.Context) error {
	c.mu.Lock()
	g, ended := c.current, c.copy.uses-c.copy.active
	c.mu.Unlock()
	if g == nil {
		return nil
	}
	select {
	case <-g.ready:
	default:
		return nil
	}
	if g.err != nil {
		return nil // it did not start
	}
	err := g.sandbox.Collect(ctx)
	if err == nil || errors.As(err, new(*overlay.IncompleteError)) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.copy.any, c.copy.collected, c.copy.overlapped = true, ended, c.copy.uses != ended
	}
	return err
}

// waitCollected waits until nothing is collected. A generation that starts is sent
// what was collected from the one before.
func (c *Sandbox) waitCollected() {
	if release, err := c.holdCollecting(c.making); err == nil {
		release()
	}
}

// StartCheckpoint begins to collect the changes of a copy, so that a fresh sandbox has
// them after a loss, if something may have changed since the last time. It does not
// wait. While changes are being collected, it has them collected once more afterwards.
func (x *Executor) StartCheckpoint() {
	c := x.sandbox
	if !c.opts.Checkpoints {
		return
	}
	others := c.opts.Spec.Service != nil || x.background.isRunning()
	c.mu.Lock()
	defer c.mu.Unlock()
	changed := c.copy.collected != c.copy.uses || others
	switch {
	case !changed || c.making.Err() != nil:
	case c.copy.running:
		c.copy.again = true
	default:
		c.copy.running = true
		c.copy.checkpoints.Go(c.makeCheckpoints)
	}
}

// makeCheckpoints collects the changes as long as StartCheckpoint was called meanwhile.
func (c *Sandbox) makeCheckpoints() {
	for {
		ctx, cancel := context.WithTimeoutCause(c.making, CollectTime, errors.New("no answer in time"))
		err := c.Collect(ctx)
		cancel()
		c.warnCheckpoint(err)
		c.mu.Lock()
		if !c.copy.again {
			c.copy.running = false
			c.mu.Unlock()
			return
		}
		c.copy.again = false
		c.mu.Unlock()
	}
}

// warnCheckpoint records, once, that a checkpoint failed. What is left out of one is
// reported at the session's end, and the loss of the sandbox by itself.
func (c *Sandbox) warnCheckpoint(err error) {
	if err == nil || c.making.Err() != nil || errors.Is(err, sandbox.ErrLost) || errors.Is(err, sandbox.ErrState) || errors.As(err, new(*overlay.IncompleteError)) {
		return
	}
	c.opts.Log.Warn("make checkpoint", zap.Error(err))
	c.mu.Lock()
	warned := c.copy.warned
	c.copy.warned = true
	c.mu.Unlock()
	if !warned {
		// A trace that can't be written is found again by the last record.
		_ = c.opts.Record(record.Warning{Message: "a fresh sandbox would lack the latest changes of the workspace: " + err.Error()})
	}
}

// collectBefore collects the changes of a generation that is to be destroyed.
func (c *Sandbox) collectBefore() {
	if !c.opts.Copy {
		return
	}
	ctx, cancel := context.WithTimeoutCause(c.making, CollectTime, errors.New("no answer in time"))
	defer cancel()
	c.warnCheckpoint(c.Collect(ctx))
}

// describeWorkspace describes what a fresh sandbox has of the workspace; the caller
// holds mu.
func (c *Sandbox) describeWorkspace() string {
	lost := c.copy.uses - c.copy.collected
	of := "the last command or change of files"
	if lost > 1 {
		of = fmt.Sprintf("the last %d commands and changes of files", lost)
	}
	switch {
	case !c.opts.Copy:
		return "files of the workspace are kept"
	case !c.copy.any:
		return "files of the workspace are back to what they were when the session began: all changes since are lost"
	case lost == 0:
		return "files of the workspace are back to what they were after " + of
	case c.copy.overlapped:
		return fmt.Sprintf("files of the workspace are back to what they were while or before %s ran", of)
	}
	return fmt.Sprintf("files of the workspace are back to what they were before %s", of)
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
