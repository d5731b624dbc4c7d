package workspace

import (
	"unicode/utf8"
)

// OpKind names a change to a workspace.
type OpKind string

// The changes that a [Writer] makes.
const (
	OpWrite  OpKind = "write"  // create or overwrite Path with Content, parents included
	OpAppend OpKind = "append" // add Content at the end of Path, or create it, parents included
	OpPatch  OpKind = "patch"  // replace Old by New in Path
	OpDelete OpKind = "delete" // remove Path; a directory only with Recursive
	OpMkdir  OpKind = "mkdir"  // create the directory Path and its parents
	OpRename OpKind = "rename" // move Path to To, both inside the workspace
	OpChmod  OpKind = "chmod"  // set the mode of the directory Path, a symlink not followed
)

// Op is one change to a workspace, requested by the host and made by the guest.
type Op struct {
	Kind OpKind `json:"kind"`
	// Path is relative to the workspace, or absolute under its container or host
	// path.
	Path string `json:"path"`
	// To is the new path of a rename.
	To string `json:"to,omitempty"`
	// PathBytes and ToBytes replace Path and To if JSON can't carry their bytes;
	// see [Op.EncodePaths].
	PathBytes []byte `json:"path_bytes,omitempty"`
	ToBytes   []byte `json:"to_bytes,omitempty"`
	// Content is what a write or append writes. The resulting file may have at most
	// [MaxWriteBytes].
	Content []byte `json:"content,omitempty"`
	// Old must occur exactly once in the file, unless ReplaceAll is set.
	Old        string `json:"old,omitempty"`
	New        string `json:"new,omitempty"`
	ReplaceAll bool   `json:"replace_all,omitempty"`
	// Recursive lets a delete remove a directory and everything in it.
	Recursive bool `json:"recursive,omitempty"`
	// Mode is the twelve mode bits of chmod(2) to set, or, with Add, to add.
	Mode uint32 `json:"mode,omitempty"`
	Add  bool   `json:"add,omitempty"`
	// IfSHA256 is the hex SHA-256 that the file must have, "absent" if there must
	// be no file, or "". It prevents a change that was approved for other content.
	IfSHA256 string `json:"if_sha256,omitempty"`
}

// Bounds of one operation.
const (
	// MaxWriteBytes bounds the content of one write, and a file that is patched or
	// appended to.
	MaxWriteBytes = 16 << 20
	// MaxPreimageBytes bounds the previous content that a [Change] keeps for a
	// diff.
	MaxPreimageBytes = 1 << 20
)

// Change describes the effect of an [Op].
type Change struct {
	Kind OpKind `json:"kind"`
	// Path is relative to the workspace, slash-separated and cleaned.
	Path string `json:"path"`
	To   string `json:"to,omitempty"`
	// PathBytes and ToBytes are as in [Op].
	PathBytes []byte `json:"path_bytes,omitempty"`
	ToBytes   []byte `json:"to_bytes,omitempty"`
	Created   bool   `json:"created,omitempty"`
	// Bytes is the file's size after the change.
	Bytes        int64 `json:"bytes"`
	Replacements int   `json:"replacements,omitempty"`
	// Removed is the number of files and directories that a delete removed.
	Removed int `json:"removed,omitempty"`
	// Mode is the twelve mode bits of a directory before its mode was set.
	Mode uint32 `json:"mode,omitempty"`
	// Before is the previous content. HasBefore is false if the file is new or had
	// more than [MaxPreimageBytes].
	Before    []byte `json:"before,omitempty"`
	HasBefore bool   `json:"has_before,omitempty"`
}

// EncodePaths returns op with paths that JSON can carry: names are bytes, but JSON
// strings are UTF-8.
func (op Op) EncodePaths() Op {
	op.Path, op.PathBytes = encodeName(op.Path)
	op.To, op.ToBytes = encodeName(op.To)
	return op
}

// DecodePaths undoes EncodePaths.
func (op Op) DecodePaths() Op {
	op.Path, op.To = decodeName(op.Path, op.PathBytes), decodeName(op.To, op.ToBytes)
	op.PathBytes, op.ToBytes = nil, nil
	return op
}

// EncodePaths is like [Op.EncodePaths].
func (c Change) EncodePaths() Change {
	c.Path, c.PathBytes = encodeName(c.Path)
	c.To, c.ToBytes = encodeName(c.To)
	return c
}

// DecodePaths undoes EncodePaths.
func (c Change) DecodePaths() Change {
	c.Path, c.To = decodeName(c.Path, c.PathBytes), decodeName(c.To, c.ToBytes)
	c.PathBytes, c.ToBytes = nil, nil
	return c
}

func encodeName(name string) (string, []byte) {
	if utf8.ValidString(name) {
		return name, nil
	}
	return "", []byte(name)
}

func decodeName(name string, bytes []byte) string {
	if len(bytes) > 0 {
		return string(bytes)
	}
	return name
}
