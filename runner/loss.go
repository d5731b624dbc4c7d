package runner

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

// loss is why a generation is over before its session is.
type loss struct {
	cause error
	text  string // for records
	limit *limits.ExceededError
	// again is set if a fresh container may take its place; tell is then the
	// message to the model.
	again bool
	tell  string
}

// handleLoss handles the loss of a generation, once, and returns the error for the call that
// met it: one for the model if a fresh container takes its place, otherwise one
// that ends the run.
func (c *liveSandbox) handleLoss(l *generation, err error) error {
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
		l.after = c.replaceGeneration(l, lossOf(err))
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

// retireSandbox ends a generation in which processes were left that could not be killed:
// what can't be stopped may write beside the next command, and at any time.
func (c *liveSandbox) retireSandbox(l *generation, left int) error {
	l.once.Do(func() {
		l.after = c.replaceGeneration(l, loss{
			cause: fmt.Errorf("%w: %d processes could not be killed", sandbox.ErrLost, left),
			text:  fmt.Sprintf("%d processes could not be killed", left), again: true,
			tell: "The sandbox was replaced by a fresh one on the same workspace, because a command before left processes in it that could not be killed. The call was not run.",
		})
	})
	return l.after
}

// replaceGeneration takes a lost generation down and begins the next one, where there may be one.
func (c *liveSandbox) replaceGeneration(l *generation, why loss) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.making.Err() != nil { // we took it down ourselves
		return fmt.Errorf("%w: %w", tools.ErrSandboxLost, why.cause)
	}
	again := why.again && c.restarts < maxRestarts
	c.log.Warn("sandbox lost", zap.String("container", l.box.ID()), zap.Error(why.cause), zap.Bool("restarting", again))
	err := c.record(record.SandboxLost{Container: l.box.ID(), Cause: why.text, Limit: wireLimit(why.limit), Restarting: again})
	if err != nil {
		return err
	}
	c.destroyGeneration(l)
	if !again {
		// Not wrapped: a container lost for good is not the run's own limit.
		err := fmt.Errorf("%w: %s", tools.ErrSandboxLost, why.cause.Error())
		c.fail(err)
		return err
	}
	c.restarts++
	c.current = c.startGeneration(&generation{number: c.restarts})
	return &tools.Error{Class: tools.ErrorExecution, Reason: replacedReason, Visible: true, Err: why.cause, Message: why.tell}
}

// replacedReason is the reason of a call that met the end of a container which
// a fresh one replaces.
const replacedReason = "sandbox_replaced"

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

// recordUnnoticedLoss records the loss of a container that no call met, and returns the
// error for a call that still comes.
func (c *liveSandbox) recordUnnoticedLoss(l *generation) error {
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
	_ = c.record(record.SandboxLost{Container: l.box.ID(), Cause: why.text, Limit: wireLimit(why.limit)})
	return gone
}
