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

// Op is one change to one workspace, requested by the host and made by the
// guest. It is a value; the wire carries it as JSON, content in base64.
type Op struct {
	Kind OpKind `json:"kind"`
	// Path is relative to the workspace, or absolute under its container
	// path or its host path.
	Path string `json:"path"`
	// To is the new path of a rename.
	To string `json:"to,omitempty"`
	// PathBytes and ToBytes take the place of Path and To where JSON can't carry
	// their bytes; see [Op.EncodePaths].
	PathBytes []byte `json:"path_bytes,omitempty"`
	ToBytes   []byte `json:"to_bytes,omitempty"`
	// Content is the whole new content of a write, or what an append adds; the
	// file has at most [MaxWriteBytes] then.
	Content []byte `json:"content,omitempty"`
	// Old must occur exactly once in the file, unless ReplaceAll.
	Old        string `json:"old,omitempty"`
	New        string `json:"new,omitempty"`
	ReplaceAll bool   `json:"replace_all,omitempty"`
	// Recursive lets a delete remove a directory and what is below it.
	Recursive bool `json:"recursive,omitempty"`
	// Mode are the twelve bits of chmod(2) that a directory gets, or, with Add,
	// gets besides those that it has.
	Mode uint32 `json:"mode,omitempty"`
	Add  bool   `json:"add,omitempty"`
	// IfSHA256, where set, is the hex SHA-256 that the file must have before
	// the change ("" asks nothing; "absent" asks that there is none): what a
	// person approved against a diff is not done to another content.
	IfSHA256 string `json:"if_sha256,omitempty"`
}

// Bounds of one operation.
const (
	// MaxWriteBytes bounds the content of one write and the size of a file
	// that is patched or appended to.
	MaxWriteBytes = 16 << 20
	// MaxPreimageBytes bounds the content that a [Change] keeps of the file
	// as it was, so that a diff can be shown.
	MaxPreimageBytes = 1 << 20
)

// Change describes the effect of an [Op].
type Change struct {
	Kind OpKind `json:"kind"`
	// Path is relative to the workspace, slash-separated, cleaned.
	Path string `json:"path"`
	To   string `json:"to,omitempty"`
	// PathBytes and ToBytes are as in Op.
	PathBytes []byte `json:"path_bytes,omitempty"`
	ToBytes   []byte `json:"to_bytes,omitempty"`
	// Created reports whether Path did not exist before.
	Created bool `json:"created,omitempty"`
	// Bytes is the size of the file afterwards.
	Bytes int64 `json:"bytes"`
	// Replacements is the number of places that a patch changed.
	Replacements int `json:"replacements,omitempty"`
	// Removed is the number of files and directories that a delete removed.
	Removed int `json:"removed,omitempty"`
	// Mode are the twelve bits of a directory before its mode was set.
	Mode uint32 `json:"mode,omitempty"`
	// Before is the content before the change, at most [MaxPreimageBytes];
	// nil if there was none or it was larger (see HasBefore).
	Before    []byte `json:"before,omitempty"`
	HasBefore bool   `json:"has_before,omitempty"`
}

// EncodePaths returns op with paths that JSON can carry: names are bytes, and
// strings of JSON are UTF-8.
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
