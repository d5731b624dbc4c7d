package sessiondir

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Path is the directory of a session below the state directory.
func Path(stateDir, session string) string {
	return filepath.Join(stateDir, "sessions", session)
}

// WorkspacePath is the path of a workspace that a session has of its own.
func WorkspacePath(stateDir, session string) string {
	return filepath.Join(sandbox.WorkspacesDir(stateDir), session)
}

// MakeWorkspace makes an empty directory that is the session's own workspace, and
// returns its path. The caller removes it with [RemoveWorkspace] before it closes f.
func (f *Dir) MakeWorkspace() (string, error) {
	path := WorkspacePath(filepath.Dir(filepath.Dir(f.Path)), f.Session)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = state.CheckDir(filepath.Dir(path))
	}
	if err == nil {
		err = os.Mkdir(path, 0o755)
	}
	if err != nil {
		return "", stateError(path, "can't be made: "+err.Error(), err)
	}
	return path, nil
}

// RemoveWorkspace removes a session's own workspace with its content, and does nothing if
// there is none. The session must have ended.
func RemoveWorkspace(stateDir, session string) error {
	return workspace.RemoveTree(WorkspacePath(stateDir, session))
}

// makeSessionDir makes the session's directory, private to its user. It refuses a
// state directory that others could change: records, approvals and the names of
// what runs are believed because they are there.
func makeSessionDir(stateDir, session string) (string, error) {
	dir := Path(stateDir, session)
	pending := filepath.Join(stateDir, pendingDir)
	if err := errors.Join(os.MkdirAll(filepath.Dir(dir), 0o700), os.MkdirAll(pending, 0o700)); err != nil {
		return "", stateError(stateDir, "can't be made: "+err.Error(), err)
	}
	for _, path := range []string{stateDir, filepath.Dir(dir), pending} {
		if err := state.CheckDir(path); err != nil {
			return "", err
		}
	}
	err := mark(stateDir, pendingDir, session)
	if err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		return "", stateError(dir, "can't be made: "+err.Error(), err)
	}
	return dir, nil
}

// lastFile is the file with the id of the last session with a model on a workspace.
func lastFile(stateDir, workspace string) string {
	sum := sha256.Sum256([]byte(workspace))
	return filepath.Join(stateDir, "last", hex.EncodeToString(sum[:16]))
}

// SetLast notes that the session whose directory is dir is the last one with a model on a
// workspace.
func SetLast(dir, workspace string) error {
	path := lastFile(filepath.Dir(filepath.Dir(dir)), workspace)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(filepath.Base(dir)), 0o600)
	}
	if err != nil {
		return fmt.Errorf("note the last session: %w", err)
	}
	return nil
}

// Last returns the id that [SetLast] noted. The session may be gone. There may be none, with
// a session on the workspace all the same: then [List] has it.
func Last(stateDir, workspace string) (string, bool) {
	text, err := state.Read(lastFile(stateDir, workspace), 100)
	_, ok := sessionBegan(string(text))
	return string(text), err == nil && ok
}

func stateError(path, reason string, err error) error {
	return &state.DirError{Path: path, Reason: reason, Err: err}
}
