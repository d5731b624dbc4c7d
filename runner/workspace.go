package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Workspace is the folder that a session works on, opened once. Whoever opened
// it closes it, after Run.
type Workspace struct {
	// Path is absolute. It is for messages and labels; Dir is what counts.
	Path string
	Dir  *os.File
}

// Protected are directories that no workspace may be, hold, or, for the state
// directory and the cache, be in. "" is none.
type Protected struct {
	Home, State, Config string
	// Cache holds images, the root directories of later sessions, and the programs
	// of a release build.
	Cache string
	// AcceptSystem accepts a directory of the system, such as /etc or /home.
	AcceptSystem bool
}

// SystemDirError reports that a workspace is, or lies in, a directory of the system.
type SystemDirError struct{ Workspace, Dir string }

// Error names both.
func (e *SystemDirError) Error() string {
	if e.Workspace == e.Dir {
		return "the workspace " + e.Workspace + " is a directory of the system"
	}
	return "the workspace " + e.Workspace + " lies in " + e.Dir + ", a directory of the system"
}

// Directories of the system: those that are none to work in themselves, those in
// which nothing is either, and exceptions to these.
var (
	systemDirs  = []string{"/home", "/root", "/Users", "/mnt", "/media", "/opt", "/srv", "/tmp", "/var", "/var/lib", "/var/log", "/var/spool", "/var/tmp"}
	systemTrees = []string{"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/spool/cron"}
	systemRoom  = []string{"/dev/shm", "/usr/src", "/usr/local/src"}
)

// refuseSystem returns a [SystemDirError] where the workspace is a directory of the
// system.
func (w *Workspace) refuseSystem(own os.FileInfo) error {
	for _, dir := range slices.Concat(systemDirs, systemTrees, systemRoom) {
		if same(own, dir) {
			return &SystemDirError{w.Path, dir}
		}
	}
	real, err := filepath.EvalSymlinks(w.Path)
	if err != nil {
		real = w.Path
	}
	for dir := filepath.Dir(real); dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		switch {
		case slices.Contains(systemRoom, dir):
			return nil
		case slices.Contains(systemTrees, dir):
			return &SystemDirError{w.Path, dir}
		}
	}
	return nil
}

// OpenWorkspace opens a workspace. It refuses what is no folder, what is
// reached through a link that an earlier session could have made, and the
// protected folders. Its errors are an [Error] with status 42.
func OpenWorkspace(path string, p Protected) (*Workspace, error) {
	abs, err := absolute(path)
	if err != nil {
		return nil, inputError("the workspace "+path+" can't be resolved", "Name an existing folder with --workspace.", err)
	}
	dir, err := workspace.OpenDir(abs)
	if err != nil {
		cause := fmt.Sprintf("the workspace %q can't be opened", abs)
		if e, ok := errors.AsType[*workspace.Error](err); ok {
			cause = "the workspace " + e.Error()
		}
		return nil, inputError(cause, "Name an existing folder with --workspace.", err)
	}
	w := &Workspace{Path: abs, Dir: dir}
	if err := w.refuse(p); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return w, nil
}

// absolute makes a path absolute. The working folder's own name is resolved: a
// shell's name for it may hold links, and the process is where it is.
func absolute(path string) (string, error) {
	if filepath.IsAbs(path) {
		return filepath.Clean(path), nil
	}
	dir, err := os.Getwd()
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	return filepath.Join(dir, path), err
}

// Close closes the folder.
func (w *Workspace) Close() error { return w.Dir.Close() }

// refuse compares the opened folder, not its name, with what is protected.
func (w *Workspace) refuse(p Protected) error {
	own, err := w.Dir.Stat()
	if err != nil {
		return inputError("the workspace "+w.Path+" can't be read", "Name another folder with --workspace.", err)
	}
	const mend = "Name a folder of its own for the task with --workspace."
	for _, keep := range []struct{ path, what string }{
		{"/", "the root of the file system"},
		{p.Home, "your home folder"},
		{p.State, "Caisson's state folder"},
		{p.Config, "Caisson's configuration"},
		{p.Cache, "Caisson's cache"},
	} {
		if keep.path == "" {
			continue
		}
		for dir := keep.path; ; dir = filepath.Dir(dir) {
			if same(own, dir) {
				relation := "holds"
				if dir == keep.path {
					relation = "is"
				}
				return inputError(fmt.Sprintf("the workspace %s %s %s", w.Path, relation, keep.what), mend, nil)
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	for _, keep := range []struct{ path, what string }{
		{p.State, "Caisson's state folder"},
		{p.Cache, "Caisson's cache"},
	} {
		kept, _ := os.Stat(keep.path) // nothing is in one that does not exist
		for dir := w.Path; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			if same(kept, dir) {
				return inputError("the workspace "+w.Path+" lies in "+keep.what, mend, nil)
			}
		}
	}
	if !p.AcceptSystem {
		if err := w.refuseSystem(own); err != nil {
			return inputError(err.Error(), mend, err)
		}
	}
	return nil
}

func same(info os.FileInfo, path string) bool {
	other, err := os.Stat(path)
	return err == nil && os.SameFile(info, other)
}

// CheckOwner refuses a workspace of another user where Caisson can't make new
// files belong to that user, unless accept says that the runner may own them.
// Root can always. Its error is an [Error] with status 42.
func (w *Workspace) CheckOwner(callerOwnsFiles bool) error {
	info, err := w.Dir.Stat()
	if err != nil {
		return inputError("the workspace "+w.Path+" can't be read", "Name another folder with --workspace.", err)
	}
	owner, self, known := owners(info)
	if mayOwn(owner, self, known, callerOwnsFiles) {
		return nil
	}
	return inputError(fmt.Sprintf("the workspace %s belongs to uid %d, and you are uid %d: new files would not belong to its owner", w.Path, owner, self),
		"Run caisson as its owner or as root, or own new files yourself with --caller-owns-files.", nil)
}

// mayOwn reports whether a process of a user may make files in a directory of an
// owner.
func mayOwn(owner, self int, known, accept bool) bool {
	return !known || owner == self || self == 0 || accept
}

func (w *Workspace) spec(submounts []string) sandbox.Workspace {
	return sandbox.Workspace{Path: w.Path, Dir: w.Dir, Submounts: submounts}
}

func inputError(cause, mend string, err error) error {
	return &Error{Status: ExitInput, Problem: record.Problem{Cause: cause, Mend: mend}, Err: err}
}
