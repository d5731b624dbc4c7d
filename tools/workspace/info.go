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
	// TypeMount is a mount point inside the workspace. It is never entered.
	TypeMount Type = "mount"
	// TypeOther means that the system didn't tell the type.
	TypeOther Type = "other"
)

// Info describes a file.
type Info struct {
	// Path is relative to the workspace, slash-separated and cleaned.
	Path string
	Type Type
	// Target is the unresolved target of a symlink. Only Lstat sets it.
	Target  string
	Size    int64
	Mode    fs.FileMode
	ModTime time.Time
	// Inode identifies the file within its file system; 0 if unknown.
	Inode uint64
}

// File is a piece of a regular file.
type File struct {
	Info
	// Offset is where Data starts. Data is nil at and beyond the end.
	Offset int64
	Data   []byte
	// Truncated reports whether the file goes on after Data. Size is the file's
	// size when it was opened, or the end of Data if that is more.
	Truncated bool
}

// Entry is one name in a directory. It tells nothing about a symlink's target file
// or about another mount.
type Entry struct {
	// Path is relative to the workspace and slash-separated. Its bytes may be
	// invalid UTF-8 or control characters: escape it before you show it.
	Path string
	// Depth is 1 in the listed directory.
	Depth int
	Type  Type
	// Size is in bytes for files, else 0.
	Size   int64
	Target string
	// Mode, ModTime, ChangeTime and Inode describe the entry itself, also if it is
	// a symlink. Directories and mounts have only Mode's type: a stat of a mount
	// point could wait for its file system. ChangeTime and Inode are zero if
	// unknown.
	Mode       fs.FileMode
	ModTime    time.Time
	ChangeTime time.Time
	Inode      uint64
}

// Listing is the content of a directory, sorted by [TreeOrder].
type Listing struct {
	Path    string
	Entries []Entry
	// Truncated reports whether a cap on entries or their text was reached.
	// Incomplete names up to 20 directories that could not be read or were too
	// deep.
	Truncated  bool
	Incomplete []string
}

// Capacity is how many more entries may be returned, and how many bytes of paths
// and symlink targets.
type Capacity struct {
	Entries int
	Bytes   int64
}

func (o *ReaderOptions) capacity() Capacity {
	return Capacity{Entries: o.MaxEntries, Bytes: o.maxTextBytes}
}

// Fits reports whether there is room for e.
func (r Capacity) Fits(e Entry) bool { return r.Entries > 0 && e.textBytes() <= r.Bytes }

// Take uses room for e.
func (r *Capacity) Take(e Entry) {
	r.Entries--
	r.Bytes -= e.textBytes()
}

func (e *Entry) textBytes() int64 { return int64(len(e.Path) + len(e.Target)) }

// cappedAt returns r with each field capped at the one of most. Zero means that one.
func (r Capacity) cappedAt(most Capacity) Capacity {
	return Capacity{Entries: capValue(r.Entries, most.Entries), Bytes: capValue(r.Bytes, most.Bytes)}
}

func capValue[T int | int64](value, most T) T {
	if value <= 0 || value > most {
		return most
	}
	return value
}
