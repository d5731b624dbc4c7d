package runner

import (
	"context"
	"fmt"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/runner/internal/tracker"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// ApplyChanges applies what a session in overlay or copy mode has changed so far to its
// workspace, and lets it go on from there. It must be between turns. Its commands in the
// background end and its sandbox is taken down; the model is told. Where a change would
// be left out, because of a conflict for instance, nothing is applied: the result is
// Refused and has those changes. What was written to caches is not merged.
//
// Its errors wrap [sandbox.ErrUnsupported] in bind mode, and [ErrBusy] or [ErrOver] as
// those of [Session.Start]. If the result is not nil after an error, changes may have
// been applied.
func (s *Session) ApplyChanges(ctx context.Context) (*overlay.Result, error) {
	var r *overlay.Result
	err := s.settleChanges(ctx, "its changes were applied to the workspace", func(t tracker.Settler) (done string, err error) {
		r, err = t.Apply(ctx)
		if err == nil && r.State == overlay.Applied {
			done = overlay.CountText(r.Applied) + " of the session applied to the workspace, at the user's request"
		}
		return done, err
	})
	if err != nil {
		return r, fmt.Errorf("apply changes: %w", err)
	}
	return r, nil
}

// DiscardChanges removes what a session in overlay or copy mode has changed so far, and
// lets it go on with the workspace as it is. It is otherwise as [Session.ApplyChanges].
func (s *Session) DiscardChanges(ctx context.Context) error {
	err := s.settleChanges(ctx, "its changes were discarded", func(t tracker.Settler) (done string, err error) {
		return "the changes of the session were discarded, at the user's request", t.Discard(ctx)
	})
	if err != nil {
		return fmt.Errorf("discard changes: %w", err)
	}
	return nil
}

// settleChanges calls do while nothing uses the workspace of a session. do returns what it has
// done, which is recorded, and which the model is told.
func (s *Session) settleChanges(ctx context.Context, reason string, do func(tracker.Settler) (done string, err error)) error {
	changed, ok := s.tracker.(tracker.Settler)
	if !ok || !s.opts.isOverlay() {
		return fmt.Errorf("%w: the workspace is in %s mode, where nothing waits to be applied", sandbox.ErrUnsupported, s.opts.workspaceMode())
	}
	release, err := s.calls.exclude(s.turns.hold)
	if err != nil {
		return err
	}
	defer release(s.turns.release)
	_, resume, err := s.exec.Suspend(ctx, reason)
	if err != nil {
		return err
	}
	defer resume()
	done, err := do(changed)
	if err != nil || done == "" {
		return err
	}
	// What can't be recorded ends the session at the next record.
	_ = s.events.writeRecord(record.Warning{Message: done, Requested: true})
	s.prompt.notice = loop.NoticePrefix + settleNotice + boundary.Text(done) + ". The session goes on in a fresh sandbox: /tmp, the home directory and running programs are gone."
	return nil
}
