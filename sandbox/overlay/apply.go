package overlay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

// ApplyOptions selects the changes to apply. The zero value applies all of
// them, except for what a host's git obeys and symlinks that lead out of the
// workspace. If there is a conflict, it applies none.
type ApplyOptions struct {
	// Rest applies the changes without conflicts. Otherwise a conflict refuses
	// all changes.
	Rest bool
	// GitConfig also applies what a git of the host obeys or runs.
	GitConfig bool
	// MaxEntries and MaxTextBytes bound the changes and their paths and symlink
	// targets, as in [ReadOptions]. Apply returns [ErrTooMany] if there are
	// more.
	MaxEntries, MaxTextBytes int
	// LinksOut also applies symlinks that lead out of the workspace.
	LinksOut bool
	// DryRun changes nothing, and returns what would be done.
	DryRun bool
	// step is called before each change of the directory, in tests. It may be
	// nil.
	step func(done int) error
}

// LeavesOut reports whether a change without a conflict is not applied.
func (o ApplyOptions) LeavesOut(c *Change) bool {
	switch {
	case c.LeftOut == "":
		return false
	case !c.Git && !c.LinkOut:
		return true
	}
	return c.Git && !o.GitConfig || c.LinkOut && !o.LinksOut
}

// Result describes what an apply did, or with DryRun would do.
type Result struct {
	// Applied are the changes that were applied. Conflicts and LeftOut are
	// those that were not, with the reason.
	Applied, Conflicts, LeftOut []Change
	// Failed are the changes that the system refused. Unread names directories
	// that could not be read.
	Failed []Failure
	Unread []string
	// Refused reports whether a conflict kept all changes from being applied.
	Refused bool
	// State is the state of the layers afterwards. It is [Applied] if nothing
	// is left to apply; the layers are gone then.
	State State
}

// Failure is a change that could not be made.
type Failure struct {
	Path string
	Err  error
}

// Error returns a message with the path and the cause.
func (f Failure) Error() string { return fmt.Sprintf("%s: %v", quote(f.Path), f.Err) }

// Unwrap returns f.Err.
func (f Failure) Unwrap() error { return f.Err }

// Apply applies the changes to the original directory. It returns [ErrBusy] if
// the session still runs or another apply is under way in that directory. It
// may also return [ErrOther], [ErrGone] or [ErrTooMany]. It changes nothing in
// these cases. Conflicts are part of the result.
//
// Files are written under a temporary name and renamed, so that each is either
// the old or the new one at every moment. A log is written first: an apply that
// was killed can be repeated and ends in the same state. Cancelling ctx stops
// between two changes. If nothing is left to apply, the layers are removed.
//
// New files belong to the owner of the workspace; changed ones keep their
// owner. The set-user-ID, set-group-ID and sticky bits are never applied.
// Existing directories keep theirs.
func (l *Layers) Apply(ctx context.Context, original *os.File, o ApplyOptions) (*Result, error) {
	if err := l.Lock(); err != nil {
		return nil, fmt.Errorf("apply changes: %w", err)
	}
	// A sandbox locks the directory of the layers while it has them mounted,
	// even while it is being destroyed.
	unmounted, err := lockLayers(l.dir)
	if err != nil {
		return nil, fmt.Errorf("apply changes: %w", err)
	}
	defer unmounted()
	// One apply at a time per directory, whatever the sessions are.
	release, err := lockDirectory(original)
	if err != nil {
		return nil, fmt.Errorf("apply changes: %w", err)
	}
	defer release()
	if err := clearTemporary(l, original, o); err != nil {
		return nil, fmt.Errorf("apply changes: %w", err)
	}
	changes, err := l.Changes(ctx, original, ReadOptions{MaxEntries: o.MaxEntries, MaxTextBytes: o.MaxTextBytes})
	if err != nil {
		return nil, fmt.Errorf("apply changes: %w", err)
	}
	if changes.Truncated {
		bound := ReadOptions{MaxEntries: o.MaxEntries, MaxTextBytes: o.MaxTextBytes}.withDefaults()
		return nil, fmt.Errorf("apply changes: %w: there are more than %d, or more than %d MiB of names and link targets", ErrTooMany, bound.MaxEntries, bound.MaxTextBytes>>20)
	}
	r := &Result{State: Kept, Unread: changes.Unread}
	todo := r.splitChanges(changes, o)
	if r.Refused || o.DryRun {
		r.Applied = nil
		if !r.Refused {
			r.Applied = copyChanges(todo)
		}
		return r, nil
	}
	if err := l.makeChanges(ctx, original, todo, changes.twins, o, r); err != nil {
		return r, fmt.Errorf("apply changes: %w", err)
	}
	if len(r.Conflicts)+len(r.LeftOut)+len(r.Failed)+len(r.Unread) == 0 {
		r.State = Applied
		if err := l.endAs(Applied); err != nil {
			return r, fmt.Errorf("apply changes: all are applied, but what was kept of them is not removed: %w", err)
		}
	} else if len(r.Applied) > 0 {
		if err := l.writeState(Kept); err != nil {
			return r, fmt.Errorf("apply changes: what was applied is not noted: %w", err)
		}
	}
	return r, nil
}

// clearTemporary removes the temporary files of an apply that was killed.
func clearTemporary(l *Layers, original *os.File, o ApplyOptions) error {
	if o.DryRun || checkKept(l, original) != nil {
		return nil // Changes returns a better error
	}
	before, err := readApplyLog(l)
	if err != nil {
		return err
	}
	before.removeTemporary(tree{int(original.Fd())})
	return nil
}

