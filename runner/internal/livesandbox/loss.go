package livesandbox

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

const (
	// maxRestarts bounds how often a sandbox is replaced.
	maxRestarts = 3
	// reasonTime bounds the wait for the reason of a loss.
	reasonTime = 5 * time.Second
	// ReplacedReason is the reason in the error of a call whose sandbox a fresh one replaces.
	ReplacedReason = "sandbox_replaced"
)

// loss is why a generation is over before its session.
type loss struct {
	cause error
	text  string // for records
	limit *limits.ExceededError
	// again is set if a fresh sandbox may replace it. tell is then the message to the model,
	// with %s for the state of the workspace.
	again bool
	tell  string
}

// checkLoss turns a loss into the error for a call. It returns other errors, and nil,
// unchanged.
func (c *Sandbox) checkLoss(g *generation, err error) error {
	if !errors.Is(err, sandbox.ErrLost) && !errors.Is(err, sandbox.ErrState) {
		return err
	}
	return c.handleLoss(g, err)
}

// handleLoss handles the loss of a generation once, and returns the error for the call that
// met it: for the model if a fresh sandbox takes over, otherwise one that ends the run.
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
		if err == nil { // KillCurrent destroyed it
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
	whose := "its limit"
	if exceeded.Job {
		whose = "the limit of the job that it runs in"
	}
	return loss{
		cause: err, text: fmt.Sprintf("the container reached %s: %s", whose, limitText(exceeded)), limit: exceeded, again: true,
		tell: fmt.Sprintf("The sandbox reached %s (%s) and was stopped, and this call with it. "+
			"A fresh one runs on the same workspace: %%s; /tmp and running programs are gone. "+
			"The call was not run again; do it in a way that needs less.", whose, limitText(exceeded)),
	}
}

// retireSandbox ends a generation in which processes survived being killed: they could write at
// any time, also beside the next command.
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

// replaceGeneration destroys a lost generation and starts the next one, if there may be one.
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
		// Not wrapped: the loss is not a limit of the run.
		cause := strings.TrimPrefix(why.cause.Error(), sandbox.ErrLost.Error()+": ")
		err := fmt.Errorf("%w: %s", tools.ErrSandboxLost, cause)
		c.opts.Fail(err)
		return err
	}
	c.restarts++
	c.current = nil
	if c.paused == nil { // otherwise the next call starts one
		c.current = c.startGeneration(&generation{})
	}
	return &tools.Error{Class: tools.ErrorExecution, Reason: ReplacedReason, Visible: true, Err: why.cause, Message: fmt.Sprintf(why.tell, back)}
}

func limitText(e *limits.ExceededError) string {
	switch e.Kind {
	case limits.KindMemory:
		return fmt.Sprintf("memory, %d MiB", e.Limit>>20)
	case limits.KindPIDs:
		return fmt.Sprintf("%d processes and threads", e.Limit)
	}
	return fmt.Sprintf("%s %d", e.Kind, e.Limit)
}

// errGone is the error of calls after the session's end.
var errGone = fmt.Errorf("%w: the session has ended", tools.ErrSandboxLost)

// recordUnnoticedLoss records the loss of a sandbox that no call met.
func (c *Sandbox) recordUnnoticedLoss(g *generation) {
	if !isClosed(g.sandbox.Done()) {
		return
	}
	cause := g.sandbox.Err()
	if cause == nil {
		return // taken down by us
	}
	c.opts.Log.Warn("sandbox lost", zap.String("container", g.sandbox.ID()), zap.Error(cause))
	why := lossOf(cause)
	// If it can't be recorded, the last record can't either.
	_ = c.opts.Record(record.SandboxLost{Container: g.sandbox.ID(), Cause: why.text, Limit: (*record.Limit)(why.limit)})
}

// giveUp gives a generation up at the end of a session. It must not be called under mu: a call
// that handles the loss holds the once and waits for mu.
func (c *Sandbox) giveUp(g *generation) {
	g.once.Do(func() {
		c.recordUnnoticedLoss(g)
		g.after = errGone
	})
}
