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

// DirError reports a directory that can't hold state, or that others could change.
type DirError struct {
	Path string
	// Reason is the predicate of a sentence, such as "belongs to another user".
	Reason string
	Err    error // nil if Reason says everything
}

// Error names the directory and the reason.
func (e *DirError) Error() string { return "the directory " + e.Path + " " + e.Reason }

// Unwrap returns the cause.
func (e *DirError) Unwrap() error { return e.Err }

// CheckDir returns a [DirError] for a directory that another user owns or can write to. Stores
// believe what is in their directories, so nobody else may change it. Symlinks are refused.
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

// OpenDir opens a directory that can be trusted with state; see [CheckDir].
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

// useTime is the age from which [MarkUsed] sets times anew.
const useTime = time.Hour

// MarkUsed sets a file's times to now, for [Expire], unless they are less than an hour old.
// Some callers identify a file by its times, so they don't change at each use. An error is
// ignored: a file that expires too early is made again.
func MarkUsed(path string) {
	now := time.Now()
	if info, err := os.Stat(path); err == nil && now.Sub(info.ModTime()).Abs() < useTime {
		return
	}
	_ = os.Chtimes(path, now, now)
}

// Expire removes the entries of a directory that were not changed or marked as used since
// the time before, if match accepts their names. It goes on after an error. A missing
// directory has no entries.
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

// noFollow are the flags to open a file that must be neither a symlink nor a pipe.
const noFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

// UnsafeReason returns the reason why a file or directory can't be trusted with state, as the
// predicate of a sentence, or "" if only the user of this process can change it.
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

// BootID returns the ID that changes with each start of the machine; random(4). It is empty if
// unknown.
func BootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
