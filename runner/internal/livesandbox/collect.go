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

// CollectTime bounds one collection of a copy's changes.
const CollectTime = 10 * time.Minute

// collector collects the changes of a workspace that is a copy. Its mu may be locked while
// the sandbox's is held, but not the other way around.
type collector struct {
	opts Options
	// making ends with the session.
	making context.Context //nolint:containedctx // the sandbox's
	// findRunning returns the running sandbox, or nil.
	findRunning func() sandbox.Sandbox
	// collecting has one element while a collection runs or must not start.
	collecting chan struct{}

	mu sync.Mutex
	// uses counts the commands and changes of files that have begun, active the running
	// ones, and collected the ones that had ended before the last collection. overlapped
	// reports that others ran during it, and any that there was a collection.
	uses, active, collected int
	overlapped, any         bool

	// checkpoints waits for makeCheckpoints, which runs while running is set, and collects
	// once more if again is set. None begins once ended is set.
	checkpoints           sync.WaitGroup
	running, again, ended bool
	warned                bool
}

// beginUse counts a command or a change of files that begins. The caller calls done when it
// has ended; further calls do nothing.
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

// collectChanges collects the changes from the running sandbox, if any. It does not wait for
// a starting one, which has no changes yet and itself waits for the end of a collection.
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

// holdCollecting waits for the end of a collection, and prevents others until release.
func (c *collector) holdCollecting(ctx context.Context) (release func(), err error) {
	select {
	case c.collecting <- struct{}{}:
		return func() { <-c.collecting }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("collect changes: %w", context.Cause(ctx))
	}
}

// waitCollected waits for the end of a collection: a starting generation gets what was
// collected from the one before.
func (c *collector) waitCollected() {
	if release, err := c.holdCollecting(c.making); err == nil {
		release()
	}
}

// StartCheckpoint starts to collect a copy's changes, for a fresh sandbox after a loss, if
// something may have changed since the last collection. It does not wait. If a checkpoint is
// running, another follows it.
func (x *Executor) StartCheckpoint() {
	if c := x.sandbox; c.opts.Checkpoints {
		c.copy.startCheckpoint(c.opts.Spec.Service != nil || x.background.isRunning())
	}
}

// startCheckpoint implements [Executor.StartCheckpoint]. changing reports that something else
// than counted uses may change files.
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

// endCheckpoints prevents further checkpoints and waits for the running one.
func (c *collector) endCheckpoints() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.checkpoints.Wait()
}

// collectOrWarn collects the changes, and records the first failure. Omitted files are reported
// at the session's end, and the loss of the sandbox elsewhere.
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
		// If it can't be recorded, the last record can't either.
		_ = c.opts.Record(record.Warning{Message: "a fresh sandbox would lack the latest changes of the workspace: " + err.Error()})
	}
}

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

// Collect collects the changes of a copy from the running sandbox, if any.
func (c *Sandbox) Collect(ctx context.Context) error { return c.copy.collectChanges(ctx) }

func (c *Sandbox) findRunning() sandbox.Sandbox {
	c.mu.Lock()
	g := c.current
	c.mu.Unlock()
	if g == nil || !isClosed(g.ready) || g.err != nil {
		return nil
	}
	return g.sandbox
}

// tellBack has the next command tell the model about the workspace after a loss that only
// a user's command saw.
func (c *Sandbox) tellBack(g *generation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if g.back != "" && c.current != nil {
		c.current.notice = "Note: the sandbox was lost and replaced by a fresh one; " + g.back + "."
	}
}
