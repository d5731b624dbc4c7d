package wire

// Look asks the guest to read the workspace as a command could: what a host
// that can't see the workspace itself shows of it. The path is relative, a byte
// string as names are to Linux.
//
//	{"kind":"info","path":"c3JjL2EuZ28=","follow":true}
//	{"kind":"folder","path":"c3Jj","most":100000,"text":1048576}
//	{"kind":"file","path":"c3JjL2EuZ28=","offset":4096,"most":65536}
//	{"kind":"files","path":"c3Jj","names":["YS5nbw==","Yi5nbw=="],"most":65536}
type Look struct {
	Kind LookKind `json:"kind"`
	Path []byte   `json:"path"`
	// Follow lets the path's last name be a link; it may always be one for a file.
	Follow bool `json:"follow,omitempty"`
	// Names are the files of the directory Path that are read, at most
	// [MaxLookNames].
	Names [][]byte `json:"names,omitempty"`
	// Most bounds the entries of a folder, at most [MaxLookEntries], or the
	// bytes of a file, at most [MaxLookBytes], which are read from Offset on.
	Most   int64 `json:"most,omitempty"`
	Offset int64 `json:"offset,omitempty"`
	// Text bounds the bytes of a folder's paths (the folder's own, a slash and
	// the name) and link targets, at most [MaxLookText].
	Text int64 `json:"text,omitempty"`
}

// LookKind is what a look is for.
type LookKind string

// The kinds of a look.
const (
	LookInfo   LookKind = "info"   // what a path leads to
	LookFolder LookKind = "folder" // channel 1: one [LookEntry] a line, in the order of their names
	LookFile   LookKind = "file"   // channel 1: the file's bytes
	LookFiles  LookKind = "files"  // channel 1: a [LookedFile] and the file's bytes for each name
)

// Bounds of a look.
const (
	MaxLookEntries = 100_000
	// MaxLookText is about what a guest holds of a folder, twice.
	MaxLookText  = 16 << 20
	MaxLookBytes = 16 << 20
	MaxLookNames = 64
	// MaxLookLine bounds one entry: a name of 255 bytes and a link's target of
	// 4095 in base64, and numbers.
	MaxLookLine = 8 << 10
	// MaxFolder bounds the lines of one folder. A guest leaves out the entries
	// beyond it, as it does those beyond Look.Most and Look.Text.
	MaxFolder = 64 << 20
)

// LookEntry is one name in a folder; the meaning of each field is that of
// workspace.Entry.
//
//	{"name":"YS5nbw==","type":"file","size":213,"mode":420,"modified":[1700000000,5],"changed":[1700000000,5],"inode":12}
type LookEntry struct {
	Name     []byte    `json:"name"`
	Type     string    `json:"type"`
	Size     int64     `json:"size,omitempty"`
	Target   []byte    `json:"target,omitempty"`
	Mode     uint32    `json:"mode,omitempty"` // as fs.FileMode has it
	Modified *LookTime `json:"modified,omitempty"`
	Changed  *LookTime `json:"changed,omitempty"`
	Inode    uint64    `json:"inode,omitempty"`
}

// LookedFile is a line before the bytes of one file of several.
//
//	{"info":{"type":"file","size":213,"mode":420,"modified":[1700000000,5]},"length":213}
//	{"error":{"kind":"not_found","path":"","detail":"no such file or directory"}}
type LookedFile struct {
	Info *LookedInfo `json:"info,omitempty"`
	// Length is the number of bytes that follow: none of a file that is larger
	// than Look.Most.
	Length int64    `json:"length,omitempty"`
	Error  *OpError `json:"error,omitempty"`
	// Mount reports whether the error is of a path on another mount.
	Mount bool `json:"mount,omitempty"`
}

// LookTime is seconds since 1970 and nanoseconds, which are never negative.
type LookTime [2]int64

// Looked ends a look stream.
//
//	{"info":{"type":"file","size":213,"mode":420,"modified":[1700000000,5]},"more":true}
//	{"error":{"kind":"not_found","path":"","detail":"no such file or directory"}}
//	{"cancelled":true}
type Looked struct {
	// Info is of what the path leads to; none for a folder's entries.
	Info *LookedInfo `json:"info,omitempty"`
	// More is set if the file or directory continues, or if the last of several
	// files were not read: a guest ends after [MaxLookBytes], with at least one.
	More  bool     `json:"more,omitempty"`
	Error *OpError `json:"error,omitempty"`
	// Mount says that the error is of a path on another mount.
	Mount     bool `json:"mount,omitempty"`
	Cancelled bool `json:"cancelled,omitempty"`
}

// LookedInfo describes what a path leads to, as workspace.Info does.
type LookedInfo struct {
	Type     string   `json:"type"`
	Size     int64    `json:"size,omitempty"`
	Mode     uint32   `json:"mode,omitempty"`
	Modified LookTime `json:"modified"`
	Inode    uint64   `json:"inode,omitempty"`
}
