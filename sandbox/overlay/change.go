package overlay

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Kind is the kind of a change.
type Kind string

// The kinds of changes. A rename is a deletion and an addition.
const (
	Added    Kind = "added"
	Modified Kind = "modified" // content, or a symlink's target; perhaps the mode too
	Deleted  Kind = "deleted"
	Mode     Kind = "mode" // permission bits only
	Typed    Kind = "type" // for instance, a file became a directory
)

// Change is one path that differs from the original directory.
type Change struct {
	// Path is slash-separated and relative to the workspace. It has the exact
	// bytes of the name, which may be invalid UTF-8 and contain control
	// characters.
	Path string
	Kind Kind
	// Was and Now are the types before and after; "" means that nothing exists.
	Was, Now workspace.Type
	// WasMode and Mode are permission bits. Size is in bytes, after the change
	// or, for a deletion, before it. Target is a symlink's target.
	WasMode, Mode fs.FileMode
	Size          int64
	Target        string
	// Conflict describes how the original changed since the start of the
	// session. Such a change is not applied. It is "" if there is no conflict.
	Conflict string
	// LeftOut is the reason for which a change without a conflict is not
	// applied: a special file, or one that a git of the host would obey. It is
	// "" if the change is applied.
	LeftOut string
	// Git reports whether [ApplyOptions].GitConfig applies the change.
	Git bool
	// LinkOut reports whether the change is a symlink that leads out of the
	// workspace. [ApplyOptions].LinksOut applies it.
	LinkOut bool

	// was and now are the entries in the original and in the layer. base is the
	// stamp of the original at the start of the session.
	was, now *node
	base     *stamp
}

// isDir reports whether the change only concerns a directory itself.
func (c *Change) isDir() bool {
	return (c.Now == workspace.TypeDir || c.Now == "") && (c.Was == workspace.TypeDir || c.Was == "")
}

// File reports whether the change is one of a file or symlink, rather than of a
// directory alone.
func (c *Change) File() bool { return !c.isDir() }

// CountText counts changes as people do: the files, and beside them the directories that were
// made, removed or given another mode.
func CountText(list []Change) string {
	count := func(n int, one, more string) string {
		if n == 1 {
			return "1 " + one
		}
		return fmt.Sprintf("%d %s", n, more)
	}
	files := 0
	for i := range list {
		if list[i].File() {
			files++
		}
	}
	dirs := len(list) - files
	switch {
	case dirs == 0:
		return count(files, "file", "files")
	case files == 0:
		return count(dirs, "directory", "directories")
	}
	return count(files, "file", "files") + " and " + count(dirs, "directory", "directories")
}

// MarshalJSON returns the change as `caisson diff --json` prints it. A path
// that is invalid UTF-8 is also encoded as its bytes.
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

// Changes is the set of changes of a session, in tree order.
type Changes struct {
	List []Change
	// Truncated reports whether there are more than MaxEntries or MaxTextBytes.
	// None is applied then.
	Truncated bool
	// Omitted is the number of further files that are not in List.
	Omitted int
	// Unread names up to 20 directories that could not be read. Their changes
	// are unknown and not applied.
	Unread []string

	// twins are unchanged files with several names, by their inode in the
	// layer. An entry with the same inode is another name of such a file.
	twins map[uint64]twin
}

// twin is a file that is the same in the original and in the layer.
type twin struct {
	path string
	was  *node
}

// ReadOptions bounds the result of [Layers.Changes]. A zero field means its
// default.
type ReadOptions struct {
	// MaxEntries and MaxTextBytes bound the changes, and their paths and
	// symlink targets. The defaults are the constants with the same names.
	// Changes beyond the bounds are counted.
	MaxEntries, MaxTextBytes int
	// First reports whether a change at path has priority. Half of the room is
	// reserved for such changes. It may be nil.
	First func(path string) bool
}

// withDefaults returns o with its zero fields set to their defaults.
func (o ReadOptions) withDefaults() ReadOptions {
	if o.MaxEntries <= 0 {
		o.MaxEntries = MaxEntries
	}
	if o.MaxTextBytes <= 0 {
		o.MaxTextBytes = MaxTextBytes
	}
	return o
}

// join returns the path of name in the directory dir.
func join(dir, name string) string {
	if dir == "." {
		return name
	}
	return dir + "/" + name
}

// parent returns the directory of a path.
func parent(p string) string {
	if i := strings.LastIndexByte(p, '/'); i >= 0 {
		return p[:i]
	}
	return "."
}

// base returns the last name of a path.
func base(p string) string { return p[strings.LastIndexByte(p, '/')+1:] }
