package overlay

import "fmt"

// ApplyOptions say what of the changes is brought in. The zero value is all of
// them, but for what a host's git obeys and symlinks that lead out of the
// workspace, or none where there is a conflict.
type ApplyOptions struct {
	// Rest applies what does not conflict; otherwise a conflict refuses all.
	Rest bool
	// GitConfig brings in what a git of the host obeys or runs, too.
	GitConfig bool
	// MaxEntries and MaxTextBytes bound the changes and their paths and link
	// targets, as in [ReadOptions]: it fails with [ErrTooMany] where there are more.
	MaxEntries, MaxTextBytes int
	// LinksOut brings in symlinks that lead out of the workspace, too.
	LinksOut bool
	// DryRun changes nothing, and gives what would be done.
	DryRun bool
	// step is told before each change of the folder, for tests; nil is nobody.
	step func(done int) error
}

// LeavesOut reports whether a change is not applied though nothing conflicts.
func (o ApplyOptions) LeavesOut(c *Change) bool {
	switch {
	case c.LeftOut == "":
		return false
	case !c.Git && !c.LinkOut:
		return true
	}
	return c.Git && !o.GitConfig || c.LinkOut && !o.LinksOut
}

// Result is what an apply did, or with DryRun would do.
type Result struct {
	// Applied are the changes that were brought in, Conflicts and LeftOut those
	// that were not, and why.
	Applied, Conflicts, LeftOut []Change
	// Failed are those that the system refused, Unread what could not be looked
	// into.
	Failed []Failure
	Unread []string
	// Refused says that a conflict kept all of it from being applied.
	Refused bool
	// State is that of the layers afterwards: [Applied] where nothing is left
	// to be applied, and the layers are gone.
	State State
}

// Failure is a change that could not be made.
type Failure struct {
	Path string
	Err  error
}

// Error names the path and the cause.
func (f Failure) Error() string { return fmt.Sprintf("%s: %v", quote(f.Path), f.Err) }

// Unwrap gives the cause.
func (f Failure) Unwrap() error { return f.Err }
