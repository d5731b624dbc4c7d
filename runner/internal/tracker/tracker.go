// Package tracker tracks what a session changes in its workspace. In bind mode it
// compares the directory with its state at the start, quarantines repositories that
// commands made, and clears privileges of files that are new. In overlay mode it
// reads the changes from the layers, and applies them.
package tracker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// ScanTime bounds one scan of the whole workspace.
const ScanTime = 60 * time.Second

// errScanSlow is the cause of a scan that took too long.
var errScanSlow = errors.New("no answer in time")

// Tracker finds out what a session changes in its workspace: that of [NewBind] by
// comparing the directory with its state at the start, that of [NewOverlay] by reading
// the upper layer. It is safe for concurrent use.
type Tracker interface {
	// WorkspaceView returns the workspace as the tools of the session read it.
	WorkspaceView() workspace.View
	// PrepareSpec completes the spec of a sandbox of the session. It may wait.
	PrepareSpec(ctx context.Context, spec *sandbox.Spec)
	// StartRecording records the workspace in the background, before the sandbox can change
	// it. It must not wait.
	StartRecording(ctx context.Context)
	// WaitRecorded waits until the workspace is recorded. Nothing may change the workspace
	// before, or after an error.
	WaitRecorded(ctx context.Context) error
	// IsFresh reports whether a file is still as the session found it, by its own
	// metadata. It returns false if that is not known.
	IsFresh(ctx context.Context, name string) bool
	// CheckAfterCommand quarantines what a command left in the workspace.
	CheckAfterCommand(ctx context.Context)
	// CheckAtEnd does so when the turns are over. The sandbox must still run: the
	// changes are made inside.
	CheckAtEnd()
	// FindDifferences returns what differs now from the session's start. The workspace must
	// be recorded.
	FindDifferences(ctx context.Context) (changes.Differences, error)
	// AddChanges adds what the session changed to the facts about its end; apply
	// applies the changes of an overlay. The sandbox must be gone. It returns a
	// unified diff, and reports whether the changes were not applied because of
	// conflicts.
	AddChanges(end *record.SessionEnded, apply bool) (patch string, refused bool)
	// DiscardState removes what the tracker made for a session that did not begin.
	DiscardState()
	// ReleaseState removes what was kept of the workspace as it was.
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

// WaitRecorded waits for the end of the recording.
func (r *recording) WaitRecorded(ctx context.Context) error {
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

// Options configures a tracker. Those of the second group are for [NewBind], those of
// the third for [NewOverlay]; all others are required.
type Options struct {
	// Session is the id of the session and Dir its directory.
	Session, Dir string
	// Workspace is the opened directory, Path its path; Original reads it.
	Workspace *os.File
	Path      string
	Original  *workspace.Reader
	Sandbox   *livesandbox.Sandbox
	// Target is the mount point of a directory for [WithMounts].
	Target string
	// Images are the files that tools changed, as they were before. NoDiffs makes no diffs
	// in bind mode.
	Images  *changes.Preimages
	NoDiffs bool
	Log     *zap.Logger

	// Submounts are mounts in the workspace that are accepted, and Git is the mode of
	// its repositories.
	Submounts []string
	Git       sandbox.GitMode
	// Owner returns the user ID of the workspace's owner.
	Owner func() (uid int, known bool)
	// Change makes a change of the workspace, in a fresh sandbox if need be.
	Change func(context.Context, workspace.Op) (workspace.Change, error)
	// Warn records a warning.
	Warn func(message string)
	// Repeated is that of [quarantine.Options].
	Repeated func(path string)

	// Mode is overlay or copy. CopyBytes and CopyEntries bound a copy.
	Mode                   sandbox.WorkspaceMode
	CopyBytes, CopyEntries int64
	// User is recorded as the user who applies the changes; closing Force ends that.
	User  string
	Force <-chan struct{}
}

// sessionChanges holds what a session changed, beside the facts about its end.
type sessionChanges struct {
	*record.SessionEnded
	patch   string
	refused bool
}

// setDifferences fills in what differs.
func (r *sessionChanges) setDifferences(d changes.Differences) {
	r.Changed, r.ChangedOmitted, r.ChangedCount = record.NonNil(d.Changed), d.ChangedOmitted, d.Count
	r.HostExecuted, r.HostExecutedOmitted = record.NonNil(d.HostExecuted), d.HostExecutedOmitted
	r.patch, r.Incomplete = d.Patch, r.Incomplete || d.Incomplete
}
