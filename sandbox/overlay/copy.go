package overlay

import (
	"fmt"
	"strings"

	units "github.com/docker/go-units"
)

// CopyBounds bounds the copy of a workspace.
type CopyBounds struct {
	// Bytes is the largest size of all files together, Entries the largest
	// number of files and directories.
	Bytes, Entries int64
}

// DefaultCopyBounds are the usual bounds of a copy that is sent.
var DefaultCopyBounds = CopyBounds{Bytes: 256 << 20, Entries: 100_000}

// SizeError is the error for a workspace that is too large to be copied.
type SizeError struct {
	Bounds         CopyBounds
	Entries, Bytes int64
	// Largest describes the largest files and directories at the top.
	Largest []string
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("%s in %d entries is too large to be copied (at most %s in %d): the largest are %s",
		units.BytesSize(float64(e.Bytes)), e.Entries, units.BytesSize(float64(e.Bounds.Bytes)), e.Bounds.Entries, strings.Join(e.Largest, ", "))
}

// IncompleteError is the error of [Copy.Collect] if some files or directories
// could not be read, or exceed the bounds. All others were collected.
type IncompleteError struct {
	// Unread are up to 20 of them, and Count is their number.
	Unread []string
	Count  int
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("%d files or directories of the copy can't be read, or are too large: %q", e.Count, e.Unread)
}
