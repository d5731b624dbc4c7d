package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/owner"
)

// Sweep removes the containers of dead owners, found by their labels, and then
// what else the journals of dead sessions name; see sandbox.Backend.
func (b *Backend) Sweep(ctx context.Context) ([]sandbox.Leftover, error) {
	r, _, err := b.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	left, listErr := b.sweepContainers(ctx, r)
	volumes, volumesErr := b.sweepVolumes(ctx, r)
	left = append(left, volumes...)
	more, err := owner.Sweep(ctx, owner.SweepOptions{
		StateDir: b.options.StateDir, Backend: Name, Instance: b.self.Instance,
		Undo: func(ctx context.Context, session string, entry owner.Entry) (bool, error) {
			return b.undo(ctx, r, session, entry)
		},
	})
	return append(left, more...), errors.Join(listErr, volumesErr, err, pruneOld(ctx, r))
}

// skeletonTime is how long an imported skeleton is kept. Making it again takes
// some 20 ms, and each change of the machine's programs makes a new one.
const skeletonTime = 24 * time.Hour

// pruneOld removes the images that Caisson made on the engine long ago and that
// no container uses.
func pruneOld(ctx context.Context, r *remote) error {
	_, err := pruneSkeletons(ctx, r, skeletonTime)
	_, imagesErr := pruneImages(ctx, r, loadedTime)
	return errors.Join(err, imagesErr)
}

// pruneSkeletons removes skeletons that are older than unused, or that lost
// their name to another import of the same, unless a container uses them. It
// gives how many. A sibling that is just about to use one imports it again.
func pruneSkeletons(ctx context.Context, r *remote, unused time.Duration) (int, error) {
	list, err := r.skeletons(ctx)
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

// Pending says whether sessions of this backend left notes below the state
// folder, so that a Sweep is worth asking the engine, also where another backend
// is in use. It asks no engine.
func Pending(stateDir string) bool { return owner.Pending(stateDir, Name) }

func (b *Backend) sweepContainers(ctx context.Context, r *remote) ([]sandbox.Leftover, error) {
	list, err := r.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	var left []sandbox.Leftover
	var errs []error
	for _, c := range list {
		id, session, err := owner.FromLabels(c.Labels)
		if err != nil || !b.abandoned(id, c.State, time.Unix(c.Created, 0)) {
			continue
		}
		if err := removeContainer(ctx, r, c.ID); err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", containerName(session), err))
			continue
		}
		left = append(left, sandbox.Leftover{Kind: string(owner.KindContainer), Name: containerName(session), Session: session, Owner: id.String()})
	}
	return left, errors.Join(errs...)
}

// neverStarted is how long a live owner's container may wait for its start: far
// longer than the deadlines of all calls together.
const neverStarted = 10 * time.Minute

// abandoned says that a container's owner is dead, or that nobody can tell and
// the container has been stopped for longer than its lease; or that its owner
// never started it: an engine that hung made it when nobody waited any more.
func (b *Backend) abandoned(id owner.Identity, state container.ContainerState, created time.Time) bool {
	switch id.Fate(b.self.Instance) {
	case owner.Dead:
		return true
	case owner.Unknown:
		return state != container.StateRunning && id.Expired(time.Now())
	default:
		return state == container.StateCreated && time.Since(created) > neverStarted
	}
}

// undo removes what a journal names: a container of that session whose labels
// name no living owner.
func (b *Backend) undo(ctx context.Context, r *remote, session string, entry owner.Entry) (bool, error) {
	if entry.Kind == owner.KindVolume && entry.Name == volumeName(session) {
		return removeVolume(ctx, r, entry.Name, func(id owner.Identity, of string) bool { return of == session && b.deadOrMine(id) })
	}
	if entry.Kind != owner.KindContainer || entry.Name != containerName(session) {
		return false, fmt.Errorf("journal names a %s %q, which this backend never makes: %w", entry.Kind, entry.Name, sandbox.ErrInvalid)
	}
	living := ""
	id, err := findOwned(ctx, r, entry.Name, func(id owner.Identity, of string) bool {
		if of == session && !b.deadOrMine(id) {
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

// deadOrMine accepts this process's own containers too: a session of its own
// that could not be destroyed has given up its journal.
func (b *Backend) deadOrMine(id owner.Identity) bool {
	return id.Fate(b.self.Instance) == owner.Dead || id.PID == b.self.PID && id.Start == b.self.Start && id.Boot == b.self.Boot
}
