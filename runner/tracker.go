package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// compareTime bounds one scan of the whole workspace.
const compareTime = 60 * time.Second

// errSlow is the cause of a scan or a clean-up that took too long.
var errSlow = errors.New("no answer in time")

// changeTracker finds out what a session changes in its workspace: a bindTracker by
// comparing the directory with its state at the start, an overlayTracker by reading
// the upper layer. It is safe for concurrent use.
type changeTracker interface {
	// workspaceView returns the workspace as the tools of the session read it.
	workspaceView() workspace.View
	// prepareSpec completes the spec of a sandbox of the session. It may wait.
	prepareSpec(ctx context.Context, spec *sandbox.Spec)
	// startRecording records the workspace in the background, before the sandbox can change
	// it. It must not wait.
	startRecording(ctx context.Context)
	// waitRecorded waits until the workspace is recorded. Nothing may change the workspace
	// before, or after an error.
	waitRecorded(ctx context.Context) error
	// isFresh reports whether a file is still as the session found it, by its own
	// metadata. It returns false if that is not known.
	isFresh(ctx context.Context, name string) bool
	// checkAfterCommand quarantines what a command left in the workspace.
	checkAfterCommand(ctx context.Context)
	// checkAtEnd does so when the turns are over. The sandbox must still run: the
	// changes are made inside.
	checkAtEnd()
	// findDifferences returns what differs now from the session's start. The workspace must
	// be recorded.
	findDifferences(ctx context.Context) (changes.Differences, error)
	// addChanges adds what the session changed to r. The sandbox must be gone.
	addChanges(r *Report)
	// discardState removes what the tracker made for a session that did not begin.
	discardState()
	// releaseState removes what was kept of the workspace as it was.
	releaseState()
}

// recording is the recording of a workspace in the background. It is safe for
// concurrent use.
type recording struct {
	done chan struct{} // closed when the workspace is recorded, or err is set
	err  error         // why nothing may change the workspace

	mu      sync.Mutex
	started bool
}

func newRecording() *recording { return &recording{done: make(chan struct{})} }

// runInBackground calls record in the background.
func (r *recording) runInBackground(record func() error) {
	r.mu.Lock()
	r.started = true
	r.mu.Unlock()
	go func() {
		defer close(r.done)
		r.err = record()
	}()
}

// waitRecorded waits for the end of the recording.
func (r *recording) waitRecorded(ctx context.Context) error {
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return fmt.Errorf("wait for workspace: %w", context.Cause(ctx))
	}
}

// waitStarted waits for the end of the recording, if it was started.
func (r *recording) waitStarted() {
	r.mu.Lock()
	started := r.started
	r.mu.Unlock()
	if started {
		<-r.done
	}
}

// isDone reports whether the recording has ended.
func (r *recording) isDone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// comparisons are the comparisons of a workspace that are running. It is safe for
// concurrent use.
type comparisons struct {
	closing context.Context //nolint:containedctx // it ends all comparisons
	stop    context.CancelCauseFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

func newComparisons() *comparisons {
	c := &comparisons{}
	c.closing, c.stop = context.WithCancelCause(context.Background())
	return c
}

// beginComparison begins a comparison, whose context ends when the session is closed. The
// caller must call done. Its error wraps [ErrOver].
func (c *comparisons) beginComparison(ctx context.Context) (_ context.Context, done func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, fmt.Errorf("%w: it is closed", ErrOver)
	}
	c.running.Add(1) // under mu: close waits for no comparison that comes later
	ctx, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(c.closing, func() { cancel(fmt.Errorf("%w: it is closed", ErrOver)) })
	return ctx, func() {
		unlink()
		cancel(nil)
		c.running.Done()
	}, nil
}

// endAll ends the comparisons and waits for them. None begins afterwards.
func (c *comparisons) endAll() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.stop(errClosed)
	c.running.Wait()
}

// Differences returns what differs now from the session's start. It may be called
// while a turn runs: what is written meanwhile is in it or not. It ends with ctx,
// and when the session is closed; its errors then wrap [ErrOver].
func (s *Session) Differences(ctx context.Context) (changes.Differences, error) {
	ctx, done, err := s.comparisons.beginComparison(ctx)
	if err != nil {
		return changes.Differences{}, fmt.Errorf("compare workspace: %w", err)
	}
	defer done()
	s.mu.Lock()
	began := s.turns > 0
	s.mu.Unlock()
	if !began {
		return changes.Differences{}, nil // nothing has run
	}
	if err := s.tracker.waitRecorded(ctx); ctx.Err() != nil {
		return changes.Differences{}, fmt.Errorf("compare workspace: %w", context.Cause(ctx))
	} else if err != nil {
		return changes.Differences{}, nil // nothing may run
	}
	ctx, cancel := context.WithTimeoutCause(ctx, compareTime, errSlow)
	defer cancel()
	d, err := s.tracker.findDifferences(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return changes.Differences{}, fmt.Errorf("compare workspace: %w", err)
	}
	return d, nil
}
