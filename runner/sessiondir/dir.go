// Package sessiondir manages the state directory and the directories of sessions in
// it: making them, finding out which sessions live, removing what is no longer needed,
// and the changes that overlay sessions keep.
package sessiondir

import (
	"errors"
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
)

// LogFile is the name of the operators' log in a session's directory.
const LogFile = "log.jsonl"

// OverlayDir is the directory of an overlay session's layers, below the session's.
const OverlayDir = "overlay"

// FrozenLayers returns the directory of the layers that several overlay sessions
// share, for the directory of a session.
func FrozenLayers(session string) string {
	return filepath.Join(filepath.Dir(filepath.Dir(session)), "layers")
}

// SandboxDir is where the backend keeps bundles and mount points, below the
// session's directory.
const SandboxDir = "sandbox"

// OutputDir is where a server keeps the output of commands as long as their sandbox,
// below the session's directory.
const OutputDir = "output"

// Dir is a session's directory below the state directory, private to its user, with
// the log of everything that serves the session. The caller of [Create] or [Reopen]
// closes it after the session.
type Dir struct {
	// Session is the id, Path the path.
	Session, Path string
	// Log goes to log.jsonl, without secrets.
	Log *zap.Logger

	file   *os.File
	resume bool
}

// Create makes the directory of a new session. It refuses a state directory that
// others could change, with a [state.DirError].
func Create(stateDir string, secrets []redact.Secret) (*Dir, error) {
	session := record.NewID("ses")
	dir, err := makeSessionDir(stateDir, session)
	if err != nil {
		return nil, err
	}
	// The log first: a sandbox's directory whose log is not locked is a dead session's.
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

// newLog returns the log that goes to a file.
func newLog(file *os.File, secrets []redact.Secret) *zap.Logger {
	conf := zap.NewProductionEncoderConfig()
	conf.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	out := zapcore.AddSync(redact.New(secrets).LogWriter(record.LogWriter(file)))
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(conf), zapcore.Lock(out), zapcore.DebugLevel))
}

// Resumes reports whether the directory is that of a session that goes on, from [Reopen].
func (f *Dir) Resumes() bool { return f.resume }

// List returns the IDs of all sessions in a state directory, the oldest first.
func List(stateDir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(Path(stateDir, "x")))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var ids []string
	for _, e := range entries { // IDs sort by time
		if e.IsDir() && strings.HasPrefix(e.Name(), "ses_") {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Find returns the IDs of the sessions whose ID begins with name, with or without ses_. It
// does not list all sessions for a whole ID.
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

// Close closes the log. What a session that never began left is removed.
func (f *Dir) Close() error {
	stateDir := filepath.Dir(filepath.Dir(f.Path))
	// Only while it is empty: what a backend could not remove, it reported. The
	// log is let go after it, so that no sweep takes it for a dead one's.
	rm := state.IgnoreMissing(os.Remove(filepath.Join(f.Path, SandboxDir)))
	if _, none := os.Lstat(filepath.Join(f.Path, record.TraceFile)); rm != nil || !errors.Is(none, fs.ErrNotExist) {
		return errors.Join(settle(stateDir, f.Session), f.file.Close())
	}
	if err := errors.Join(f.file.Close(), os.Remove(filepath.Join(f.Path, LogFile)), os.Remove(f.Path)); err != nil {
		return err
	}
	return settle(stateDir, f.Session)
}

// hold marks a session's log as that of a process that lives: the kernel takes
// the lock away with the process. It waits for the lock of one that was just killed.
func hold(log *os.File) error {
	for end := time.Now().Add(state.ReleaseTime); ; <-time.After(10 * time.Millisecond) {
		err := syscall.Flock(int(log.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
	}
}

// held reports whether a process has locked a log. Callers don't lock it for each
// other.
func held(log *os.File) bool {
	return syscall.Flock(int(log.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil
}
