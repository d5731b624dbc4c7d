package wire

// ReadRequest asks the guest to read the workspace as a command could, for a
// host that can't see it. The path is relative and a byte string, like names in
// Linux.
//
//	{"kind":"info","path":"c3JjL2EuZ28=","follow":true}
//	{"kind":"directory","path":"c3Jj","most":100000,"text":1048576}
//	{"kind":"file","path":"c3JjL2EuZ28=","offset":4096,"most":65536}
//	{"kind":"files","path":"c3Jj","names":["YS5nbw==","Yi5nbw=="],"most":65536}
type ReadRequest struct {
	Kind ReadKind `json:"kind"`
	Path []byte   `json:"path"`
	// Follow lets the path's last name be a symlink, which it may always be for
	// a file.
	Follow bool `json:"follow,omitempty"`
	// Names are the files of the directory Path to read, at most
	// [MaxReadNames].
	Names [][]byte `json:"names,omitempty"`
	// Most bounds the entries of a directory, at most [MaxReadEntries], or the
	// bytes of a file from Offset on, at most [MaxReadBytes].
	Most   int64 `json:"most,omitempty"`
	Offset int64 `json:"offset,omitempty"`
	// Text bounds the bytes of a directory's paths (the directory's own, a
	// slash and the name) and symlink targets, at most [MaxReadText].
	Text int64 `json:"text,omitempty"`
}

// ReadKind selects what is read.
type ReadKind string

// The kinds of a read.
const (
	ReadInfo      ReadKind = "info"      // what a path leads to
	ReadDirectory ReadKind = "directory" // channel 1: one [DirEntry] a line, ordered by name
	ReadFile      ReadKind = "file"      // channel 1: the file's bytes
	ReadFiles     ReadKind = "files"     // channel 1: a [FileHeader] and the file's bytes for each name
)

// Bounds of a read.
const (
	MaxReadEntries = 100_000
	// MaxReadText is about half of what a guest holds of a directory.
	MaxReadText  = 16 << 20
	MaxReadBytes = 16 << 20
	MaxReadNames = 64
	// MaxEntryLine bounds an entry: a name of 255 bytes and a symlink's target
	// of 4095 in base64, and numbers.
	MaxEntryLine = 8 << 10
	// MaxDirectoryBytes bounds the lines of a directory. A guest leaves out the
	// entries beyond it, or beyond ReadRequest.Most and Text.
	MaxDirectoryBytes = 64 << 20
)

// DirEntry is one name in a directory; see workspace.Entry.
//
//	{"name":"YS5nbw==","type":"file","size":213,"mode":420,"modified":[1700000000,5],"changed":[1700000000,5],"inode":12}
type DirEntry struct {
	Name     []byte     `json:"name"`
	Type     string     `json:"type"`
	Size     int64      `json:"size,omitempty"`
	Target   []byte     `json:"target,omitempty"`
	Mode     uint32     `json:"mode,omitempty"` // as an fs.FileMode
	Modified *Timestamp `json:"modified,omitempty"`
	Changed  *Timestamp `json:"changed,omitempty"`
	Inode    uint64     `json:"inode,omitempty"`
}

// FileHeader is the line before the bytes of each of several files.
//
//	{"info":{"type":"file","size":213,"mode":420,"modified":[1700000000,5]},"length":213}
//	{"error":{"kind":"not_found","path":"","detail":"no such file or directory"}}
type FileHeader struct {
	Info *FileInfo `json:"info,omitempty"`
	// Length is the number of bytes that follow: 0 for a file larger than
	// ReadRequest.Most.
	Length int64    `json:"length,omitempty"`
	Error  *OpError `json:"error,omitempty"`
	// Mount reports that the error is about a path on another mount.
	Mount bool `json:"mount,omitempty"`
}

// Timestamp is seconds since 1970 and nanoseconds, which are never negative.
type Timestamp [2]int64

// ReadResult ends the stream of a read.
//
//	{"info":{"type":"file","size":213,"mode":420,"modified":[1700000000,5]},"more":true}
//	{"error":{"kind":"not_found","path":"","detail":"no such file or directory"}}
//	{"cancelled":true}
type ReadResult struct {
	// Info describes what the path leads to; nil for a directory's entries.
	Info *FileInfo `json:"info,omitempty"`
	// More is set if the file or directory continues, or if the last of several
	// files were not read: a guest ends after [MaxReadBytes], but reads at
	// least one.
	More  bool     `json:"more,omitempty"`
	Error *OpError `json:"error,omitempty"`
	// Mount reports that the error is about a path on another mount.
	Mount     bool `json:"mount,omitempty"`
	Cancelled bool `json:"cancelled,omitempty"`
}

// FileInfo describes what a path leads to; see workspace.Info.
type FileInfo struct {
	Type     string    `json:"type"`
	Size     int64     `json:"size,omitempty"`
	Target   []byte    `json:"target,omitempty"`
	Mode     uint32    `json:"mode,omitempty"`
	Modified Timestamp `json:"modified"`
	Inode    uint64    `json:"inode,omitempty"`
}
