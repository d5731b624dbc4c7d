package docker

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/lifecycle"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

// Inspect completes the listed sandboxes with the engine's answer.
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
			continue // another version's
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

// listedState converts the engine's word for a state.
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

// usedMemory returns the memory that a container's cgroup is charged with, or 0
// if that is unknown.
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
