package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/owner"
)

// List finds what this user's journals note and what the engine has with
// Caisson's labels; see sandbox.Backend. Without an engine it gives what is
// noted, in state "unknown", beside the error.
func (b *Backend) List(ctx context.Context) ([]sandbox.Listing, error) {
	noted, err := owner.List(b.options.StateDir, Name)
	found := map[string]sandbox.Listing{}
	for _, n := range noted {
		found[n.Session] = n.Listing(b.self.Instance)
	}
	r, _, connectErr := b.connect(ctx)
	if connectErr == nil {
		connectErr = b.listContainers(ctx, r, found)
	}
	list := make([]sandbox.Listing, 0, len(found))
	for _, l := range found {
		list = append(list, l)
	}
	slices.SortFunc(list, func(a, b sandbox.Listing) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Session, b.Session))
	})
	if err := errors.Join(err, connectErr); err != nil {
		return list, fmt.Errorf("list docker sandboxes: %w", err)
	}
	return list, nil
}

// listContainers completes what is noted with what the engine says.
func (b *Backend) listContainers(ctx context.Context, r *remote, found map[string]sandbox.Listing) error {
	list, err := r.list(ctx)
	if err != nil {
		return err
	}
	for session, l := range found {
		l.State = sandbox.ListedGone
		found[session] = l
	}
	for _, c := range list {
		id, session, err := owner.FromLabels(c.Labels)
		if err != nil {
			continue // another version's
		}
		l, ok := found[session]
		if !ok {
			l = sandbox.Listing{
				Session: session, Backend: Name, Image: c.Labels[labelImage], Workspace: c.Labels[labelWorkspace],
				Since: time.Unix(c.Created, 0).UTC(), Owner: id.Listed(b.self.Instance), Foreign: id.Instance != b.self.Instance,
			}
		}
		l.Container, l.State = containerName(session), listedState(c.State)
		if l.State == sandbox.ListedRunning {
			l.MemoryBytes = r.memory(ctx, c.ID)
		}
		found[session] = l
	}
	return nil
}

// listedState says the engine's word in that of a list.
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

// memory is what a container's cgroup is charged with, 0 where the engine does
// not say.
func (r *remote) memory(ctx context.Context, id string) int64 {
	used, err := within(ctx, r.ask, "ask for memory", func(ctx context.Context) (uint64, error) {
		answer, err := r.engine.ContainerStatsOneShot(ctx, id)
		if err != nil {
			return 0, err
		}
		defer answer.Body.Close()
		var stats container.StatsResponse
		err = json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&stats)
		return stats.MemoryStats.Usage, err
	})
	if err != nil {
		return 0 // it ended meanwhile
	}
	return int64(used)
}
