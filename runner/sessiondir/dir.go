// Package sessiondir manages the state directory and its session directories: it makes them, finds
// out which sessions are alive, removes what is no longer needed, and keeps the changes of overlay
// sessions.
package sessiondir

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

// LogFile is the name of the operators' log in a session's directory.
const LogFile = "log.jsonl"

// OverlayDir is the directory of an overlay session's layers, below the session's directory.
const OverlayDir = "overlay"

// FrozenLayers returns the directory of the layers that overlay sessions share, given the
// directory of any session.
func FrozenLayers(session string) string {
	return filepath.Join(stateOf(session), "layers")
}

// SandboxDir is the backend's directory for bundles and mount points, below the session's
// directory.
const SandboxDir = "sandbox"

// OutputDir is where a server keeps the output of commands as long as their sandbox, below the
// session's directory.
const OutputDir = "output"

// Dir is a session's directory, private to its user, with the log of everything that serves the
// session. The caller of [Create] or [Reopen] closes it after the session.
type Dir struct {
	// Session is the id, Path the path.
	Session, Path string
	// Log writes to LogFile, without secrets.
	Log *zap.Logger

	file   *os.File
	resume bool
}

// Create makes the directory of a new session. It refuses a state directory that others could
// change, with a [state.DirError].
func Create(stateDir string, secrets []redact.Secret) (*Dir, error) {
	session := record.NewID("ses")
	dir, err := makeSessionDir(stateDir, session)
	if err != nil {
		return nil, err
	}
	// The log comes first: a sandbox directory without a locked log belongs to a dead session.
	file, err := os.OpenFile(filepath.Join(dir, LogFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		err = hold(file)
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, SandboxDir), 0o700)
	}
	if err != nil {
		if file != nil {
			file.Close() //nolint:errcheck // nothing was written
		}
		return nil, stateError(dir, "can't be written: "+err.Error(), err)
	}
	return &Dir{Session: session, Path: dir, Log: newLog(file, secrets), file: file}, nil
}

func newLog(file *os.File, secrets []redact.Secret) *zap.Logger {
	conf := zap.NewProductionEncoderConfig()
	conf.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	out := zapcore.AddSync(redact.New(secrets).LogWriter(record.LogWriter(file)))
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(conf), zapcore.Lock(out), zapcore.DebugLevel))
}

// Resumes reports whether the directory is from [Reopen].
func (f *Dir) Resumes() bool { return f.resume }

// List returns the IDs of all sessions in a state directory, oldest first.
func List(stateDir string) ([]string, error) {
	return listIDs(filepath.Dir(Path(stateDir, "x")), os.DirEntry.IsDir)
}

// ListLive returns the IDs of the sessions whose process is known to be alive, oldest first.
func ListLive(stateDir string) ([]string, error) {
	ids, err := marked(stateDir, pendingDir)
	return slices.DeleteFunc(ids, func(id string) bool { return !SessionLives(Path(stateDir, id)) }), err
}

// listIDs returns the accepted entries of a directory that are named like sessions, oldest first:
// IDs sort by time.
func listIDs(dir string, accept func(os.DirEntry) bool) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, state.IgnoreMissing(err)
	}
	var ids []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "ses_") && accept(e) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Find returns the IDs of the sessions whose ID begins with name, with or without ses_. With a
// complete ID, it doesn't list all sessions.
func Find(stateDir, name string) ([]string, error) {
	if _, whole := sessionBegan(name); whole && strings.HasPrefix(name, "ses_") {
		if info, err := os.Lstat(Path(stateDir, name)); err == nil && info.IsDir() {
			return []string{name}, nil
		}
		return nil, nil
	}
	names, err := List(stateDir)
	return slices.DeleteFunc(names, func(id string) bool {
		return !strings.HasPrefix(id, name) && !strings.HasPrefix(id, "ses_"+name)
	}), err
}

// Close closes the log, and removes the directory if the session never began.
func (f *Dir) Close() error {
	stateDir := stateOf(f.Path)
	// Only if it is empty: a backend reported what it could not remove. The log is released
	// after it, so that no sweep takes the session for dead.
	rm := state.IgnoreMissing(os.Remove(filepath.Join(f.Path, SandboxDir)))
	if _, none := os.Lstat(filepath.Join(f.Path, record.TraceFile)); rm != nil || !errors.Is(none, fs.ErrNotExist) {
		return errors.Join(settle(stateDir, f.Session), f.file.Close())
	}
	if err := errors.Join(f.file.Close(), os.Remove(filepath.Join(f.Path, LogFile)), os.Remove(f.Path)); err != nil {
		return err
	}
	return settle(stateDir, f.Session)
}

// hold marks a session's log as a living process's: the kernel drops the lock with the process. It
// waits for the lock of a process that was just killed.
func hold(log *os.File) error {
	for end := time.Now().Add(state.ReleaseTime); ; <-time.After(10 * time.Millisecond) {
		err := syscall.Flock(int(log.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
	}
}

// held reports whether a process has locked a log. Its shared lock does not disturb other callers.
func held(log *os.File) bool {
	return syscall.Flock(int(log.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil
}

// Path returns the directory of a session below the state directory.
func Path(stateDir, session string) string {
	return filepath.Join(stateDir, "sessions", session)
}

// stateOf returns the state directory of a session's directory.
func stateOf(session string) string { return filepath.Dir(filepath.Dir(session)) }

// WorkspacePath returns the path of a session's own workspace.
func WorkspacePath(stateDir, session string) string {
	return filepath.Join(sandbox.WorkspacesDir(stateDir), session)
}

// MakeWorkspace makes an empty directory as the session's own workspace, and returns its path. The
// caller removes it with [RemoveWorkspace] before closing f.
func (f *Dir) MakeWorkspace() (string, error) {
	path := WorkspacePath(stateOf(f.Path), f.Session)
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

// RemoveWorkspace removes a session's own workspace with its content, if it has one. The session
// must have ended.
func RemoveWorkspace(stateDir, session string) error {
	return workspace.RemoveTree(WorkspacePath(stateDir, session))
}

// makeSessionDir makes the session's directory, private to its user. It refuses a state directory
// that others could change, since records, approvals and the names of what runs there are
// trusted.
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

// SetLast notes the session in dir as the last one with a model on a workspace.
func SetLast(dir, workspace string) error {
	path := lastFile(stateOf(dir), workspace)
	err := os.MkdirAll(filepath.Dir(path), 0o700)
	if err == nil {
		err = os.WriteFile(path, []byte(filepath.Base(dir)), 0o600)
	}
	if err != nil {
		return fmt.Errorf("note the last session: %w", err)
	}
	return nil
}

// Last returns the id that [SetLast] noted, if any. The session may be gone, and there may be
// others in [List].
func Last(stateDir, workspace string) (string, bool) {
	text, err := state.Read(lastFile(stateDir, workspace), 100)
	_, ok := sessionBegan(string(text))
	return string(text), err == nil && ok
}

func stateError(path, reason string, err error) error {
	return &state.DirError{Path: path, Reason: reason, Err: err}
}
