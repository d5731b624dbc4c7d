package quarantine

import (
	"context"
	"errors"
	"path"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// restoreTime bounds restoring a directory's mode, even if the scan was cancelled.
	restoreTime = 30 * time.Second
	// ownerAll and ownerSearch are mode bits of a directory.
	ownerAll, ownerSearch = 0o700, 0o100
)

// errClosedBefore means that the directory may be as the user left it.
var errClosedBefore = errors.New("it could not be looked into when the session began")

// The mode of a directory can prevent finding or renaming a repository in it, which a command
// can do to its own directories. Such directories are opened for their owner inside the sandbox,
// under the identity that made them, and closed again. Directories of other users stay as they
// are: commands can't have made them.

// openDirectory makes a directory accessible to the scan, unless it was closed when the session
// began.
func (q *Quarantine) openDirectory(ctx context.Context, dir string) (restore func(), err error) {
	if !q.found.coversPath(path.Join(dir, "entry")) {
		return nil, errClosedBefore
	}
	return q.addPermissions(ctx, dir, ownerAll)
}

// addPermissions adds permission bits of the owner to a directory. Unless it fails, the caller
// must call restore.
func (q *Quarantine) addPermissions(ctx context.Context, dir string, bits uint32) (restore func(), err error) {
	was, err := q.setMode(ctx, dir, bits, true)
	if err != nil {
		q.opts.Log.Warn("open directory for a scan", zap.String("path", dir), zap.Error(err))
		return nil, err
	}
	if was&bits == bits {
		return func() {}, nil
	}
	return func() {
		ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), restoreTime, errSlow)
		defer cancel()
		if _, err := q.setMode(ctx, dir, was, false); err != nil {
			q.opts.Log.Warn("close directory again", zap.String("path", dir), zap.Error(err))
		}
	}, nil
}

// openParents makes the directory of p writable and the directories above it searchable.
func (q *Quarantine) openParents(ctx context.Context, p string) (restore func()) {
	var undo []func()
	open := func(dir string, bits uint32) {
		if restore, err := q.addPermissions(ctx, dir, bits); err == nil {
			undo = append(undo, restore)
		}
	}
	above := parentDirs(p)
	for _, dir := range above {
		open(dir, ownerSearch)
	}
	open(above[len(above)-1], ownerAll)
	return func() {
		for _, restore := range slices.Backward(undo) {
			restore()
		}
	}
}

// parentDirs returns the directories above dir, the workspace first.
func parentDirs(dir string) []string {
	var out []string
	for dir != "." {
		dir = path.Dir(dir)
		out = append(out, dir)
	}
	slices.Reverse(out)
	return out
}

// setMode sets a directory's mode inside the sandbox and returns the previous one.
func (q *Quarantine) setMode(ctx context.Context, dir string, mode uint32, add bool) (uint32, error) {
	change, err := q.opts.Change(ctx, workspace.Op{Kind: workspace.OpChmod, Path: dir, Mode: mode, Add: add})
	return change.Mode, err
}

// isDenied reports whether err is about modes or owners.
func isDenied(err error) bool {
	e, ok := errors.AsType[*workspace.Error](err)
	return ok && e.Kind == workspace.KindPermission
}
