package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

func (c *engineContainer) Remove(ctx context.Context) error {
	if c.stream != nil {
		_ = c.stream.Close() // the engine kills what does not exit
	}
	id := c.id
	if id == "" {
		// The engine may have made it without us getting the answer.
		found, err := findOwned(ctx, c.remote, c.prep.Name, c.owns)
		if err != nil {
			return err
		}
		id = found
	}
	if id != "" {
		if err := removeContainer(ctx, c.remote, id); err != nil {
			return err
		}
	}
	if c.binds != nil {
		if err := c.binds.Close(); err != nil {
			return err
		}
	}
	return c.removeVolume(ctx)
}

// owns reports whether an owner and session from labels are ours.
func (c *engineContainer) owns(id ownership.Identity, session string) bool {
	self := c.backend.self
	return session == c.prep.Spec.Session && id.PID == self.PID && id.Start == self.Start
}

// findOwned returns the ID of the container with that name if ours accepts its
// labels' owner and session, otherwise "".
func findOwned(ctx context.Context, r *remote, name string, ours func(ownership.Identity, string) bool) (string, error) {
	found, err := r.inspectContainer(ctx, name)
	if errors.Is(err, sandbox.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if found.ContainerJSONBase == nil || found.Config == nil {
		return "", fmt.Errorf("look for container %s: %w: the engine's answer is incomplete", name, sandbox.ErrUnavailable)
	}
	id, session, err := ownership.FromLabels(found.Config.Labels)
	if err != nil || !ours(id, session) {
		return "", nil // someone else's
	}
	return found.ID, nil
}

// removeContainer kills and removes a container with its volumes, and waits
// until the engine no longer knows it. An engine's error is not final: it may
// already be removing the container because that has ended, and the two
// removals interfere (409, or 500 "directory not empty").
func removeContainer(ctx context.Context, r *remote, id string) error {
	ctx, cancel := withDeadline(ctx, r.remove)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var refused error
	for again := 0; ; again++ {
		if again%asks == 0 {
			refused = r.engine.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
			if refused == nil || errdefs.IsNotFound(refused) {
				return nil
			}
			if !isAnswer(ctx, refused) {
				return classifyError(ctx, "remove container", refused)
			}
		}
		if _, err := r.engine.ContainerInspect(ctx, id); errdefs.IsNotFound(err) {
			return nil
		} else if err != nil {
			return classifyError(ctx, "wait for the removal of container", errors.Join(err, refused))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return classifyError(ctx, "wait for the removal of container", errors.Join(context.Cause(ctx), refused))
		}
	}
}

// asks is how many inspections, in half a second, precede another removal
// request.
const asks = 25

// isAnswer reports whether an error came from a running engine.
func isAnswer(ctx context.Context, err error) bool {
	return context.Cause(ctx) == nil && !client.IsErrConnectionFailed(err)
}
