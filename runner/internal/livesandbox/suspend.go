package livesandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// Suspend takes the sandbox down and prevents a new one until resume is called, so that
// nothing uses the workspace. The next call that needs a sandbox then starts a fresh one.
// Running calls, such as users' commands, fail with a message that contains reason. The
// changes of a copy are collected first. It fails if some could not be, or if something of
// the sandbox is left; then resume is nil, and a new sandbox may start.
func (c *Sandbox) Suspend(ctx context.Context, reason string) (resume func(), err error) {
	c.mu.Lock()
	if c.making.Err() != nil || c.paused != nil {
		c.mu.Unlock()
		return nil, errGone
	}
	paused := make(chan struct{})
	c.paused = paused
	g := c.current
	c.mu.Unlock()
	unpause := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.paused = nil
		close(paused)
	}
	release, err := c.suspendGeneration(ctx, g, reason)
	if err != nil {
		unpause()
		return nil, err
	}
	return func() {
		release()
		unpause()
	}, nil
}

// suspendGeneration takes down g, which may be nil, and prevents collections until release.
func (c *Sandbox) suspendGeneration(ctx context.Context, g *generation, reason string) (release func(), err error) {
	if g == nil {
		return c.copy.holdCollecting(ctx)
	}
	<-g.ready
	if g.err != nil {
		return nil, g.err
	}
	if c.opts.Copy {
		if err := c.Collect(ctx); err != nil {
			return nil, err
		}
	}
	g.once.Do(func() { // not under mu, see giveUp
		c.recordUnnoticedLoss(g)
		g.after = &tools.Error{
			Class: tools.ErrorExecution, Reason: ReplacedReason, Visible: true, Err: sandbox.ErrLost,
			Message: "The sandbox was stopped, because " + reason + ", and this call with it. A fresh one starts with the next call.",
		}
	})
	// Only now: handling the loss may collect changes.
	if release, err = c.copy.holdCollecting(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	c.mu.Lock()
	before := len(c.left)
	c.destroyGeneration(g)
	left := c.left[before:]
	c.current = nil
	c.suspended++
	c.mu.Unlock()
	if len(left) > 0 {
		release()
		return nil, errors.New("the sandbox is not gone: " + strings.Join(left, "; "))
	}
	return release, nil
}

// waitResumed waits while the sandbox is suspended. It returns with mu held, except with an
// error.
func (c *Sandbox) waitResumed(ctx context.Context) error {
	for {
		c.mu.Lock()
		paused := c.paused
		if paused == nil {
			return nil
		}
		c.mu.Unlock()
		select {
		case <-paused:
		case <-ctx.Done():
			return fmt.Errorf("wait for sandbox: %w", context.Cause(ctx))
		}
	}
}
