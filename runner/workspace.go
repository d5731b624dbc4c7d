package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

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

// Protected are folders that no workspace may be, hold, or, for the state
// folder, be in. "" is none.
type Protected struct {
	Home, State, Config string
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
	if err != nil {
		return "", err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	return filepath.Join(dir, path), nil
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
	} {
		if keep.path == "" {
			continue
		}
		for dir, depth := keep.path, 0; ; dir, depth = filepath.Dir(dir), depth+1 {
			if same(own, dir) {
				relation := "holds"
				if depth == 0 {
					relation = "is"
				}
				return inputError(fmt.Sprintf("the workspace %s %s %s", w.Path, relation, keep.what), mend, nil)
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	if p.State == "" {
		return nil
	}
	state, err := os.Stat(p.State)
	if err != nil {
		return nil // there is none yet, so nothing can be in it
	}
	for dir := w.Path; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if same(state, dir) {
			return inputError("the workspace "+w.Path+" lies in Caisson's state folder", mend, nil)
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
func (w *Workspace) CheckOwner(accept bool) error {
	info, err := w.Dir.Stat()
	if err != nil {
		return inputError("the workspace "+w.Path+" can't be read", "Name another folder with --workspace.", err)
	}
	owner, self, known := owners(info)
	if !known || owner == self || self == 0 || accept {
		return nil
	}
	return inputError(fmt.Sprintf("the workspace %s belongs to uid %d, and you are uid %d: new files would not belong to its owner", w.Path, owner, self),
		"Run caisson as its owner or as root, or accept to own new files with --accept-runner-as-owner.", nil)
}

func (w *Workspace) spec(submounts []string) sandbox.Workspace {
	return sandbox.Workspace{Path: w.Path, Dir: w.Dir, Submounts: submounts}
}

func inputError(cause, mend string, err error) error {
	return &Error{Status: ExitInput, Problem: Problem{Cause: cause, Mend: mend}, Err: err}
}
