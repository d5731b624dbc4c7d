package docker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
)

// ExplainLoss adds the cause of a loss if the engine knows it. Removing the
// container kills it.
func (c *engineContainer) ExplainLoss(ctx context.Context, loss error) error {
	ctx, cancel := withDeadline(ctx, c.remote.loss)
	defer cancel()
	state, err := lastState(ctx, c)
	switch {
	case errors.Is(err, sandbox.ErrUnavailable):
		return fmt.Errorf("%w: the engine does not answer: %w", loss, err)
	case err != nil && !errors.Is(err, sandbox.ErrNotFound):
		return loss
	}
	end := lastEvents(ctx, c)
	switch {
	case state != nil && state.OOMKilled || end.outOfMemory && end.exitCode == "137":
		used := c.prep.Spec.Resources.MemoryBytes
		return fmt.Errorf("%w: the container ran out of memory: %w", loss, &limits.ExceededError{Kind: limits.KindMemory, Limit: used, Used: used})
	case state != nil && state.Running:
		return fmt.Errorf("%w: its guest broke the connection", loss)
	case end.exitCode != "":
		return fmt.Errorf("%w: the container ended with %s", loss, end.exitCode)
	}
	return fmt.Errorf("%w: the container is gone", loss)
}

// lastState waits until the container has stopped or is gone: the connection
// ends shortly before the engine records it. It returns ErrNotFound if the
// container is gone.
func lastState(ctx context.Context, c *engineContainer) (*container.State, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var state *container.State
	for {
		got, err := c.remote.inspectContainer(ctx, c.id)
		if err != nil && context.Cause(ctx) == nil {
			return nil, err
		}
		if err == nil && got.ContainerJSONBase != nil {
			state = got.State
			if state != nil && !state.Running {
				return state, nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if state == nil {
				return nil, classifyError(ctx, "inspect container", context.Cause(ctx))
			}
			return state, nil // still running
		}
	}
}

// ending is what the engine's events say about a container that is gone.
type ending struct {
	outOfMemory bool
	exitCode    string
}

// lateEvents bounds the wait for an out-of-memory event, which may come after
// the end's.
const lateEvents = 3 * time.Second

// lastEvents reads past events. The engine keeps a few hundred, even of removed
// containers. It waits for more only if SIGKILL ended the container or its end
// is unknown.
func lastEvents(ctx context.Context, c *engineContainer) ending {
	ctx, cancel := withDeadline(ctx, c.remote.loss)
	defer cancel()
	messages, errs := c.remote.engine.Events(ctx, events.ListOptions{
		Since: strconv.FormatInt(time.Now().Add(-time.Minute).Unix(), 10),
		Until: strconv.FormatInt(time.Now().Add(lateEvents).Unix(), 10),
		Filters: filters.NewArgs(filters.Arg("container", c.id),
			filters.Arg("event", string(events.ActionOOM)), filters.Arg("event", string(events.ActionDie))),
	})
	var end ending
	for {
		select {
		case m := <-messages:
			switch m.Action {
			case events.ActionOOM:
				end.outOfMemory = true
			case events.ActionDie:
				end.exitCode = m.Actor.Attributes["exitCode"]
			}
			if end.exitCode != "" && (end.outOfMemory || end.exitCode != "137") {
				return end
			}
		case <-errs: //nolint:errcheck // io.EOF at the end
			return end
		case <-ctx.Done():
			return end
		}
	}
}
