// Package overlay holds the layers of copy-on-write workspaces on disk: what a
// session changed, kept apart from the folder until it is applied or discarded.
//
//	DIR/upper       what commands wrote: files, whiteouts, opaque folders
//	DIR/work        the kernel's own
//	DIR/base.json   what the workspace was when the session began
//	DIR/apply.json  the journal of an apply that is under way, or was killed
//	DIR/applied.json  the changes that were applied, where some were not
//	DIR/state.json  how it went on: applied, discarded, expired
//	DIR/lock        held while the session runs, and while it is applied
//
// It reads and writes layers and applies them to the original folder, by held
// descriptors and without following a link of either. It mounts nothing: that
// is sandbox/internal/workmount's, for the backends. It imports sandbox and
// tools/workspace.
//
// What is in an upper layer was written by commands, and is believed in nothing:
// names may hold any byte, files may be links, pipes, or a terabyte of nothing.
package overlay