// copyChanges returns the values of a list of pointers.
func copyChanges(list []*Change) []Change {
	out := make([]Change, 0, len(list))
	for _, c := range list {
		out = append(out, *c)
	}
	return out
}

// splitChanges returns the changes to apply, and adds the others to the result.
func (r *Result) splitChanges(changes *Changes, o ApplyOptions) (todo []*Change) {
	skipped := map[string]bool{} // directories that are not created
	for i := range changes.List {
		c := &changes.List[i]
		switch {
		case o.LeavesOut(c):
			r.LeftOut = append(r.LeftOut, *c)
		case c.Conflict != "":
			r.Conflicts = append(r.Conflicts, *c)
		case skipped[parent(c.Path)]:
			c.LeftOut = "its directory is not applied"
			r.LeftOut = append(r.LeftOut, *c)
		default:
			todo = append(todo, c)
			continue
		}
		skipped[c.Path] = c.Now == workspace.TypeDir && c.Kind != Mode
	}
	todo = r.keepParents(todo)
	r.Refused = len(r.Conflicts) > 0 && !o.Rest
	return todo
}

// keepParents removes the deletions of directories that can't go, because
// something in them stays.
func (r *Result) keepParents(todo []*Change) []*Change {
	stays := map[string]bool{}
	for _, list := range [][]Change{r.LeftOut, r.Conflicts} {
		for i := range list {
			for dir := parent(list[i].Path); list[i].Was != "" && dir != "."; dir = parent(dir) {
				stays[dir] = true
			}
		}
	}
	return slices.DeleteFunc(todo, func(c *Change) bool {
		if !stays[c.Path] || c.Was != workspace.TypeDir || c.Kind != Deleted && c.Kind != Typed {
			return false
		}
		c.LeftOut = "something in it is not applied"
		r.LeftOut = append(r.LeftOut, *c)
		return true
	})
}

// makeChanges makes the changes in the original directory.
func (l *Layers) makeChanges(ctx context.Context, original *os.File, todo []*Change, twins map[uint64]twin, o ApplyOptions, r *Result) error {
	before, err := readApplyLog(l)
	if err != nil {
		return err
	}
	upper, err := l.openStack()
	if err != nil {
		return err
	}
	defer upper.close()
	w := writer{upper: upper, lower: tree{int(original.Fd())}, run: rand.Text()[:12], links: map[uint64]twin{}}
	maps.Copy(w.links, twins)
	w.owner, err = statAt(w.lower.fd, "")
	if err != nil {
		return err
	}
	if len(todo) == 0 {
		return nil
	}
	if err := l.extendApplyLog(before, w.run, todo); err != nil {
		return err
	}
	if err := w.makeAll(ctx, todo, o, r); err != nil {
		return err
	}
	// Everything is on disk before it is recorded, and before anything is
	// removed.
	if err := w.syncDirectories(todo); err != nil {
		return fmt.Errorf("sync workspace: %w", err)
	}
	return recordApplied(l, r)
}

// makeAll makes the changes in an order in which each one is possible. It makes
// deletions first, the deepest one first. Then it adds files and directories,
// parents first. Last come the modes of directories, which could make them
// inaccessible.
func (w *writer) makeAll(ctx context.Context, todo []*Change, o ApplyOptions, r *Result) error {
	done := 0
	failed := map[*Change]bool{}
	w.onFailure = func(c *Change, err error) error {
		failed[c] = true
		if errors.Is(err, errChanged) {
			c.Conflict = conflictDiffers
			r.Conflicts = append(r.Conflicts, *c)
			return nil
		}
		r.Failed = append(r.Failed, Failure{c.Path, err})
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS) {
			return Failure{c.Path, err} // all others would fail too
		}
		return nil
	}
	step := func(c *Change, do func(*Change) error) error {
		if failed[c] {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if o.step != nil {
			if err := o.step(done); err != nil {
				return err
			}
		}
		done++
		if err := do(c); err != nil {
			return w.onFailure(c, err)
		}
		return nil
	}
	for _, c := range slices.Backward(todo) {
		if c.Kind == Deleted || c.Kind == Typed && c.Was == workspace.TypeDir {
			if err := step(c, w.removeEntry); err != nil {
				return err
			}
		}
	}
	defer w.dropStaged()
	for _, c := range todo {
		if c.Kind != Deleted {
			if err := step(c, w.writeEntry); err != nil {
				return err
			}
		}
	}
	if err := w.flushStaged(); err != nil {
		return err
	}
	for _, c := range slices.Backward(todo) {
		if c.Now == workspace.TypeDir {
			if err := step(c, w.setDirectoryMode); err != nil {
				return err
			}
		}
	}
	for _, c := range todo {
		if !failed[c] {
			r.Applied = append(r.Applied, *c)
		}
	}
	return nil
}

// lockLayers returns [ErrBusy] while a sandbox has the layers mounted.
func lockLayers(path string) (release func(), err error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("lock layers: %w", err)
	}
	defer func() { _ = dir.Close() }()
	return lockDirectory(dir)
}

// lockDirectory locks a directory against another apply. The lock ends with its
// descriptor, even if the process is killed. Unlike [state.Lock], which locks a
// file by its path, it locks the open directory itself.
func lockDirectory(dir *os.File) (release func(), err error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir.Name(), err)
	}
	err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrBusy
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("lock %s: %w", dir.Name(), err)
	}
	return func() {
		// A process that is being started may have a copy of the descriptor: with it, a
		// directory that is only closed stays locked until that process executes its program.
		_ = unix.Flock(fd, unix.LOCK_UN)
		unix.Close(fd)
	}, nil
}
