package livesandbox

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

const (
	// maxRestarts is how often a sandbox that died of its limits is replaced.
	maxRestarts = 3
	// reasonTime bounds the wait for the reason of a lost sandbox.
	reasonTime = 5 * time.Second
	// ReplacedReason is the reason of a call that met the end of a sandbox which
	// a fresh one replaces.
	ReplacedReason = "sandbox_replaced"
)

// loss is why a generation is over before its session is.
type loss struct {
	cause error
	text  string // for records
	limit *limits.ExceededError
	// again is set if a fresh sandbox may take its place; tell is then the
	// message to the model, with %s for what its workspace is like.
	again bool
	tell  string
}

// checkLoss turns the loss of a generation into what a call reports; other errors, and
// nil, pass.
func (c *Sandbox) checkLoss(g *generation, err error) error {
	if !errors.Is(err, sandbox.ErrLost) && !errors.Is(err, sandbox.ErrState) {
		return err
	}
	return c.handleLoss(g, err)
}

// handleLoss handles the loss of a generation, once, and returns the error for the call that
// met it: one for the model if a fresh sandbox takes its place, otherwise one
// that ends the run.
func (c *Sandbox) handleLoss(g *generation, err error) error {
	g.once.Do(func() {
		own := false
		select {
		case <-g.sandbox.Done():
			if loss := g.sandbox.Err(); loss != nil {
				err, own = loss, true
			}
		case <-time.After(reasonTime):
		}
		if err == nil { // destroyed by us, because a call would not end
			err = sandbox.ErrLost
		}
		c.copy.waitCollected() // a collection that still succeeds counts
		why := lossOf(err)
		if why.limit == nil && own && c.opts.Checkpoints {
			why.again = true
		}
		g.after = c.replaceGeneration(g, why)
	})
	return g.after
}

func lossOf(err error) loss {
	exceeded, ofLimits := errors.AsType[*limits.ExceededError](err)
	if !ofLimits {
		return loss{
			cause: err, text: "the container or its guest went away",
			tell: "The sandbox was lost, and this call with it. A fresh one runs: %s; /tmp and running programs are gone. The call was not run again.",
		}
	}
	return loss{
		cause: err, text: "the container reached its limit: " + limitText(exceeded), limit: exceeded, again: true,
		tell: fmt.Sprintf("The sandbox reached its limit (%s) and was stopped, and this call with it. "+
			"A fresh one runs on the same workspace: %%s; /tmp and running programs are gone. "+
			"The call was not run again; do it in a way that needs less.", limitText(exceeded)),
	}
}

// retireSandbox ends a generation in which processes were left that could not be killed:
// what can't be stopped may write beside the next command, and at any time.
func (c *Sandbox) retireSandbox(g *generation, left int) error {
	g.once.Do(func() {
		if c.opts.Copy {
			c.copy.collectOrWarn()
		}
		g.after = c.replaceGeneration(g, loss{
			cause: fmt.Errorf("%w: %d processes could not be killed", sandbox.ErrLost, left),
			text:  fmt.Sprintf("%d processes could not be killed", left), again: true,
			tell: "The sandbox was replaced by a fresh one on the same workspace, because a command before left processes in it that could not be killed: %s. The call was not run.",
		})
	})
	return g.after
}

// replaceGeneration destroys a lost generation and begins the next one if there may
// be one.
func (c *Sandbox) replaceGeneration(g *generation, why loss) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.making.Err() != nil { // we took it down ourselves
		return fmt.Errorf("%w: %w", tools.ErrSandboxLost, why.cause)
	}
	again := why.again && c.restarts < maxRestarts
	c.opts.Log.Warn("sandbox lost", zap.String("container", g.sandbox.ID()), zap.Error(why.cause), zap.Bool("restarting", again))
	back := c.copy.describeWorkspace()
	if c.opts.Copy && again {
		g.back = back
	}
	err := c.opts.Record(record.SandboxLost{Container: g.sandbox.ID(), Cause: why.text, Limit: (*record.Limit)(why.limit), Restarting: again, Workspace: g.back})
	if err != nil {
		return err
	}
	c.destroyGeneration(g)
	if !again {
		// Not wrapped: a sandbox lost for good is not the run's own limit.
		err := fmt.Errorf("%w: %s", tools.ErrSandboxLost, why.cause.Error())
		c.opts.Fail(err)
		return err
	}
	c.restarts++
	c.current = nil
	if c.paused == nil { // or else the next call begins one
		c.current = c.startGeneration(&generation{})
	}
	return &tools.Error{Class: tools.ErrorExecution, Reason: ReplacedReason, Visible: true, Err: why.cause, Message: fmt.Sprintf(why.tell, back)}
}

// limitText returns a limit with its unit.
func limitText(e *limits.ExceededError) string {
	switch e.Kind {
	case limits.KindMemory:
		return fmt.Sprintf("memory, %d MiB", e.Limit>>20)
	case limits.KindPIDs:
		return fmt.Sprintf("%d processes and threads", e.Limit)
	}
	return fmt.Sprintf("%s %d", e.Kind, e.Limit)
}

// recordUnnoticedLoss records the loss of a sandbox that no call met, and returns the
// error for a call that still comes.
func (c *Sandbox) recordUnnoticedLoss(g *generation) error {
	gone := fmt.Errorf("%w: the session has ended", tools.ErrSandboxLost)
	select {
	case <-g.sandbox.Done():
	default:
		return gone
	}
	cause := g.sandbox.Err()
	if cause == nil {
		return gone // taken down by us
	}
	c.opts.Log.Warn("sandbox lost", zap.String("container", g.sandbox.ID()), zap.Error(cause))
	why := lossOf(cause)
	// A trace that can't be written is found again by the last record.
	_ = c.opts.Record(record.SandboxLost{Container: g.sandbox.ID(), Cause: why.text, Limit: (*record.Limit)(why.limit)})
	return gone
}
