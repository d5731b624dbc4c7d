// Package archive writes files as tar archives (PAX), and writes files from
// such archives. The guest does both for commands that run its binary with
// [PackWord] or [UnpackWord] as the first argument, to get files into and out
// of a sandbox through a command's standard input and output. The guest starts
// no process for this, because commands in the sandbox could stop it and write
// in its place. The host's end uses the same code.
//
// An archive is untrusted input: commands choose its names and content.
// [Unpack] writes nothing outside its directory and nothing through a symlink,
// makes no special files, and bounds entries and bytes.
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
//	/.caisson/guest pack-changes SINCE LAYER DIRECTORY...   writes the changes in them since a time to standard output
//	/.caisson/guest unpack-changes DIRECTORY [WITHIN...] -- [EXCEPT...]   makes these changes below DIRECTORY
//
// NAME is the name of PATH in the archive; see [PackOptions.Name]. SINCE and
// LAYER, for [PackOptions.LayerSince], are nanoseconds since 1970; see
// [PackChanges]. WITHIN and EXCEPT are the directories of a [LinkRule], whose
// Mounts are the sandbox's mount points. For each symlink that is left out,
// standard error has a line with [LeftOutPrefix] and a quoted text. The exit
// status is 0; 1 for an error, which standard error describes, or an archive
// that may be cut off; 2 for wrong arguments; or one of the constants.
const (
	PackWord   = "pack"
	UnpackWord = "unpack"

	PackChangesWord   = "pack-changes"
	UnpackChangesWord = "unpack-changes"
	ExceptWord        = "--"
	LeftOutPrefix     = "symlink left out: "

	// StatusNoDirectory means that DIRECTORY is not a directory; nothing was
	// read.
	StatusNoDirectory = 3
	// StatusNoFile means that PATH does not exist; nothing was written.
	StatusNoFile = 4
	// StatusRefused means that PATH is a special file, or that the archive is
	// malformed or has a forbidden entry.
	StatusRefused = 5
	// StatusIncomplete means that the archive is whole except for entries that
	// could not be read, which standard error names.
	StatusIncomplete = 6
)

// Errors of this package; test for them with errors.Is.
var (
	// ErrBound means that an archive would exceed a bound.
	ErrBound = errors.New("too large")
	// ErrEntry means that an archive has a forbidden entry.
	ErrEntry = errors.New("refused entry")
	// ErrMalformed means that the input is not a whole archive.
	ErrMalformed = errors.New("malformed archive")
	// ErrNoDirectory means that the directory to unpack to is not one.
	ErrNoDirectory = errors.New("no such directory")
	// ErrSpecial means a socket, pipe or device, which no archive contains.
	ErrSpecial = errors.New("special file")
)

// Bounds are the bounds of an archive; zero means none.
type Bounds struct {
	// Entries bounds the entries, including directories made without an entry.
	Entries int64
	// Bytes bounds the bytes of all files together. When unpacking, a block of
	// zeros counts a sixteenth of its size: it takes time, but no space.
	Bytes int64
	// Steps bounds the names looked up to unpack directories and links. Each
	// part of a path and of a symlink's target counts.
	Steps int
}

// MaxSteps is a value of [Bounds.Steps] for archives that commands made. Deep
// directories and symlinks could otherwise keep the reader busy for hours.
const MaxSteps = 10_000_000

// BoundedWriter passes writes on until Left bytes are used up. It refuses a
// larger write as a whole, with [ErrBound]. Err is the last error.
type BoundedWriter struct {
	W    io.Writer
	Left int64
	Err  error
}

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

// takeEntry counts another entry with a file of size bytes.
func (b *budget) takeEntry(size int64) error {
	b.entries++
	if b.Entries > 0 && b.entries > b.Entries {
		return fmt.Errorf("%w: more than %d entries", ErrBound, b.Entries)
	}
	return b.takeBytes(size)
}

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
