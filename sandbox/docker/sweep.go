package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

// RemoveUnlisted removes the containers and volumes of dead owners, found by
// their labels.
func (d driver) RemoveUnlisted(ctx context.Context) ([]sandbox.Orphan, error) {
	r, _, err := d.backend.connect(ctx)
	if err != nil {
		return nil, err
	}
	containers, err := d.backend.sweepContainers(ctx, r)
	volumes, volumesErr := d.backend.sweepVolumes(ctx, r)
	return append(containers, volumes...), errors.Join(err, volumesErr)
}

// skeletonTime is the time for which an imported skeleton is kept. Making it
// again takes some 20 ms, and each change of the machine's programs makes a new
// one.
const skeletonTime = 24 * time.Hour

// Prune removes the images that Caisson made on the engine long ago and that no
// container uses.
func (d driver) Prune(ctx context.Context) error {
	r, _, err := d.backend.connect(ctx)
	if err != nil {
		return err
	}
	_, err = pruneSkeletons(ctx, r, skeletonTime)
	_, imagesErr := pruneImages(ctx, r, loadedTime)
	return errors.Join(err, imagesErr)
}

// pruneSkeletons removes skeletons that are older than unused, or that lost
// their name to another import of the same one, unless a container uses them.
// It returns their number. Another Caisson that is just about to use one
// imports it again.
func pruneSkeletons(ctx context.Context, r *remote, unused time.Duration) (int, error) {
	list, err := r.listSkeletons(ctx)
	if err != nil {
		return 0, err
	}
	removed := 0
	var errs []error
	for _, i := range list {
		if nameless := len(i.RepoTags) == 0 || i.RepoTags[0] == "<none>:<none>"; nameless || time.Since(time.Unix(i.Created, 0)) > unused {
			gone, err := r.removeImage(ctx, i.ID, true)
			if gone {
				removed++
			}
			errs = append(errs, err)
		}
	}
	return removed, errors.Join(errs...)
}

func (b *Backend) sweepContainers(ctx context.Context, r *remote) ([]sandbox.Orphan, error) {
	list, err := r.listContainers(ctx)
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	var left []sandbox.Orphan
	var errs []error
	for _, c := range list {
		id, session, err := ownership.FromLabels(c.Labels)
		if err != nil || !b.isOrphan(id, c.State, time.Unix(c.Created, 0)) {
			continue
		}
		if err := removeContainer(ctx, r, c.ID); err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", lifecycle.ContainerName(session), err))
			continue
		}
		left = append(left, sandbox.Orphan{Kind: string(ownership.KindContainer), Name: lifecycle.ContainerName(session), Session: session, Owner: id.String()})
	}
	return left, errors.Join(errs...)
}

// neverStarted is the longest time for which a live owner's container may wait
// for its start: far longer than the deadlines of all calls together.
const neverStarted = 10 * time.Minute

// isOrphan reports whether a container's owner is dead; or whether its fate is
// unknown and the container has been stopped for longer than its lease; or
// whether its owner never started it, because an engine that hung made it when
// no call waited any more.
func (b *Backend) isOrphan(id ownership.Identity, state container.ContainerState, created time.Time) bool {
	switch id.Fate(b.self.Instance) {
	case ownership.Dead:
		return true
	case ownership.Unknown:
		return state != container.StateRunning && id.Expired(time.Now())
	default:
		return state == container.StateCreated && time.Since(created) > neverStarted
	}
}

// RemoveEntry removes an entry of a cleanup list: a container or volume of that
// session whose labels have no living owner.
func (d driver) RemoveEntry(ctx context.Context, session string, entry ownership.Entry) (bool, error) {
	b := d.backend
	r, _, err := b.connect(ctx)
	if err != nil {
		return false, err
	}
	if entry.Kind == ownership.KindVolume && entry.Name == volumeName(session) {
		return removeVolume(ctx, r, entry.Name, func(id ownership.Identity, of string) bool { return of == session && b.isDeadOrOwn(id) })
	}
	if entry.Kind != ownership.KindContainer || entry.Name != lifecycle.ContainerName(session) {
		return false, fmt.Errorf("cleanup list names a %s %q, which this backend never makes: %w", entry.Kind, entry.Name, sandbox.ErrInvalid)
	}
	living := ""
	id, err := findOwned(ctx, r, entry.Name, func(id ownership.Identity, of string) bool {
		if of == session && !b.isDeadOrOwn(id) {
			living = id.String()
		}
		return of == session && living == ""
	})
	if err == nil && living != "" {
		// What the container still uses must stay too.
		err = fmt.Errorf("container %s is that of a process that lives, %s: %w", entry.Name, living, sandbox.ErrState)
	}
	if id == "" || err != nil {
		return false, err
	}
	return true, removeContainer(ctx, r, id)
}

// isDeadOrOwn also accepts this process's own containers: a session of its own
// that could not be destroyed has given up its cleanup list.
func (b *Backend) isDeadOrOwn(id ownership.Identity) bool {
	return id.Fate(b.self.Instance) == ownership.Dead || id.PID == b.self.PID && id.Start == b.self.Start && id.Boot == b.self.Boot
}
