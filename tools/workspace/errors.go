package workspace

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// Kind classifies a workspace error.
type Kind string

// The kinds of errors. They are part of the guest protocol and of tool results, so
// that every backend reports the same.
const (
	KindInvalid    Kind = "invalid"     // empty, NUL, too long, negative offset
	KindEscape     Kind = "escape"      // leads outside the workspace, by name or by symlink
	KindNotFound   Kind = "not_found"   // no such file or directory
	KindExists     Kind = "exists"      // something is in the way
	KindNotRegular Kind = "not_regular" // a FIFO, device, socket, or a mount inside the workspace
	KindIsDir      Kind = "is_dir"      // a directory where a file is needed
	KindNotDir     Kind = "not_dir"     // a file where a directory is needed
	KindTooLarge   Kind = "too_large"   // over a bound of this package
	KindPermission Kind = "permission"  // the file's own mode, or a read-only mount
	KindNoMatch    Kind = "no_match"    // a patch whose Old occurs 0 or N times
	KindConflict   Kind = "conflict"    // the file is not the one that was approved
	KindNoSpace    Kind = "no_space"    // disk or quota full
	KindTimeout    Kind = "timeout"     // a stuck file system
	KindIO         Kind = "io"          // anything else that the system answered
)

// Error is the error of every method of [Reader] and [Writer]. Its text is for the
// model: it names the path as it was passed, what is wrong and what would help, and
// never a fact about the host outside the workspace.
type Error struct {
	Kind Kind
	Path string
	// Detail completes the sentence "<path>: <detail>".
	Detail string
	// Err is the system's error or nil. It is not shown.
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("%q: %s", e.Path, e.Detail) }

func (e *Error) Unwrap() error { return e.Err }

// ErrMount is wrapped by the error for a path on another mount.
var ErrMount = errors.New("on another mount")

// Errors that newError turns into an [Error].
var (
	errEscape     = errors.New("leads outside")
	errNotRegular = errors.New("not a regular file")
)

func newEscapeError(path string, err error) *Error {
	return &Error{
		Kind: KindEscape, Path: abbreviatePath(path), Err: err,
		Detail: "the path leads outside the workspace; only files inside it can be used, " +
			"and symlinks only if they are relative and stay inside",
	}
}

// newError returns the [Error] for err, which is about path. It returns an *Error
// as it is, and nil for nil.
func newError(path string, err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if errors.Is(err, errEscape) {
		return newEscapeError(path, err)
	}
	e := &Error{Kind: KindIO, Path: abbreviatePath(path), Err: err, Detail: "the file system answered with an error"}
	for _, f := range faults {
		if errors.Is(err, f.is) {
			e.Kind, e.Detail = f.kind, f.detail
			return e
		}
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		e.Detail += ": " + errno.Error()
	}
	return e
}

// faults lists system errors. The first match counts, so specific errors come
// before those of package fs.
var faults = []struct {
	is     error
	kind   Kind
	detail string
}{
	{syscall.ELOOP, KindInvalid, "the symlinks in the path go round in a circle, or there are more than 40 of them"},
	{ErrMount, KindNotRegular, "the path is on another mount inside the workspace, which is not entered"},
	{errNotRegular, KindNotRegular, "not a regular file (a FIFO, a device or a socket)"},
	{syscall.ENXIO, KindNotRegular, "not a regular file (a FIFO, a device or a socket)"},
	{syscall.ENODEV, KindNotRegular, "not a regular file (a FIFO, a device or a socket)"},
	{syscall.ENOTDIR, KindNotDir, "a part of the path is not a directory"},
	{syscall.EISDIR, KindIsDir, "is a directory, not a file"},
	{syscall.ENAMETOOLONG, KindInvalid, "the path or a name in it is too long"},
	{syscall.EINVAL, KindInvalid, "the file system does not accept this name"},
	{syscall.EILSEQ, KindInvalid, "the file system does not accept this name"},
	{syscall.EROFS, KindPermission, "is read-only here and can't be changed"},
	{syscall.EBUSY, KindPermission, "is in use or protected (mounted) and can't be changed"},
	{syscall.ENOSPC, KindNoSpace, "no space is left"},
	{syscall.EDQUOT, KindNoSpace, "the disk quota is used up"},
	{syscall.EFBIG, KindTooLarge, "is larger than the file system allows"},
	{syscall.ENOTEMPTY, KindExists, "the directory is not empty"},
	{syscall.ETIMEDOUT, KindTimeout, "the file system did not answer in time"},
	{fs.ErrNotExist, KindNotFound, "no such file or directory"},
	{fs.ErrExist, KindExists, "exists already"},
	{fs.ErrPermission, KindPermission, "permission denied by the file's mode or owner"},
}
