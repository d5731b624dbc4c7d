package sessiondir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
)

var (
	// ErrAlive reports that the session's process is alive, or that retention is shortening its
	// records.
	ErrAlive = errors.New("its process is alive")
	// ErrNoRecords reports that the session has no records to resume from: it wrote none, or
	// retention has shortened them.
	ErrNoRecords = errors.New("its records are not there")
)

// Reopen opens the directory of a session whose process is gone, to resume it. It removes what the
// process left and no cleanup list names. It fails with a [state.DirError] for a directory that
// another user owns or could change, otherwise with [ErrAlive] or [ErrNoRecords].
func Reopen(stateDir, session string, secrets []redact.Secret) (_ *Dir, err error) {
	defer func() {
		if err != nil && !errors.As(err, new(*state.DirError)) {
			err = fmt.Errorf("reopen session %s: %w", session, err)
		}
	}()
	dir := Path(stateDir, session)
	if !filepath.IsLocal(session) || filepath.Base(dir) != session {
		return nil, fmt.Errorf("%w: %q is not the id of a session", ErrNoRecords, session)
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoRecords
	}
	for _, path := range []string{stateDir, filepath.Dir(dir), dir} {
		if err := state.CheckDir(path); err != nil {
			return nil, err
		}
	}
	file, err := openOwnLog(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = file.Close() // nothing was written
		}
	}()
	// Retention removes the trace while it holds the log, which it removes last.
	if _, err := os.Lstat(filepath.Join(dir, record.TraceFile)); err != nil {
		return nil, errors.Join(ErrNoRecords, state.IgnoreMissing(err))
	}
	// This process holds the log, so sweeps now leave the session alone.
	if err := errors.Join(mark(stateDir, pendingDir, session), removeUnnoted(dir)); err != nil {
		return nil, stateError(dir, "can't be cleaned up: "+err.Error(), err)
	}
	return &Dir{Session: session, Path: dir, Log: newLog(file, secrets), file: file, resume: true}, nil
}

// MakeSandboxDir makes the sandbox's directory unless it exists: a sweep removes it after a
// process has died.
func (f *Dir) MakeSandboxDir() error {
	if err := os.Mkdir(filepath.Join(f.Path, SandboxDir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return stateError(f.Path, "can't be written: "+err.Error(), err)
	}
	return nil
}

// openOwnLog opens a session's log and holds it, as the session's process does.
func openOwnLog(dir string) (*os.File, error) {
	path := filepath.Join(dir, LogFile)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoRecords
	}
	if err != nil {
		return nil, stateError(dir, "can't be written: "+err.Error(), err)
	}
	if hold(file) != nil {
		return nil, errors.Join(ErrAlive, file.Close())
	}
	own, err := file.Stat()
	if err == nil {
		var now fs.FileInfo
		if now, err = os.Lstat(path); err == nil && !os.SameFile(own, now) {
			err = ErrNoRecords // it was removed before it was held
		}
	}
	if err != nil {
		return nil, errors.Join(ErrNoRecords, state.IgnoreMissing(err), file.Close())
	}
	return file, nil
}
