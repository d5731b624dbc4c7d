package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/sandbox/internal/workmount"
)

// localDriver is the engine's own volume driver, which passes its options to
// mount(2).
const localDriver = "local"

func volumeName(session string) string { return lifecycle.ContainerName(session) + "-work" }

// makeVolume creates the volume of an overlay that the engine has to mount. The
// engine mounts it while the container runs.
func (c *engineContainer) makeVolume(ctx context.Context) error {
	if c.prep.Mounts.Volume == nil {
		return nil
	}
	name := volumeName(c.prep.Spec.Session)
	ids, err := c.prep.Cleanup.Add(ownership.Entry{Kind: ownership.KindVolume, Name: name})
	if err != nil {
		return err
	}
	c.volume = ids[0]
	asked := volume.CreateOptions{
		Name: name, Driver: localDriver, Labels: c.backend.self.WithNewLease().Labels(c.prep.Spec.Session),
		DriverOpts: map[string]string{"type": "overlay", "device": "overlay", "o": c.prep.Mounts.Volume.Options},
	}
	made, err := c.remote.createVolume(ctx, asked)
	if err != nil {
		return err
	}
	// The engine returns an existing volume of that name.
	if made.Driver != asked.Driver || !maps.Equal(made.Options, asked.DriverOpts) || !maps.Equal(made.Labels, asked.Labels) {
		return fmt.Errorf("make volume %s: %w: the engine has another one of this name", name, sandbox.ErrUnavailable)
	}
	return nil
}

// checkVolume returns an error unless the engine mounted a volume's directories
// that we hold open. v may be nil.
func checkVolume(ctx context.Context, v *workmount.Volume, conn *guest.Conn) error {
	if v == nil {
		return nil
	}
	for _, flag := range []string{"nosuid", "nodev"} {
		if m := conn.Hello().Workspace; !lifecycle.IsGVisor(conn.Hello()) && !slices.Contains(m.Options, flag) {
			return fmt.Errorf("%w: the engine mounted the overlay without %s", sandbox.ErrUnavailable, flag)
		}
	}
	return v.Check(ctx, conn.View(), lifecycle.IsGVisor(conn.Hello()))
}

// cleanVolume mounts and unmounts the overlay once more, with a container that
// is removed at once, if its work directory contains something that only a
// mount removes. The user could never remove the layers otherwise.
func (c *engineContainer) cleanVolume(ctx context.Context) error {
	if c.prep.Mounts.Volume == nil || c.prep.Mounts.Volume.Clean() {
		return nil
	}
	made, err := c.remote.createContainer(ctx, c.asked)
	if err != nil {
		return err
	}
	err = errors.Join(c.remote.startContainer(ctx, made.ID), removeContainer(ctx, c.remote, made.ID))
	if err == nil && !c.prep.Mounts.Volume.Clean() {
		err = errors.New("its work directory can't be emptied")
	}
	return err
}

func (c *engineContainer) removeVolume(ctx context.Context) error {
	if c.volume == 0 {
		return nil
	}
	if err := c.cleanVolume(ctx); err != nil {
		// The next container on these layers makes up for it.
		c.prep.Log.Warn("the overlay's layers can't be removed by their owner yet", zap.Error(err))
	}
	_, err := removeVolume(ctx, c.remote, volumeName(c.prep.Spec.Session), c.owns)
	if err != nil {
		return err
	}
	err = c.prep.Cleanup.Forget(c.volume)
	c.volume = 0
	return err
}

// removeVolume removes the volume with that name if ours accepts its labels'
// owner and session. The engine may still be unmounting it from a container
// that has just gone.
func removeVolume(ctx context.Context, r *remote, name string, ours func(ownership.Identity, string) bool) (bool, error) {
	found, err := r.findVolume(ctx, name)
	if errors.Is(err, sandbox.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if id, session, err := ownership.FromLabels(found.Labels); err != nil || !ours(id, session) {
		return false, nil // someone else's
	}
	ctx, cancel := withDeadline(ctx, r.remove)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := r.engine.VolumeRemove(ctx, name, false)
		if err == nil || errdefs.IsNotFound(err) {
			return true, nil
		}
		if !isAnswer(ctx, err) || !errdefs.IsConflict(err) {
			return false, classifyError(ctx, "remove volume", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, classifyError(ctx, "wait for the release of volume "+name, errors.Join(context.Cause(ctx), err))
		}
	}
}

func (b *Backend) sweepVolumes(ctx context.Context, r *remote) ([]sandbox.Orphan, error) {
	list, err := r.listVolumes(ctx)
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	var left []sandbox.Orphan
	var errs []error
	for _, v := range list {
		id, session, err := ownership.FromLabels(v.Labels)
		if err != nil || v.Name != volumeName(session) || id.Fate(b.self.Instance) != ownership.Dead {
			continue
		}
		was, err := removeVolume(ctx, r, v.Name, func(ownership.Identity, string) bool { return true })
		if err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", v.Name, err))
		}
		if was {
			left = append(left, sandbox.Orphan{Kind: string(ownership.KindVolume), Name: v.Name, Session: session, Owner: id.String()})
		}
	}
	return left, errors.Join(errs...)
}

func (r *remote) createVolume(ctx context.Context, asked volume.CreateOptions) (volume.Volume, error) {
	return callToEnd(ctx, r.create, r.cancel, "make volume", func(ctx context.Context) (volume.Volume, error) {
		return r.engine.VolumeCreate(ctx, asked)
	})
}

func (r *remote) findVolume(ctx context.Context, name string) (volume.Volume, error) {
	return callWithin(ctx, r.ask, "look up volume "+name, func(ctx context.Context) (volume.Volume, error) {
		return r.engine.VolumeInspect(ctx, name)
	})
}

func (r *remote) listVolumes(ctx context.Context) ([]*volume.Volume, error) {
	return callWithin(ctx, r.ask, "list volumes", func(ctx context.Context) ([]*volume.Volume, error) {
		list, err := r.engine.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(filters.Arg("label", ownership.LabelSchema))})
		return list.Volumes, err
	})
}
