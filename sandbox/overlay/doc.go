// Package overlay holds the layers of copy-on-write workspaces on disk: what a
// session changed, kept apart from the folder until it is applied or discarded.
//
//	DIR/upper      what commands wrote: files, whiteouts, opaque folders
//	DIR/work       the kernel's own
//	DIR/base.json  what the workspace was when the session began
//
// It reads and writes layers and applies them to the original folder, by held
// descriptors and without following a link of either. It mounts nothing: that
// is sandbox/internal/workmount's, for the backends. It imports sandbox and
// tools/workspace.
package overlay
