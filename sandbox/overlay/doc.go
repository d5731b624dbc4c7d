// Package overlay manages the layers of copy-on-write workspaces on disk: the
// changes of a session, kept apart from the workspace until they are applied or
// discarded.
//
//	DIR/upper         what commands wrote: files, whiteouts, opaque directories
//	DIR/work          private to the kernel
//	DIR/lowers.json   the frozen layers below upper, the top one first
//	DIR/lowers/NAME   a link to FROZEN/NAME/users: this session needs that layer
//	DIR/base.json     the state of the workspace at the start of the session
//	DIR/stamps.json   in a fork, a link to the base.json of the first session
//	DIR/apply.json    the log of an apply that is under way, or was killed
//	DIR/applied.json  the changes that were applied, if others were not
//	DIR/state.json    the final state: applied, discarded, expired
//	DIR/lock          held while the session runs, and during an apply
//
// A frozen layer is the upper layer of a session at the time when it was forked.
// Nothing writes to it any more. It is removed with its last link.
//
//	FROZEN/NAME/upper what commands had written
//	FROZEN/NAME/users a file with a link for each session that needs the layer
//
// The package reads and writes layers and applies them to the original
// directory. It works by held descriptors, and follows symlinks of neither. It
// mounts nothing; package sandbox/internal/workmount does that for the backends.
// It imports sandbox, sandbox/guest/overlayfs and tools/workspace.
//
// The content of an upper layer was written by commands and is not trusted.
// Names may contain any byte, and files may be symlinks, pipes, or sparse files
// of a terabyte.
package overlay
