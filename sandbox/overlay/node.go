package overlay

import (
	"crypto/sha256"
	"io/fs"
	"strconv"

	"github.com/caisson-run/caisson/tools/workspace"
)

// permissions are the bits that are compared and applied; a set-user-ID,
// set-group-ID or sticky bit never is.
const permissions = 0o777

// node is what one name is, never what a link leads to.
type node struct {
	typ      workspace.Type
	mode     uint32 // with the special bits, without the type
	uid, gid uint32
	size     int64
	mtime    int64 // nanoseconds
	ctime    int64
	ino      uint64
	nlink    uint32
	whiteout bool
	target   string
}

// stamp is what tells one state of an original from another, as base.json keeps
// it. The change time can't be set by a program, so that a content changed with
// the old size and modification time is still seen.
type stamp struct {
	Path string `json:"p,omitempty"`
	// Bytes is the path where it is no UTF-8, and Path is then empty.
	Bytes []byte         `json:"b,omitempty"`
	Type  workspace.Type `json:"t,omitempty"`
	Size  int64          `json:"s,omitempty"`
	Mode  uint32         `json:"m,omitempty"`
	MTime int64          `json:"mt,omitempty"`
	CTime int64          `json:"ct,omitempty"`
	Inode uint64         `json:"i,omitempty"`
	// Target is a link's, or the result of [shortenTarget].
	Target []byte `json:"l,omitempty"`
	// Index is the [hashIndex] of a git index.
	Index string `json:"x,omitempty"`
}

// matches says whether n is still what was stamped. The change time is left out
// where an apply of ours may have moved it: removing one name of a file does.
func (s *stamp) matches(n *node, loose bool) bool {
	if n == nil || s.Type != n.typ || s.Mode != n.mode {
		return false
	}
	if n.typ == workspace.TypeDir {
		return true // what is in it has stamps of its own
	}
	return s.Size == n.size && s.MTime == n.mtime && s.Inode == n.ino && shortenTarget(string(s.Target)) == shortenTarget(n.target) &&
		(loose || s.CTime == n.ctime)
}

// longTarget is from where on a stamp holds a hash of a link's target.
const longTarget = 256

// shortenTarget gives target, or its hash where it is long, behind a NUL, which no
// target has.
func shortenTarget(target string) string {
	if len(target) <= longTarget {
		return target
	}
	sum := sha256.Sum256([]byte(target))
	return "\x00" + string(sum[:])
}

// isSame says whether two looks saw the same thing, but for its change time.
func (n *node) isSame(o *node) bool {
	if n == nil || o == nil {
		return n == o
	}
	return n.typ == o.typ && n.mode == o.mode && n.ino == o.ino && (n.typ == workspace.TypeDir ||
		n.size == o.size && n.mtime == o.mtime && n.target == o.target)
}

func (n *node) perm() fs.FileMode { return fs.FileMode(n.mode & permissions) }

func formatMode(m fs.FileMode) string { return "0" + strconv.FormatUint(uint64(m.Perm()), 8) }
