// Package archive writes files as tar archives (PAX), and writes files from such
// archives. The guest does both for commands whose program is its binary and whose first
// argument is [PackWord] or [UnpackWord]. So files get into and out of a sandbox through
// a command's standard input and output. The guest starts no process for this: commands
// in the sandbox could stop it and write in its place. The host's end uses the same code.
//
// An archive is untrusted input: commands choose its names and content. [Unpack] writes
// nothing outside its directory and nothing through a symlink, makes no special files,
// and keeps bounds on entries and bytes.
package archive

import (
	"errors"
	"fmt"
	"io"
)

// The words that make the guest transfer files:
//
//	/.caisson/guest pack PATH [NAME]   writes PATH as an archive to standard output
//	/.caisson/guest unpack DIRECTORY   writes the archive from standard input below DIRECTORY
//
//	/.caisson/guest pack-changes SINCE LAYER DIRECTORY...   writes what has changed in them since a time to standard output
//	/.caisson/guest unpack-changes DIRECTORY [WITHIN...] -- [EXCEPT...]   makes these changes below DIRECTORY
//
// NAME is the name of PATH in the archive; see [PackOptions.Name]. SINCE and LAYER, for
// [PackOptions.LayerSince], are numbers of nanoseconds since 1970; see [PackChanges].
// WITHIN and EXCEPT are the directories of a [LinkRule], whose Mounts are the sandbox's
// mount points. For each symlink that is left out, standard error has a line with
// [LeftOutPrefix] and a quoted text. The exit status is 0; 1 for an error, which standard
// error names, and an archive that may be cut off; 2 for wrong arguments; or one of the
// constants.
const (
	PackWord   = "pack"
	UnpackWord = "unpack"

	PackChangesWord   = "pack-changes"
	UnpackChangesWord = "unpack-changes"
	ExceptWord        = "--"
	LeftOutPrefix     = "symlink left out: "

	// StatusNoDirectory reports that DIRECTORY is no directory; nothing was read.
	StatusNoDirectory = 3
	// StatusNoFile reports that PATH does not exist; nothing was written.
	StatusNoFile = 4
	// StatusRefused reports that PATH is a special file, or that the archive is
	// malformed or has an entry that is not allowed.
	StatusRefused = 5
	// StatusIncomplete reports that an archive is whole except for entries that could not be
	// read, which standard error names.
	StatusIncomplete = 6
)

// Errors of this package; test for them with errors.Is.
var (
	// ErrBound is the error if an archive would exceed a bound.
	ErrBound = errors.New("too large")
	// ErrEntry is the error for an entry that is not allowed in an archive.
	ErrEntry = errors.New("refused entry")
	// ErrMalformed is the error if what is unpacked is no whole archive.
	ErrMalformed = errors.New("malformed archive")
	// ErrNoDirectory is the error if what is unpacked to is no directory.
	ErrNoDirectory = errors.New("no such directory")
	// ErrSpecial is the error for a socket, pipe or device, which no archive
	// contains.
	ErrSpecial = errors.New("special file")
)

// Bounds are bounds of one archive; a zero means none.
type Bounds struct {
	// Entries is the largest number of entries, together with the directories that are
	// made because no entry is one.
	Entries int64
	// Bytes is the largest number of bytes that all files have together. When unpacking, a
	// block of zeros counts a sixteenth of its size: it takes time, and no space.
	Bytes int64
	// Steps is the largest number of names that are looked up to unpack directories and links,
	// each part of a path and of a symlink's target counted.
	Steps int
}

// MaxSteps is a bound of [Bounds.Steps] for what commands made. Deep directories and the targets of
// symlinks could keep the reader busy for hours otherwise.
const MaxSteps = 10_000_000

// BoundedWriter passes writes on until Left bytes are used up. A write with more bytes
// fails with [ErrBound], and none of it is passed on. Err is the last error.
type BoundedWriter struct {
	W    io.Writer
	Left int64
	Err  error
}

// Write implements io.Writer.
func (b *BoundedWriter) Write(p []byte) (n int, err error) {
	if b.Left -= int64(len(p)); b.Left < 0 {
		err = ErrBound
	} else {
		n, err = b.W.Write(p)
	}
	if err != nil {
		b.Err = err
	}
	return n, err
}

// takeEntry counts one more entry with a file of size bytes.
func (b *budget) takeEntry(size int64) error {
	b.entries++
	if b.Entries > 0 && b.entries > b.Entries {
		return fmt.Errorf("%w: more than %d entries", ErrBound, b.Entries)
	}
	return b.takeBytes(size)
}

// takeBytes counts bytes of a file.
func (b *budget) takeBytes(size int64) error {
	if b.Bytes > 0 && size > b.Bytes-b.bytes {
		return fmt.Errorf("%w: more than %d bytes", ErrBound, b.Bytes)
	}
	b.bytes += size
	return nil
}

// budget counts an archive against its bounds.
type budget struct {
	Bounds
	entries, bytes int64
	steps          int
}
