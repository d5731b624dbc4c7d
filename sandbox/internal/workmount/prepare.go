package workmount

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/internal/ownership"
)

// Options says what to prepare. Workspace, Dir, StateDir, Journal and Holder
// are required.
type Options struct {
	// Workspace is the folder, held by its caller until after Close.
	Workspace sandbox.Workspace
	// Git protects the repository; the zero value is read-only.
	Git sandbox.GitMode
	// Dir is the session's own folder, below StateDir. Mount points are made
	// in it, in the folder "mounts".
	Dir string
	// StateDir is Caisson's state folder: a workspace that is it, holds it or
	// lies in it is refused.
	StateDir string
	// Protect names further folders, such as the user's home: a workspace that
	// is one of them or holds one is refused. What does not exist is ignored.
	Protect []string
	// Journal gets a note of each mount, folder and placeholder before it is
	// made.
	Cleanup *ownership.CleanupList
	// Holder is a program that is loaded and killed before its first
	// instruction, to hold a user namespace open: the guest's binary.
	Holder string
	// Namespaces keeps what Holder made for the next workspace; nil keeps
	// nothing.
	UserNamespaces *UserNamespaces
	// CallerOwnsFiles accepts that files belong to the user who runs Caisson
	// although another owns the workspace.
	CallerOwnsFiles bool
	// EngineMounts says that an engine can mount an overlay for a process that
	// may not: it gets a [Volume] then, and is refused otherwise.
	EngineMounts bool
	// RuntimeEnters says that the runtime can be started by [Entrance.Wrap],
	// for a process that may mount in a user namespace of its own only.
	RuntimeJoins bool
	// Log is for what can't be returned; nil discards.
	Log *zap.Logger

	attachLayers bool // see stage
}

func (o Options) isOverlay() bool { return o.Workspace.Mode == sandbox.ModeOverlay }

// Bind is one bind mount of a container. It is never recursive, and its
// propagation is private.
type Bind struct {
	// Source is an absolute host path, Target one in the container. Mount
	// them in the order in which they are given: a later one may lie in an
	// earlier one.
	Source, Target string
	ReadOnly       bool
	// Dir says whether it is a folder.
	Dir bool
	// Device and Inode are what stat(2) gives for the source on the host.
	// Where a [Volume] is mounted there is no source, and the device is not
	// known.
	Device, Inode uint64
}

// Inside says that a bind is the workspace's own or lies in it; the repository of
// a linked worktree does not.
func (b Bind) Inside() bool {
	return b.Target == sandbox.WorkspaceDir || strings.HasPrefix(b.Target, sandbox.WorkspaceDir+"/")
}

// Prepared is a workspace that is ready to be mounted. Whoever called
// [Prepare] calls [Prepared.Close]. It is safe for concurrent use.
type Mounts struct {
	// Binds are the mounts, the workspace first.
	Binds []Bind
	// Path is the workspace's host path with links resolved, for messages.
	Path string
	// CommandUID and CommandGID are the identity of commands in the container.
	CommandUID, CommandGID int
	// OwnerUID and OwnerGID are whom files belong to on the host that commands
	// make.
	OwnerUID, OwnerGID int
	// Mode is bind or overlay.
	Mode sandbox.WorkspaceMode
	// Entrance is how the runtime must be started to see the first of Binds; nil
	// where it can be started as it is.
	Namespace *MountNamespace
	// Volume is what an engine must mount in the place of the first of Binds;
	// nil where that has a source.
	Volume *Volume
	// IDMapped says that the mounts carry an id map.
	IDMapped bool
	// Staged says that sources are mounts below Options.Dir, with nosuid and
	// nodev; otherwise they are the workspace's own paths.
	Staged bool
	// Lost names protections that can't be had here, one sentence each.
	Lost []string

	cleanup *cleanup
}

// Prepare checks the workspace and makes what its mounts need. On an error
// nothing is left. The errors are ErrInvalid for a workspace that is refused,
// ErrUnsupported for one that this system can't mount so that its files keep
// their owner.
func Prepare(ctx context.Context, o Options) (*Mounts, error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	switch w := o.Workspace; {
	case w.Mode != "" && w.Mode != sandbox.ModeBind && w.Mode != sandbox.ModeOverlay:
		return nil, fmt.Errorf("workspace %s: %w: mode %q", w.Path, sandbox.ErrInvalid, w.Mode)
	case o.isOverlay() && !filepath.IsAbs(w.Layers):
		return nil, fmt.Errorf("workspace %s: %w: an overlay needs a folder for its layers, %q is no absolute path", w.Path, sandbox.ErrInvalid, w.Layers)
	}
	p, err := prepareMounts(ctx, o)
	if err != nil {
		return nil, err
	}
	p.Mode = sandbox.ModeBind
	if o.isOverlay() {
		p.Mode = sandbox.ModeOverlay
	}
	return p, nil
}

// Started removes the staging mounts: call it once the container runs and
// holds mounts of its own. A second call does nothing.
func (p *Mounts) RemoveStaging() error { return p.cleanup.removeStaging() }

// Close undoes everything, and removes placeholders that are unchanged. Call
// it when the container is gone. It is idempotent; after an error it may be
// called again, and what is left stays in the cleanup list.
func (p *Mounts) Close(ctx context.Context) error { return p.cleanup.closeAll(ctx) }
