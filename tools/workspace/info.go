package workspace

import (
	"io/fs"
	"time"
)

// Type is the type of a directory entry.
type Type string

// The types of entries.
const (
	TypeFile    Type = "file"
	TypeDir     Type = "dir"
	TypeSymlink Type = "symlink"
	TypeFIFO    Type = "fifo"
	TypeSocket  Type = "socket"
	TypeDevice  Type = "device"
	// TypeMount is a mount point inside the workspace; it is never entered.
	TypeMount Type = "mount"
	// TypeOther is whatever the system could not tell.
	TypeOther Type = "other"
)

// Info describes what a path leads to, symlinks followed.
type Info struct {
	// Path is relative to the workspace, slash-separated, cleaned.
	Path string
	Type Type
	// Target is the unresolved target of a symlink. Only Lstat sets it.
	Target string
	// Size is in bytes; meaningful for files.
	Size    int64
	Mode    fs.FileMode
	ModTime time.Time
	// Inode identifies the file within its file system; 0 if the system
	// does not tell it.
	Inode uint64
}

// File is a piece of a regular file.
type File struct {
	Info
	// Offset is where Data starts. Data is nil at and beyond the end.
	Offset int64
	Data   []byte
	// Truncated reports whether the file goes on after Data. Size is the file's
	// size when it was opened, or the number of bytes that were read if that is
	// more.
	Truncated bool
}

// Entry is one name in a directory. Nothing in it comes from what a symlink leads
// to, nor from another mount.
type Entry struct {
	// Path is relative to the workspace, slash-separated. It holds the name's
	// very bytes, which may be no UTF-8 and may hold control characters:
	// escape it before it is shown.
	Path string
	// Depth is 1 for the entries of the directory that is listed.
	Depth int
	Type  Type
	// Size is in bytes, for files; 0 otherwise.
	Size int64
	// Target is the unresolved target of a symlink.
	Target string
	// Mode, ModTime, ChangeTime and Inode are the entry's own, a symlink's too.
	// For directories and mounts only Mode's type is set: looking at a mount
	// point could wait for what is mounted there. ChangeTime and Inode are zero
	// if the system does not report them.
	Mode       fs.FileMode
	ModTime    time.Time
	ChangeTime time.Time
	Inode      uint64
}

// Listing is the content of a directory, in the order of a tree: by name, each
// directory followed by what is in it.
type Listing struct {
	// Path is the directory, relative to the workspace, cleaned.
	Path    string
	Entries []Entry
	// Truncated reports whether the cap on entries or their text was reached.
	// Incomplete names directories that could not be read or were too deep, at
	// most 20 of them.
	Truncated  bool
	Incomplete []string
}

// Capacity is how many entries of directories may still be returned, and how
// many bytes their paths and symlink targets may have.
type Capacity struct {
	Entries int
	Bytes   int64
}

func (o *ReaderOptions) capacity() Capacity {
	return Capacity{Entries: o.MaxEntries, Bytes: o.MaxTextBytes}
}

// Fits reports whether there is capacity left for e.
func (r Capacity) Fits(e Entry) bool { return r.Entries > 0 && e.textBytes() <= r.Bytes }

// Take uses the capacity for e.
func (r *Capacity) Take(e Entry) {
	r.Entries--
	r.Bytes -= e.textBytes()
}

// isExhausted reports whether nothing fits any more.
func (r Capacity) isExhausted() bool { return r.Entries <= 0 || r.Bytes <= 0 }

// textBytes returns how many bytes an entry has beside its fixed size.
func (e *Entry) textBytes() int64 { return int64(len(e.Path) + len(e.Target)) }

// cappedAt returns r, capped at most. Zero means most.
func (r Capacity) cappedAt(most Capacity) Capacity {
	return Capacity{Entries: capValue(r.Entries, most.Entries), Bytes: capValue(r.Bytes, most.Bytes)}
}

func capValue[T int | int64](value, most T) T {
	if value <= 0 || value > most {
		return most
	}
	return value
}
