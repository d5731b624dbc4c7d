package workspace

import "fmt"

// Kind classes what went wrong with a path.
type Kind string

// The kinds of a workspace error. They travel over the guest protocol and
// into tool results, so that every backend gives the same one.
const (
	KindInvalid    Kind = "invalid"     // empty, NUL, too long, negative offset
	KindEscape     Kind = "escape"      // leads outside the workspace, by name or by link
	KindNotFound   Kind = "not_found"   // no such file or folder
	KindExists     Kind = "exists"      // something is in the way
	KindNotRegular Kind = "not_regular" // a FIFO, device, socket, or a mount inside the workspace
	KindIsDir      Kind = "is_dir"      // a folder where a file is needed
	KindNotDir     Kind = "not_dir"     // a file where a folder is needed
	KindTooLarge   Kind = "too_large"   // over a bound of this package
	KindPermission Kind = "permission"  // the file's own mode, or a read-only mount
	KindNoMatch    Kind = "no_match"    // a patch whose Old occurs 0 or N times
	KindConflict   Kind = "conflict"    // the file is not the one that was approved
	KindNoSpace    Kind = "no_space"    // disk or quota full
	KindTimeout    Kind = "timeout"     // a stuck file system
	KindIO         Kind = "io"          // anything else that the system answered
)

// Error is what every method of [Reader] and [Writer] fails with. Its text is
// written for the model: it names the path as it was given, what is wrong and
// what would help, and never a fact about the host outside the workspace.
type Error struct {
	Kind Kind
	// Path is the path as it was given.
	Path string
	// Detail completes the sentence "<path>: <detail>".
	Detail string
	// Err is the system's error, where there is one; it is not shown.
	Err error
}

// Error gives the path, escaped, and the detail.
func (e *Error) Error() string { return fmt.Sprintf("%q: %s", e.Path, e.Detail) }

// Unwrap gives the system's error.
func (e *Error) Unwrap() error { return e.Err }
