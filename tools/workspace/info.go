package workspace

import (
	"io/fs"
	"time"
)

// Type says what kind of thing a name is.
type Type string

// The types of entries.
const (
	TypeFile   Type = "file"
	TypeDir    Type = "dir"
	TypeLink   Type = "link"
	TypeFIFO   Type = "fifo"
	TypeSocket Type = "socket"
	TypeDevice Type = "device"
	// TypeMount is a mount point inside the workspace; it is never entered.
	TypeMount Type = "mount"
	// TypeOther is whatever the system could not tell.
	TypeOther Type = "other"
)

// Info describes what a path leads to, links followed.
type Info struct {
	// Path is relative to the workspace, slash-separated, cleaned.
	Path string
	Type Type
	// Size is in bytes; meaningful for files.
	Size    int64
	Mode    fs.FileMode
	ModTime time.Time
	// Inode identifies the thing within its file system; 0 where the system
	// does not tell it.
	Inode uint64
}

// File is a piece of a regular file.
type File struct {
	Info
	// Offset is where Data starts. Data is nil at and beyond the end.
	Offset int64
	Data   []byte
	// Truncated says that the file goes on after Data. Size is the file's
	// size when it was opened, or what was read where that is more.
	Truncated bool
}

// Entry is one name in a folder. Nothing in it comes from what a link leads
// to, nor from another mount.
type Entry struct {
	// Path is relative to the workspace, slash-separated. It holds the name's
	// very bytes, which may be no UTF-8 and may hold control characters:
	// escape it before it is shown.
	Path string
	// Depth is 1 for the entries of the folder that was asked for.
	Depth int
	Type  Type
	// Size is in bytes, for files; 0 otherwise.
	Size int64
	// Target is what a link says, unresolved.
	Target string
	// Mode, ModTime, ChangeTime and Inode are the entry's own, a link's too.
	// For folders and mounts only Mode's type is set: looking at a mount point
	// could wait for what is mounted there. ChangeTime and Inode are zero
	// where the system does not tell them.
	Mode       fs.FileMode
	ModTime    time.Time
	ChangeTime time.Time
	Inode      uint64
}

// Listing is the content of a folder, in the order of a tree: by name, each
// folder followed by what is in it.
type Listing struct {
	// Path is the folder, relative to the workspace, cleaned.
	Path    string
	Entries []Entry
	// Truncated says that a cap on entries or their text was reached, and
	// Incomplete names folders that could not be read or were too deep, at most
	// 20 of them.
	Truncated  bool
	Incomplete []string
}
