package livesandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

const maxServiceText = 1000

// serviceBounds is what the executor adds to the life of services.
type serviceBounds struct {
	// watchDisk returns a context that ends when the disk or a bound is full.
	watchDisk func(ctx context.Context, g *generation) (context.Context, func())
	// waitRecorded waits until the workspace is recorded.
	waitRecorded func(ctx context.Context) error
	redact       func(text string) string
}

// serviceSpec returns the service of a generation, or nil. It starts after the workspace is
// recorded, since it may change it. It ends if it fills the disk, and before the session
// looks for changes.
func (c *Sandbox) serviceSpec(g *generation) *sandbox.Service {
	if c.opts.Spec.Service == nil || g.unguarded || g.helper {
		return nil
	}
	s := *c.opts.Spec.Service
	s.Watch = func(ctx context.Context, a sandbox.Attestation) (context.Context, error) {
		if err := c.opts.checkLost(a); err != nil {
			return nil, err
		}
		if err := c.services.waitRecorded(ctx); err != nil {
			return nil, err
		}
		if err := g.openBounds(a); err != nil {
			return nil, err
		}
		life, end := context.WithCancelCause(context.WithoutCancel(ctx))
		watched, unwatch := c.services.watchDisk(life, g)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.noService {
			unwatch()
			end(errSessionEnd)
			return nil, errSessionEnd
		}
		g.serviceLife, g.endService, g.unwatchService = watched, end, unwatch
		return watched, nil
	}
	return &s
}

// followService waits for the service's end, and tells users and the model unless we ended
// it.
func (c *Sandbox) followService(g *generation) {
	if g.sandbox == nil || g.sandbox.Service() == nil {
		return
	}
	s := g.sandbox.Service()
	c.following.Go(func() {
		begun := time.Now()
		exit, err := s.Wait()
		cause := context.Cause(g.serviceLife)
		g.unwatchService()
		g.endService(nil)
		if err != nil || errors.Is(cause, errSessionEnd) {
			return // a loss is reported elsewhere
		}
		after := g.sandbox.Attestation().Service
		ran := time.Since(begun) + time.Duration(after.ReadyMS)*time.Millisecond
		end := fmt.Sprintf("ended with %s", exit.Status)
		if full, ok := errors.AsType[*limits.ExceededError](cause); ok {
			end = fmt.Sprintf("was stopped because the disk was full (%v)", full)
		}
		text := fmt.Sprintf("the service %q %s after %s and is not started again", after.Program, end, ran.Round(100*time.Millisecond))
		if output := lastOutput(c.services.redact(s.Output())); output != "" {
			text += fmt.Sprintf("; its last output: %q", output)
		}
		c.mu.Lock()
		g.notice = "Note: " + text + "."
		c.mu.Unlock()
		// If it can't be recorded, the last record can't either.
		_ = c.opts.Record(record.Warning{Message: text})
		if exit.Kill.Left > 0 {
			_ = c.retireSandbox(g, exit.Kill.Left) // the next call meets it
		}
	})
}

func lastOutput(text string) string {
	text = strings.TrimSpace(text)
	if n := len(text) - maxServiceText; n > 0 {
		text = "…" + strings.ToValidUTF8(text[n:], "")
	}
	return text
}

// takeNotice returns what the model has yet to be told about a generation.
func (c *Sandbox) takeNotice(g *generation) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := g.notice
	g.notice = ""
	return text
}

// endService ends the service and waits for it. None can start afterwards.
func (c *Sandbox) endService() {
	c.mu.Lock()
	c.noService = true
	g := c.current
	var end func(error)
	if g != nil {
		end = g.endService
	}
	c.mu.Unlock()
	if end == nil {
		return
	}
	end(errSessionEnd)
	<-g.ready // a start that waits for the service fails
	c.following.Wait()
}

// checkLost refuses a sandbox that lacks protections if RefuseLost is set.
func (o Options) checkLost(a sandbox.Attestation) error {
	if !o.RefuseLost || len(a.Lost) == 0 {
		return nil
	}
	return &StartError{fmt.Errorf("%w: it lacks protections, which is refused here (refuse_lost): %s", sandbox.ErrUnsupported, strings.Join(a.Lost, "; "))}
}
