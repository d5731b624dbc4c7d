package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/owner"
)

// Sweep removes the containers of dead owners, found by their labels, and then
// what else the journals of dead sessions name; see sandbox.Backend.
func (b *Backend) Sweep(ctx context.Context) ([]sandbox.Leftover, error) {
	e, _, err := b.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	left, listErr := b.sweepContainers(ctx, e)
	more, err := owner.Sweep(ctx, owner.SweepOptions{
		StateDir: b.options.StateDir, Backend: Name, Instance: b.self.Instance,
		Undo: func(ctx context.Context, session string, entry owner.Entry) (bool, error) {
			return b.undo(ctx, e, session, entry)
		},
	})
	return append(left, more...), errors.Join(listErr, err)
}

func (b *Backend) sweepContainers(ctx context.Context, e engine) ([]sandbox.Leftover, error) {
	list, err := within(ctx, askTime, "list containers", func(ctx context.Context) ([]container.Summary, error) {
		return e.ContainerList(ctx, container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", owner.LabelSchema))})
	})
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	var left []sandbox.Leftover
	var errs []error
	for _, c := range list {
		id, session, err := owner.FromLabels(c.Labels)
		if err != nil || !b.abandoned(id, c.State) {
			continue
		}
		if err := removeContainer(ctx, e, c.ID); err != nil {
			errs = append(errs, fmt.Errorf("sweep %s: %w", containerName(session), err))
			continue
		}
		left = append(left, sandbox.Leftover{Kind: string(owner.KindContainer), Name: containerName(session), Session: session, Owner: id.String()})
	}
	return left, errors.Join(errs...)
}

// abandoned says that a container's owner is dead, or that nobody can tell and
// the container has been stopped for longer than its lease.
func (b *Backend) abandoned(id owner.Identity, state container.ContainerState) bool {
	switch id.Fate(b.self.Instance) {
	case owner.Dead:
		return true
	case owner.Unknown:
		return state != container.StateRunning && id.Expired(time.Now())
	default:
		return false
	}
}

// undo removes what a journal names: a container of that session whose labels
// name no living owner.
func (b *Backend) undo(ctx context.Context, e engine, session string, entry owner.Entry) (bool, error) {
	if entry.Kind != owner.KindContainer || entry.Name != containerName(session) {
		return false, fmt.Errorf("journal names a %s %q, which this backend never makes: %w", entry.Kind, entry.Name, sandbox.ErrInvalid)
	}
	id, err := findOwned(ctx, e, entry.Name, func(id owner.Identity, of string) bool {
		return of == session && b.deadOrMine(id)
	})
	if id == "" || err != nil {
		return false, err
	}
	return true, removeContainer(ctx, e, id)
}

// deadOrMine accepts this process's own containers too: a session of its own
// that could not be destroyed has given up its journal.
func (b *Backend) deadOrMine(id owner.Identity) bool {
	return id.Fate(b.self.Instance) == owner.Dead || id.PID == b.self.PID && id.Start == b.self.Start && id.Boot == b.self.Boot
}
