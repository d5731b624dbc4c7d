package tracker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/internal/quarantine"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// bindTracker tracks a workspace that the sandbox changes in place. When the sandbox starts, it
// records the files, their privileges and the repositories. New dangerous ones it quarantines
// and clears.
type bindTracker struct {
	*recording
	Options

	// files are the workspace's files when the sandbox began to start.
	files      *changes.FileStates
	privileges *privilegeCheck
	quarantine *quarantine.Quarantine
	// repositories is closed when quarantine knows the repositories, and looked when
	// privileges knows the files.
	repositories, looked chan struct{}
	// prepared reports that there was a sandbox, whose commands may have moved files.
	prepared atomic.Bool
	// passTime bounds a pass over the files; tests set it.
	passTime time.Duration
	// forget removes the list of repositories that is kept in case this session is killed; nil
	// if there is none.
	forget func()
}

// NewBind returns a tracker of a workspace that the sandbox changes in place.
func NewBind(o Options) Tracker { return newBind(o, o.Sandbox.StartUnguarded) }

// newBind is NewBind with a function that removes the mounts which prevent renaming a
// repository.
func newBind(o Options, renew func() error) *bindTracker {
	b := &bindTracker{
		recording: newRecording(), Options: o, passTime: ScanTime, repositories: make(chan struct{}), looked: make(chan struct{}),
		quarantine: quarantine.New(quarantine.Options{
			Reader: o.Original, Submounts: o.Submounts, Git: o.Git, Unguarded: o.Target != "", Change: o.Change, Renew: renew, Repeated: o.Repeated, Log: o.Log,
		}),
		privileges: &privilegeCheck{reader: o.Original, log: o.Log},
	}
	var err error
	if b.privileges.files, err = workspace.NewPrivileges(o.Workspace); err != nil {
		o.Log.Debug("read privileges of files", zap.Error(err))
	}
	return b
}

func (b *bindTracker) WorkspaceView() workspace.View { return b.Original }

func (b *bindTracker) PrepareSpec(ctx context.Context, spec *sandbox.Spec) {
	spec.Workspace.Repositories, spec.Workspace.Privileged = b.listProtected(ctx, spec)
}

// listProtected waits for, and returns, the repositories and the privileged files that commands
// could change, to protect them with mounts. For further sandboxes it looks for the files
// again: a command may have renamed a directory above one.
func (b *bindTracker) listProtected(ctx context.Context, spec *sandbox.Spec) (repositories, files []string) {
	select {
	case <-b.looked:
	case <-ctx.Done():
		return nil, nil
	}
	found := b.privileges.was
	if b.prepared.Swap(true) {
		look, err := b.privileges.findPrivileged(ctx, false)
		if err != nil {
			b.Log.Warn("look for privileged files", zap.Error(err))
		}
		found = look.found
	}
	anyOwner := spec.Root == sandbox.RootEphemeral || spec.User != "" && spec.User != sandbox.UserOwner
	files = b.privileges.listWritable(ctx, found, anyOwner)
	select {
	case <-b.repositories:
		repositories = b.quarantine.Nested()
	case <-ctx.Done():
	}
	return repositories, files
}

func (b *bindTracker) StartRecording(ctx context.Context) {
	go b.findRepositories(ctx) // the sandbox waits for it
	b.runInBackground(func() error {
		b.recordFiles(ctx)
		<-b.repositories
		return nil
	})
}

func (b *bindTracker) recordFiles(ctx context.Context) {
	b.lookAtFiles(ctx)
	close(b.looked)
	ctx, cancel := context.WithTimeoutCause(ctx, ScanTime, errScanSlow)
	defer cancel()
	if err := b.files.KeepContents(ctx, b.Original, b.NoDiffs); err != nil {
		b.Log.Warn("keep files as they are", zap.Error(err))
	}
}

func (b *bindTracker) lookAtFiles(ctx context.Context) {
	look, err := b.privileges.newLook(true)
	pass, cancel := context.WithTimeoutCause(ctx, b.passTime, errScanSlow)
	defer cancel()
	files, failed := changes.TakeFileStates(pass, b.Original, b.Dir, changes.Look{Visit: look.visit, Unread: look.skip})
	if failed != nil {
		b.Log.Warn("scan workspace", zap.Error(failed))
		files = &changes.FileStates{} // nothing is known
		look, err = b.privileges.findPrivileged(ctx, true)
	}
	b.files = files
	b.privileges.was, b.privileges.before = look.found, look.snap
	if err != nil {
		b.Log.Warn("scan workspace", zap.Error(err))
		b.privileges.before = snapshot{} // nothing is known
	}
}

