package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/internal/tracker"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// errSlow is the cause if a scan or a clean-up takes too long.
var errSlow = errors.New("no answer in time")

// callGroup holds the calls of a session that run beside its turns, such as comparisons
// of the workspace and commands. It is safe for concurrent use.
type callGroup struct {
	closing context.Context //nolint:containedctx // it ends all calls
	stop    context.CancelCauseFunc

	mu      sync.Mutex
	closed  bool
	count   int  // calls that run
	alone   bool // one runs that excludes others
	running sync.WaitGroup
}

func newCallGroup() *callGroup {
	c := &callGroup{}
	c.closing, c.stop = context.WithCancelCause(context.Background())
	return c
}

// beginCall begins a call, whose context ends when the session is closed. The caller must
// call done. The error wraps [ErrOver], or [ErrBusy] while an exclusive call runs.
func (c *callGroup) beginCall(ctx context.Context) (_ context.Context, done func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, nil, fmt.Errorf("%w: it is closed", ErrOver)
	case c.alone:
		return nil, nil, fmt.Errorf("%w: the session is being forked", ErrBusy)
	}
	c.count++
	c.running.Add(1) // under mu: endAll waits for no call that comes later
	ctx, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(c.closing, func() { cancel(fmt.Errorf("%w: it is closed", ErrOver)) })
	return ctx, func() {
		unlink()
		cancel(nil)
		c.mu.Lock()
		c.count--
		c.mu.Unlock()
		c.running.Done()
	}, nil
}

// exclude begins a call that excludes all others, unless hold returns an error. The
// caller must call done, which calls release. Its errors wrap [ErrBusy] or [ErrOver].
func (c *callGroup) exclude(hold func() error) (done func(release func()), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil, fmt.Errorf("%w: it is closed", ErrOver)
	case c.alone || c.count > 0:
		return nil, fmt.Errorf("%w: a call beside it is", ErrBusy)
	}
	if err := hold(); err != nil {
		return nil, err
	}
	c.alone = true
	c.running.Add(1)
	return func(release func()) {
		release()
		c.mu.Lock()
		c.alone = false
		c.mu.Unlock()
		c.running.Done()
	}, nil
}

// endAll ends the calls and waits for them. None begins afterwards.
func (c *callGroup) endAll() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop(errClosed)
	c.running.Wait()
}

// Differences returns how the workspace differs from the session's start. It may be called
// during a turn: changes made meanwhile may be missing. It ends with ctx, and when the session
// is closed; errors then wrap [ErrOver].
func (s *Session) Differences(ctx context.Context) (changes.Differences, error) {
	ctx, done, err := s.calls.beginCall(ctx)
	if err != nil {
		return changes.Differences{}, fmt.Errorf("compare workspace: %w", err)
	}
	defer done()
	began := s.turns.haveBegun() || s.past.hasChanges() || s.users.hasRun()
	if !began {
		return changes.Differences{}, nil // nothing has run
	}
	if err := s.tracker.WaitRecorded(ctx); ctx.Err() != nil {
		return changes.Differences{}, fmt.Errorf("compare workspace: %w", context.Cause(ctx))
	} else if err != nil {
		return changes.Differences{}, nil // nothing may run
	}
	ctx, cancel := context.WithTimeoutCause(ctx, tracker.ScanTime, errSlow)
	defer cancel()
	d, err := s.tracker.FindDifferences(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return changes.Differences{}, fmt.Errorf("compare workspace: %w", err)
	}
	return d, nil
}

// ApplyChanges applies the changes of a session in overlay or copy mode to its workspace, from
// where the session continues. It must be between turns. Its background commands end and its
// sandbox is taken down; the model is told. If a change would be left out, for example because
// of a conflict, nothing is applied: the result is Refused and has those changes. Caches are
// not merged.
//
// Errors wrap [sandbox.ErrUnsupported] in bind mode, and [ErrBusy] or [ErrOver] like
// [Session.Start]. If the result is not nil after an error, changes may have been applied.
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

// DiscardChanges removes the changes of a session in overlay or copy mode, which continues with
// the workspace as it is. It is otherwise like [Session.ApplyChanges].
func (s *Session) DiscardChanges(ctx context.Context) error {
	err := s.settleChanges(ctx, "its changes were discarded", func(t tracker.Settler) (done string, err error) {
		return "the changes of the session were discarded, at the user's request", t.Discard(ctx)
	})
	if err != nil {
		return fmt.Errorf("discard changes: %w", err)
	}
	return nil
}

// settleChanges calls do while nothing uses the session's workspace. do returns what it has
// done, for the records and the model.
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
	// If it can't be recorded, the next record ends the session.
	_ = s.events.writeRecord(record.Warning{Message: done, Requested: true})
	s.prompt.notice = loop.NoticePrefix + settleNotice + boundary.Text(done) + ". The session goes on in a fresh sandbox: /tmp, the home directory and running programs are gone."
	return nil
}
