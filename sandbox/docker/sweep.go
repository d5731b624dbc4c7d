package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

// RemoveUnlisted removes the containers and volumes with labels of dead owners.
func (d driver) RemoveUnlisted(ctx context.Context) ([]sandbox.Orphan, error) {
	r, _, err := d.backend.connect(ctx)
	if err != nil {
		return nil, err
	}
	containers, err := d.backend.sweepContainers(ctx, r)
	volumes, volumesErr := d.backend.sweepVolumes(ctx, r)
	return append(containers, volumes...), errors.Join(err, volumesErr)
}

// skeletonTime is how long an imported skeleton is kept. Making it again takes
// some 20 ms, and each change of the machine's programs makes a new one.
const skeletonTime = 24 * time.Hour

// Prune removes old images that Caisson made on the engine and no container
// uses.
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
// their name to another import, unless a container uses them. It returns their
// number. A Caisson that is about to use one imports it again.
func pruneSkeletons(ctx context.Context, r *remote, unused time.Duration) (int, error) {
	list, err := r.listImages(ctx, filters.Arg("label", labelSkeleton))
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

// neverStarted is how long a live owner's container may wait for its start. It
// exceeds the deadlines of all calls together.
const neverStarted = 10 * time.Minute

// isOrphan reports whether a container's owner is dead, or is unknown and the
// container stopped with an expired lease, or never started it: a hanging
// engine may have made it when no call was waiting any more.
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
// session whose labels name no living owner.
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
		// Keep what the container still uses.
		err = fmt.Errorf("container %s is that of a process that lives, %s: %w", entry.Name, living, sandbox.ErrState)
	}
	if id == "" || err != nil {
		return false, err
	}
	return true, removeContainer(ctx, r, id)
}

// isDeadOrOwn also accepts this process's containers: a session that it could
// not destroy has given up its cleanup list.
func (b *Backend) isDeadOrOwn(id ownership.Identity) bool {
	return id.Fate(b.self.Instance) == ownership.Dead || id.PID == b.self.PID && id.Start == b.self.Start && id.Boot == b.self.Boot
}

func (d driver) Inspect(ctx context.Context, listed map[string]*lifecycle.Listed) error {
	b := d.backend
	r, _, err := b.connect(ctx)
	if err != nil {
		return err
	}
	list, err := r.listContainers(ctx)
	if err != nil {
		return err
	}
	for _, l := range listed {
		l.State = sandbox.ListedGone
	}
	for _, c := range list {
		id, session, err := ownership.FromLabels(c.Labels)
		if err != nil {
			continue
		}
		l := listed[session]
		if l == nil {
			l = &lifecycle.Listed{Listing: sandbox.Listing{
				Session: session, Backend: Name, Image: c.Labels[labelImage], Workspace: c.Labels[labelWorkspace],
				Since: time.Unix(c.Created, 0).UTC(), Owner: id.ListedOwner(b.self.Instance), Foreign: id.Instance != b.self.Instance,
			}}
			listed[session] = l
		}
		l.Container, l.State = lifecycle.ContainerName(session), listedState(c.State)
		if l.State == sandbox.ListedRunning {
			l.MemoryBytes = r.usedMemory(ctx, c.ID)
		}
	}
	return nil
}

func listedState(s container.ContainerState) sandbox.ListedState {
	switch s {
	case container.StateCreated:
		return sandbox.ListedCreated
	case container.StateRunning, container.StateRestarting:
		return sandbox.ListedRunning
	case container.StatePaused:
		return sandbox.ListedPaused
	default: // exited, dead, removing
		return sandbox.ListedStopped
	}
}

// usedMemory returns the memory charged to a container's cgroup, or 0 if
// unknown.
func (r *remote) usedMemory(ctx context.Context, id string) int64 {
	used, err := callWithin(ctx, r.ask, "ask for memory", func(ctx context.Context) (uint64, error) {
		answer, err := r.engine.ContainerStatsOneShot(ctx, id)
		if err != nil {
			return 0, err
		}
		defer func() { _ = answer.Body.Close() }()
		var stats container.StatsResponse
		err = json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&stats)
		return stats.MemoryStats.Usage, err
	})
	if err != nil {
		return 0 // it ended meanwhile
	}
	return int64(used)
}
