package state

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// DirError reports a directory that can't hold state or that others could change.
type DirError struct {
	Path string
	// Reason is a sentence's predicate, such as "belongs to another user".
	Reason string
	Err    error // nil if Reason says everything
}

func (e *DirError) Error() string { return "the directory " + e.Path + " " + e.Reason }

func (e *DirError) Unwrap() error { return e.Err }

// CheckDir returns a [DirError] for a directory that another user owns or can write to.
// Stores trust what their directories contain. Symlinks are refused.
func CheckDir(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return &DirError{Path: path, Reason: "can't be read: " + err.Error(), Err: err}
	}
	why := "is not a directory (a symlink does not count)"
	if info.IsDir() {
		why = UnsafeReason(info)
	}
	if why != "" {
		return &DirError{Path: path, Reason: why}
	}
	return nil
}

// OpenDir opens a directory that passes [CheckDir].
func OpenDir(path string) (*os.Root, error) {
	if err := CheckDir(path); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, &DirError{Path: path, Reason: "can't be opened: " + err.Error(), Err: err}
	}
	info, err := root.Stat(".")
	if err != nil || UnsafeReason(info) != "" {
		return nil, errors.Join(&DirError{Path: path, Reason: "was replaced", Err: err}, root.Close())
	}
	return root, nil
}

// useTime is the age from which [MarkUsed] updates times.
const useTime = time.Hour

// MarkUsed sets a file's times to now, for [Expire]. Times less than an hour old stay,
// because some callers identify a file by them. Errors are ignored: a file that expires
// too early is made again.
func MarkUsed(path string) {
	now := time.Now()
	if info, err := os.Stat(path); err == nil && now.Sub(info.ModTime()).Abs() < useTime {
		return
	}
	_ = os.Chtimes(path, now, now)
}

// Expire removes a directory's entries that match accepts and that haven't been changed
// or marked as used since before. It goes on after errors. A missing directory is
// empty.
func Expire(dir string, before time.Time, match func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	errs := []error{IgnoreMissing(err)}
	for _, e := range entries {
		if !match(e.Name()) {
			continue
		}
		if info, err := e.Info(); err == nil && info.ModTime().Before(before) {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// noFollow refuses symlinks and doesn't block on pipes.
const noFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// UnsafeReason returns why a file or directory can't be trusted with state, as a
// sentence's predicate, or "" if only this process's user can change it.
func UnsafeReason(info fs.FileInfo) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || int(stat.Uid) != os.Geteuid():
		return "belongs to another user"
	case info.Mode().Perm()&0o022 != 0:
		return "can be written by other users"
	}
	return ""
}

// BootID returns the ID that changes with each boot (random(4)), or "" if it is
// unknown.
func BootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
