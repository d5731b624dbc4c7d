package overlay

import (
	"encoding/json"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Kind says what became of a path.
type Kind string

// The kinds of changes. A rename is a deletion and an addition.
const (
	Added    Kind = "added"
	Modified Kind = "modified" // content, or a link's target; perhaps the mode too
	Deleted  Kind = "deleted"
	Mode     Kind = "mode" // permission bits alone
	Typed    Kind = "type" // a file became a folder, a folder a link, …
)

// Change is one path that differs from the original folder.
type Change struct {
	// Path is relative to the workspace, slash-separated. It holds the name's
	// very bytes, which may be no UTF-8 and may hold control characters.
	Path string
	Kind Kind
	// Was and Now are the types before and after; "" is nothing.
	Was, Now workspace.Type
	// WasMode and Mode are permission bits; Size is in bytes, afterwards for
	// what is there and before for what was deleted; Target is a link's.
	WasMode, Mode fs.FileMode
	Size          int64
	Target        string
	// Conflict says how the original changed since the session began, "" where
	// it did not: such a change is not applied.
	Conflict string
	// LeftOut says why the change is not applied though nothing conflicts, ""
	// where it is: a special file, or what a git of the host would obey.
	LeftOut string
	// Git says that LeftOut is what [ApplyOptions].GitConfig brings in.
	Git bool
	// LinkOut reports whether it is a symlink that leads out of the workspace:
	// [ApplyOptions].LinksOut brings it in.
	LinkOut bool

	// was and now are what was looked at, group what the file's other names
	// are known by; had is the stamp of the session's beginning.
	was, now *node
	base     *stamp
}

// isDir says that a folder is all that it is about.
func (c *Change) isDir() bool {
	return (c.Now == workspace.TypeDir || c.Now == "") && (c.Was == workspace.TypeDir || c.Was == "")
}

// File says whether the change is one of a file or link, as opposed to one of
// a folder alone.
func (c *Change) File() bool { return !c.isDir() }

// MarshalJSON gives the change as `caisson diff --json` prints it. A path that
// is no UTF-8 is also there as its bytes.
//
//	{"path":"a.sh","change":"modified","type":"file","size":12,"mode":"0755","conflict":"…"}
func (c Change) MarshalJSON() ([]byte, error) {
	out := struct {
		Path     string         `json:"path"`
		Bytes    []byte         `json:"path_base64,omitempty"`
		Change   Kind           `json:"change"`
		Was      workspace.Type `json:"was,omitempty"`
		Type     workspace.Type `json:"type,omitempty"`
		Size     int64          `json:"size"`
		WasMode  string         `json:"was_mode,omitempty"`
		Mode     string         `json:"mode,omitempty"`
		Target   string         `json:"target,omitempty"`
		Conflict string         `json:"conflict,omitempty"`
		LeftOut  string         `json:"left_out,omitempty"`
	}{
		Path: c.Path, Change: c.Kind, Was: c.Was, Type: c.Now, Size: c.Size, Target: c.Target,
		Conflict: c.Conflict, LeftOut: c.LeftOut,
	}
	if !utf8.ValidString(c.Path) {
		out.Path, out.Bytes = strings.ToValidUTF8(c.Path, "\ufffd"), []byte(c.Path)
	}
	if c.Was != "" {
		out.WasMode = formatMode(c.WasMode)
	}
	if c.Now != "" {
		out.Mode = formatMode(c.Mode)
	}
	return json.Marshal(out)
}

// Changes is what a session changed, in the order of a tree.
type Changes struct {
	List []Change
	// Truncated says that there are more than MaxEntries or MaxTextBytes: then
	// none is applied.
	Truncated bool
	// Omitted counts the files among those that are not in List.
	Omitted int
	// Unread names what could not be looked into, at most 20 of it: what
	// changed there is not known, and not applied.
	Unread []string

	// twins are files of several names that are no changes, by the inode that
	// they have in the layer: what has the same one is another name of theirs.
	twins map[uint64]twin
}

// twin is a file of the original that is the same in the layer.
type twin struct {
	path string
	was  *node
}

// ReadOptions bounds what [Layers.Changes] holds; every zero means the default.
type ReadOptions struct {
	// MaxEntries and MaxTextBytes bound the changes, and their paths and link
	// targets. The defaults are the constants of these names. The rest is counted.
	MaxEntries, MaxTextBytes int
	// First, unless it is nil, reports whether a change at path is one of those
	// that have half of the room to themselves.
	First func(path string) bool
}

func (o ReadOptions) withDefaults() ReadOptions {
	if o.MaxEntries <= 0 {
		o.MaxEntries = MaxEntries
	}
	if o.MaxTextBytes <= 0 {
		o.MaxTextBytes = MaxTextBytes
	}
	return o
}

// treeOrder compares paths name by name, so that a folder is followed by what
// is in it.
func treeOrder(a, b string) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	switch {
	case i == len(a) && i == len(b):
		return 0
	case i == len(a):
		return -1
	case i == len(b):
		return 1
	case a[i] == '/':
		return -1
	case b[i] == '/':
		return 1
	case a[i] < b[i]:
		return -1
	}
	return 1
}

// join gives the path of name in the folder dir.
func join(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// parent gives the folder of a path.
func parent(p string) string {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i]
	}
	return "."
}

// base gives the last name of a path.
func base(p string) string { return p[strings.LastIndexByte(p, '/')+1:] }
