package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Workspace is a session's directory, opened once. The caller of [OpenWorkspace] closes it
// after the session.
type Workspace struct {
	// Path is absolute. It is for messages; checks use Dir.
	Path string
	Dir  *os.File
}

// Protected are directories that a workspace must not be or contain. It must not lie in State
// or Cache either. "" is none.
type Protected struct {
	Home, State, Config string
	// Cache holds images, the root directories of later sessions and, for release builds,
	// programs.
	Cache string
	// AcceptSystem accepts system directories such as /etc or /home.
	AcceptSystem bool
}

// SystemDirError reports that a directory is, or lies in, a system directory.
type SystemDirError struct{ Path, Dir string }

// Error returns a predicate; its subject is the directory.
func (e *SystemDirError) Error() string {
	if e.Path == e.Dir {
		return "is a directory of the system"
	}
	return "lies in " + e.Dir + ", a directory of the system"
}

// ProtectedError reports that a directory is, holds, or lies in a protected one.
type ProtectedError struct {
	// Relation is "is", "holds" or "lies in", and Name describes the directory.
	Relation, Name string
}

func (e *ProtectedError) Error() string { return e.Relation + " " + e.Name }

// OwnerError reports that new files in a workspace would not belong to its owner.
type OwnerError struct{ Owner, User int }

func (e *OwnerError) Error() string {
	return fmt.Sprintf("belongs to uid %d, and you are uid %d: new files would not belong to its owner", e.Owner, e.User)
}

// WorkspaceError reports a workspace that can't be used.
type WorkspaceError struct {
	// Op is resolve, open, read, accept (Err is a [ProtectedError] or [SystemDirError]) or
	// own (Err is an [OwnerError]).
	Op   string
	Path string
	Err  error
}

func (e *WorkspaceError) Error() string {
	switch e.Op {
	case "accept", "own":
		return "the workspace " + e.Path + " " + e.Err.Error()
	case "open":
		if err, ok := errors.AsType[*workspace.Error](e.Err); ok {
			return "the workspace " + err.Error()
		}
		return fmt.Sprintf("the workspace %q can't be opened", e.Path)
	case "resolve":
		return "the workspace " + e.Path + " can't be resolved"
	}
	return "the workspace " + e.Path + " can't be " + e.Op
}

func (e *WorkspaceError) Unwrap() error { return e.Err }

// System directories: systemDirs can't be workspaces, systemTrees can't contain any either,
// and systemRoom are exceptions from these.
var (
	systemDirs  = []string{"/home", "/root", "/Users", "/mnt", "/media", "/opt", "/srv", "/tmp", "/var", "/var/lib", "/var/log", "/var/spool", "/var/tmp"}
	systemTrees = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/spool/cron"}
	systemRoom  = []string{"/dev/shm", "/usr/src", "/usr/local/src"}
)

func refuseSystem(own os.FileInfo, path string) error {
	for _, dir := range slices.Concat(systemDirs, systemTrees, systemRoom) {
		if isSameFile(own, dir) {
			return &SystemDirError{path, dir}
		}
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		real = path
	}
	for dir := filepath.Dir(real); dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		switch {
		case slices.Contains(systemRoom, dir):
			return nil
		case slices.Contains(systemTrees, dir):
			return &SystemDirError{path, dir}
		}
	}
	return nil
}

// OpenWorkspace opens a workspace. It refuses anything but a directory, paths with a symlink
// that an earlier session could have made, and protected directories. The error is a
// [WorkspaceError].
func OpenWorkspace(path string, p Protected) (*Workspace, error) {
	abs, err := absolutePath(path)
	if err != nil {
		return nil, &WorkspaceError{Op: "resolve", Path: path, Err: err}
	}
	dir, err := workspace.OpenDir(abs)
	if err != nil {
		return nil, &WorkspaceError{Op: "open", Path: abs, Err: err}
	}
	w := &Workspace{Path: abs, Dir: dir}
	if err := w.refuseProtected(p); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return w, nil
}

