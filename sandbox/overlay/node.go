package overlay

import (
	"crypto/sha256"
	"io/fs"
	"strconv"

	"github.com/caisson-run/caisson/tools/workspace"
)

// permissions are the mode bits that a diff reports and an apply sets. Conflicts are
// found by the whole mode.
const permissions = 0o777

// node describes a directory entry. Symlinks are not followed.
type node struct {
	typ      workspace.Type
	mode     uint32 // with the special bits, but not the type
	uid, gid uint32
	size     int64
	mtime    int64 // nanoseconds
	ctime    int64
	ino      uint64
	nlink    uint32
	whiteout bool
	target   string
	// layer is the index of the upper layer that has the entry, 0 is the top one.
	layer int
}

// stamp identifies one state of an original file in base.json. Programs can't
// set the change time, so it reveals new content with the old size and
// modification time.
type stamp struct {
	Path string `json:"p,omitempty"`
	// Bytes is the path if it is invalid UTF-8. Path is empty then.
	Bytes []byte         `json:"b,omitempty"`
	Type  workspace.Type `json:"t,omitempty"`
	Size  int64          `json:"s,omitempty"`
	Mode  uint32         `json:"m,omitempty"`
	MTime int64          `json:"mt,omitempty"`
	CTime int64          `json:"ct,omitempty"`
	Inode uint64         `json:"i,omitempty"`
	// Target is the target of a symlink, or the result of [shortenTarget].
	Target []byte `json:"l,omitempty"`
	// Index is the [hashIndex] of a git index.
	Index string `json:"x,omitempty"`
	// Late reports that the entry may have changed since the session began: the
	// stamp then is not of the state that commands saw.
	Late bool `json:"late,omitempty"`
}

// matches reports whether n is still in the recorded state. If loose is set, it
// ignores the change time, which our own apply may have changed by removing
// another name of the file.
func (s *stamp) matches(n *node, loose bool) bool {
	if n == nil || s.Type != n.typ || s.Mode != n.mode {
		return false
	}
	if n.typ == workspace.TypeDir {
		return true // its content has stamps of its own
	}
	return s.Size == n.size && s.MTime == n.mtime && s.Inode == n.ino && shortenTarget(string(s.Target)) == shortenTarget(n.target) &&
		(loose || s.CTime == n.ctime)
}

// longTarget is the length above which a stamp contains a hash of the target.
const longTarget = 256

// shortenTarget returns target or, if it is long, its hash after a NUL, which
// no target contains.
func shortenTarget(target string) string {
	if len(target) <= longTarget {
		return target
	}
	sum := sha256.Sum256([]byte(target))
	return "\x00" + string(sum[:])
}

// isSame reports whether two nodes describe the same state, apart from the
// change time.
func (n *node) isSame(o *node) bool {
	if n == nil || o == nil {
		return n == o
	}
	return n.typ == o.typ && n.mode == o.mode && n.ino == o.ino && (n.typ == workspace.TypeDir ||
		n.size == o.size && n.mtime == o.mtime && n.target == o.target)
}

// perm returns the permission bits.
func (n *node) perm() fs.FileMode { return fs.FileMode(n.mode & permissions) }

// formatMode returns the permission bits in octal.
func formatMode(m fs.FileMode) string { return "0" + strconv.FormatUint(uint64(m.Perm()), 8) }
