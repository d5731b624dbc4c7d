package runner

import (
	"context"
	"fmt"

	"github.com/caisson-run/caisson/runner/changes"
)

// Differences returns what differs now from the session's start. It may be called
// while a turn runs: what is written meanwhile is in it or not. It ends with ctx,
// and when the session is closed; its errors then wrap [ErrOver].
func (s *Session) Differences(ctx context.Context) (changes.Differences, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	began := s.turns > 0
	if s.closing {
		s.mu.Unlock()
		return changes.Differences{}, fmt.Errorf("compare workspace: %w: it is closed", ErrOver)
	}
	s.lookers.Add(1) // under mu: Close waits for no looker that comes later
	s.mu.Unlock()
	defer s.lookers.Done()
	stop := context.AfterFunc(s.looks, func() { cancel(fmt.Errorf("%w: it is closed", ErrOver)) })
	defer stop()
	if !began {
		return changes.Differences{}, nil // nothing has run
	}
	select {
	case <-s.looked:
	case <-ctx.Done():
		return changes.Differences{}, fmt.Errorf("compare workspace: %w", context.Cause(ctx))
	}
	ctx, slow := context.WithTimeoutCause(ctx, lookTime, errSlow)
	defer slow()
	var d changes.Differences
	var err error
	if s.overlaid() {
		d, err = s.overlayDifferences(ctx)
	} else {
		d, err = s.bindDifferences(ctx)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return changes.Differences{}, fmt.Errorf("compare workspace: %w", err)
	}
	return d, nil
}

func (s *Session) overlayDifferences(ctx context.Context) (changes.Differences, error) {
	if !s.recorded {
		return changes.Differences{}, nil // nothing has run
	}
	list, err := s.layers.Changes(ctx, s.opts.Workspace.Dir, changes.ReadBounds)
	if err != nil {
		return changes.Differences{}, err
	}
	return changes.ReadOverlay(ctx, s.layers, s.opts.Workspace.Dir, list)
}

// bindDifferences compares the workspace with its state at the session's start.
func (s *Session) bindDifferences(ctx context.Context) (changes.Differences, error) {
	return s.files.Compare(ctx, s.original, s.exec.images)
}