// MakeWorkspace makes an empty workspace for one session, below the state directory and out of
// other sessions' reach. After the session, the caller removes it with
// [sessiondir.RemoveWorkspace].
func MakeWorkspace(d *sessiondir.Dir) (*Workspace, error) {
	path, err := d.MakeWorkspace()
	if err != nil {
		return nil, err
	}
	dir, err := workspace.OpenDir(path)
	if err != nil {
		return nil, &WorkspaceError{Op: "open", Path: path, Err: err}
	}
	return &Workspace{Path: path, Dir: dir}, nil
}

// absolutePath makes a path absolute. It resolves the working directory's name, in which a
// shell may have kept symlinks.
func absolutePath(path string) (string, error) {
	if filepath.IsAbs(path) {
		return filepath.Clean(path), nil
	}
	dir, err := os.Getwd()
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	return filepath.Join(dir, path), err
}

// Close closes the directory.
func (w *Workspace) Close() error { return w.Dir.Close() }

type protectedDir struct{ path, what string }

// userDirs returns the directories that commands must not see as a whole.
func (p Protected) userDirs() []protectedDir {
	return []protectedDir{{"/", "the root of the file system"}, {p.Home, "your home directory"}}
}

func (p Protected) caissonDirs() []protectedDir {
	return slices.Concat(p.storageDirs(), []protectedDir{{p.Config, "Caisson's configuration"}})
}

func (p Protected) storageDirs() []protectedDir {
	return []protectedDir{{p.State, "Caisson's state directory"}, {p.Cache, "Caisson's cache"}}
}

// relate returns a [ProtectedError] if the open directory own at path is or holds one of the
// first list, or lies in one of the second. It compares files rather than names.
func relate(own os.FileInfo, path string, holds, lies []protectedDir) error {
	for _, keep := range holds {
		if keep.path == "" {
			continue
		}
		for dir := keep.path; ; dir = filepath.Dir(dir) {
			if isSameFile(own, dir) {
				relation := "holds"
				if dir == keep.path {
					relation = "is"
				}
				return &ProtectedError{Relation: relation, Name: keep.what}
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	for _, keep := range lies {
		kept, err := os.Stat(keep.path)
		if err != nil {
			continue // nothing can lie in a missing directory
		}
		for dir := path; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			if isSameFile(kept, dir) {
				return &ProtectedError{Relation: "lies in", Name: keep.what}
			}
		}
	}
	return nil
}

func (w *Workspace) refuseProtected(p Protected) error {
	own, err := w.Dir.Stat()
	if err != nil {
		return &WorkspaceError{Op: "read", Path: w.Path, Err: err}
	}
	if err := relate(own, w.Path, slices.Concat(p.userDirs(), p.caissonDirs()), p.storageDirs()); err != nil {
		return &WorkspaceError{Op: "accept", Path: w.Path, Err: err}
	}
	if !p.AcceptSystem {
		if err := refuseSystem(own, w.Path); err != nil {
			return &WorkspaceError{Op: "accept", Path: w.Path, Err: err}
		}
	}
	return nil
}

func isSameFile(info os.FileInfo, path string) bool {
	other, err := os.Stat(path)
	return err == nil && os.SameFile(info, other)
}

// CheckOwner refuses another user's workspace if Caisson can't give new files to that user. Root
// always can, and with callerOwnsFiles it doesn't matter. The error is a [WorkspaceError].
func (w *Workspace) CheckOwner(callerOwnsFiles bool) error {
	info, err := w.Dir.Stat()
	if err != nil {
		return &WorkspaceError{Op: "read", Path: w.Path, Err: err}
	}
	owner, self := fileOwner(info), os.Geteuid()
	if mayOwn(owner, self, callerOwnsFiles) {
		return nil
	}
	return &WorkspaceError{Op: "own", Path: w.Path, Err: &OwnerError{Owner: owner, User: self}}
}

func mayOwn(owner, self int, accept bool) bool { return owner == self || self == 0 || accept }

func fileOwner(info fs.FileInfo) int { return int(info.Sys().(*syscall.Stat_t).Uid) }