func (b *bindTracker) findRepositories(ctx context.Context) {
	defer close(b.repositories)
	b.reportNewRepositories(b.quarantine.Record(ctx))
	if scripts := b.quarantine.Scripts(); len(scripts) > 0 {
		b.Warn(fmt.Sprintf("In %s git runs shell text of its configuration: %s. Files that it reads are not watched: look at what the session changed before you run git there.",
			b.Path, quarantine.ShowBytes(strings.Join(scripts, ", "))))
	}
}

// reportNewRepositories warns of repositories that a killed session may have left, and of live
// sessions on this workspace in bind mode: each sees, and lists as its own, the other's
// changes. It keeps the list of repositories for the next session, in case this one is killed.
func (b *bindTracker) reportNewRepositories(paths []string) {
	suspects, err := sessiondir.TakeNewRepositories(b.Dir, b.Path, paths)
	if err != nil {
		b.Log.Warn("remove inventory", zap.Error(err))
	}
	for _, r := range suspects {
		b.Warn(fmt.Sprintf("%s appeared while the session %s worked here, which was killed: look at its configuration before git does", quarantine.ShowBytes(changes.PathInMount(b.Target, r.Path)), r.Session))
	}
	remove, err := sessiondir.KeepInventory(b.Dir, b.Path, paths)
	if err != nil {
		b.Log.Warn("keep inventory", zap.Error(err))
		return
	}
	b.forget = func() {
		if err := remove(); err != nil {
			b.Log.Warn("remove inventory", zap.Error(err))
		}
	}
	where := "this workspace too, in bind mode"
	if b.Target != "" {
		where = b.Path + " too"
	}
	for _, session := range sessiondir.Neighbours(b.Dir, b.Path) {
		b.Warn(fmt.Sprintf("The session %s works on %s: what either of them changes is seen, and listed, by both.", session, where))
	}
}

func (b *bindTracker) IsFresh(ctx context.Context, name string) bool {
	rel, err := b.Original.Relative(name)
	return err == nil && b.files.IsFresh(ctx, b.Original, rel)
}

// CheckAfterCommand implements [Tracker] with [quarantine.Quarantine.CheckAfterCommand].
func (b *bindTracker) CheckAfterCommand(ctx context.Context) { b.quarantine.CheckAfterCommand(ctx) }

// CheckAtEnd renames repositories before the sandbox is destroyed: renames change the workspace,
// so they happen inside. If a command ended its sandbox to avoid that, a fresh one is started.
func (b *bindTracker) CheckAtEnd() {
	if !b.Sandbox.IsUntouched() && b.isDone() { // otherwise nothing has run, or the file system is stuck
		b.quarantine.CheckAtEnd()
	}
}

func (b *bindTracker) FindDifferences(ctx context.Context) (changes.Differences, error) {
	return b.compare(ctx, changes.Look{})
}

// compare compares the files with the start's, in a pass that look uses too.
func (b *bindTracker) compare(ctx context.Context, look changes.Look) (changes.Differences, error) {
	images := b.Images
	if b.NoDiffs {
		images = nil
	}
	return b.files.Compare(ctx, b.Original, images, look)
}

func (b *bindTracker) AddChanges(end *record.SessionEnded, _ bool) (patch string, refused bool) {
	if b.Sandbox.IsUntouched() {
		return "", false // nothing can have run
	}
	r := &sessionChanges{SessionEnded: end}
	<-b.done
	r.Quarantined = b.listQuarantined()
	look, err := b.privileges.newLook(false)
	ctx, cancel := context.WithTimeoutCause(context.Background(), b.passTime, errScanSlow)
	defer cancel()
	d, diffErr := b.compare(ctx, changes.Look{Visit: look.visit, Unread: look.skip})
	if diffErr != nil { // the pass may have ended before it met all files
		again, againErr := b.privileges.findPrivileged(context.Background(), false)
		look, err = again, errors.Join(err, againErr)
	}
	r.Cleared = b.privileges.clearNew(look.found)
	r.setDifferences(d)
	if err = errors.Join(err, diffErr); err != nil {
		b.Log.Warn("scan workspace", zap.Error(err))
		r.Incomplete = true
	}
	r.Incomplete = r.Incomplete || b.privileges.before.isIncomplete() || look.snap.isIncomplete()
	return r.patch, false
}

func (b *bindTracker) listQuarantined() []record.Quarantined {
	ctx, cancel := context.WithTimeoutCause(context.Background(), ScanTime, errScanSlow)
	defer cancel()
	return b.quarantine.List(ctx)
}

func (b *bindTracker) DiscardState() {}

func (b *bindTracker) ReleaseState() {
	var err error
	if b.Images != nil {
		err = b.Images.Close()
	}
	b.waitStarted()
	if b.forget != nil {
		b.forget()
	}
	if b.files != nil {
		err = errors.Join(err, b.files.Close())
	}
	if err != nil {
		b.Log.Warn("remove scratch files", zap.Error(err))
	}
}
