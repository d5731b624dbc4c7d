package overlay

import "fmt"

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
