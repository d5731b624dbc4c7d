// Package tracker tracks what a session changes in its workspace. In bind mode it compares the
// directory with its state at the start, quarantines new repositories, and clears new privileges
// of files. In overlay mode it reads the changes from the layers and applies them.
package tracker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// ScanTime bounds one scan of the whole workspace.
const ScanTime = 60 * time.Second

var errScanSlow = errors.New("no answer in time")

// Tracker finds out what a session changes in its workspace: the one of [NewBind] by comparison
// with the start, the one of [NewOverlay] from the upper layer. It is safe for concurrent use.
type Tracker interface {
	// WorkspaceView returns the workspace as the session's tools read it.
	WorkspaceView() workspace.View
	// PrepareSpec completes the spec of a sandbox. It may wait.
	PrepareSpec(ctx context.Context, spec *sandbox.Spec)
	// StartRecording starts to record the workspace, before the sandbox can change it. It does
	// not wait.
	StartRecording(ctx context.Context)
	// WaitRecorded waits until the workspace is recorded. Nothing may change the workspace
	// before that, or if it fails.
	WaitRecorded(ctx context.Context) error
	// IsFresh reports whether a file's metadata is still as the session found it. It returns
	// false if that is unknown.
	IsFresh(ctx context.Context, name string) bool
	// CheckAfterCommand quarantines what a command left in the workspace.
	CheckAfterCommand(ctx context.Context)
	// CheckAtEnd does so after the turns. It makes its changes in the sandbox, which must still
	// run.
	CheckAtEnd()
	// FindDifferences returns the differences from the session's start. The workspace must be
	// recorded.
	FindDifferences(ctx context.Context) (changes.Differences, error)
	// AddChanges adds the session's changes to its last record and, if apply is set, applies
	// an overlay's. The sandbox must be gone. It returns a unified diff, and reports whether
	// conflicts prevented applying.
	AddChanges(end *record.SessionEnded, apply bool) (patch string, refused bool)
	// DiscardState removes what the tracker made for a session that did not begin.
	DiscardState()
	// ReleaseState removes what was kept of the original workspace.
	ReleaseState()
}

// Forker is a tracker whose session can be forked. Nothing may use the workspace
// between Freeze and the last Fork.
type Forker interface {
	// Freeze freezes what the session has changed, and reports whether it could
	// change anything so far: otherwise the workspace is the original directory.
	Freeze(ctx context.Context) (changed bool, err error)
	// Fork returns the tracker of another session on the frozen changes.
	Fork(o Options) (Tracker, error)
}

// recording records a workspace in the background. It is safe for concurrent use.
type recording struct {
	done chan struct{} // closed when the workspace is recorded, or err is set
	err  error         // why nothing may change the workspace

	started atomic.Bool
}

func newRecording() *recording { return &recording{done: make(chan struct{})} }

func (r *recording) runInBackground(record func() error) {
	r.started.Store(true)
	go func() {
		defer close(r.done)
		r.err = record()
	}()
}

func (r *recording) WaitRecorded(ctx context.Context) error {
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		return fmt.Errorf("wait for workspace: %w", context.Cause(ctx))
	}
}

// waitStarted waits for the end of the recording, if it has started.
func (r *recording) waitStarted() {
	if r.started.Load() {
		<-r.done
	}
}

func (r *recording) isDone() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// Options configures a tracker. The second group is for [NewBind], the third for [NewOverlay]; all
// others are required.
type Options struct {
	overlay.CreateOptions
	// Dir is the session's directory. Original reads the workspace.
	Dir      string
	Original *workspace.Reader
	Sandbox  *livesandbox.Sandbox
	// Target is a directory's mount point, for [WithMounts].
	Target string
	// Images are the files that tools changed, as they were before. NoDiffs makes no diffs in
	// bind mode.
	Images  *changes.Preimages
	NoDiffs bool
	Log     *zap.Logger

	// Submounts are accepted mounts in the workspace, and Git is the mode of its repositories.
	Submounts []string
	Git       sandbox.GitMode
	// Change changes the workspace, in a fresh sandbox if necessary.
	Change func(context.Context, workspace.Op) (workspace.Change, error)
	Warn   func(message string)
	// Repeated is as in [quarantine.Options].
	Repeated func(path string)

	// Mode is overlay or copy.
	Mode sandbox.WorkspaceMode
	// User is recorded as the user who applies the changes. Closing Force stops that.
	User  string
	Force <-chan struct{}
}

// sessionChanges holds a session's changes, including its last record.
type sessionChanges struct {
	*record.SessionEnded
	patch   string
	refused bool
}

func (r *sessionChanges) setDifferences(d changes.Differences) {
	r.Changed, r.ChangedOmitted, r.ChangedCount = record.NonNil(d.Changed), d.ChangedOmitted, d.Count
	r.HostExecuted, r.HostExecutedOmitted = record.NonNil(d.HostExecuted), d.HostExecutedOmitted
	r.patch, r.Incomplete = d.Patch, r.Incomplete || d.Incomplete
}
