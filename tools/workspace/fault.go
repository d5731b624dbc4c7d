package workspace

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// ErrMount is what the error of a path on another mount wraps.
var ErrMount = errors.New("on another mount")

// Errors of our own that the resolvers and the Writer give beside the
// system's; fault turns each into an [Error].
var (
	errEscape     = errors.New("leads outside")
	errLoop       = errors.New("too many links")
	errNotRegular = errors.New("not a regular file")
)

func escape(path string, err error) *Error {
	return &Error{
		Kind: KindEscape, Path: abbreviate(path), Err: err,
		Detail: "the path leads outside the workspace; only files inside it can be used, " +
			"and links only where they are relative and stay inside",
	}
}

// fault gives the [Error] for what happened to path; nil for nil. An *Error
// stays what it is.
func fault(path string, err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if isEscape(err) {
		return escape(path, err)
	}
	e := &Error{Kind: KindIO, Path: abbreviate(path), Err: err, Detail: "the file system answered with an error"}
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

// faults maps what systems answer; the first that matches counts, so the
// particular ones come before those of package fs.
var faults = []struct {
	is     error
	kind   Kind
	detail string
}{
	{errLoop, KindInvalid, "the links in the path go round in a circle, or there are more than 40 of them"},
	{syscall.ELOOP, KindInvalid, "the links in the path go round in a circle, or there are more than 40 of them"},
	{ErrMount, KindNotRegular, "the path is on another mount inside the workspace, which is not entered"},
	{errNotRegular, KindNotRegular, "not a regular file (a FIFO, a device or a socket)"},
	{syscall.ENXIO, KindNotRegular, "not a regular file (a FIFO, a device or a socket)"},
	{syscall.ENODEV, KindNotRegular, "not a regular file (a FIFO, a device or a socket)"},
	{syscall.ENOTDIR, KindNotDir, "a part of the path is not a folder"},
	{syscall.EISDIR, KindIsDir, "is a folder, not a file"},
	{syscall.ENAMETOOLONG, KindInvalid, "the path or a name in it is too long"},
	{syscall.EINVAL, KindInvalid, "the file system does not accept this name"},
	{syscall.EILSEQ, KindInvalid, "the file system does not accept this name"},
	{syscall.EROFS, KindPermission, "is read-only here and can't be changed"},
	{syscall.EBUSY, KindPermission, "is in use or protected (mounted) and can't be changed"},
	{syscall.ENOSPC, KindNoSpace, "no space is left"},
	{syscall.EDQUOT, KindNoSpace, "the disk quota is used up"},
	{syscall.EFBIG, KindTooLarge, "is larger than the file system allows"},
	{syscall.ENOTEMPTY, KindExists, "the folder is not empty"},
	{os.ErrDeadlineExceeded, KindTimeout, "the file system did not answer in time"},
	{syscall.ETIMEDOUT, KindTimeout, "the file system did not answer in time"},
	{syscall.EEXIST, KindExists, "exists already"},
	{fs.ErrNotExist, KindNotFound, "no such file or folder"},
	{fs.ErrExist, KindExists, "exists already"},
	{fs.ErrPermission, KindPermission, "permission denied by the file's mode or owner"},
}
