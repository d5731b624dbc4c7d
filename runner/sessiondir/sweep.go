package sessiondir

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Sweep removes what dead sessions left, unless a backend noted it: the socket for users' commands,
// the sandbox's directory if that empties it, kept output of commands, the session's own workspace,
// unfinished layers, the directory of a session in which nothing ran, and frozen layers that no
// session needs. Records and logs stay. It looks at all sessions, continues
// after errors, and returns how many directories of sandboxes and workspaces it removed.
func Sweep(stateDir string) (int, error) {
	all, err := List(stateDir)
	pending, pendingErr := marked(stateDir, pendingDir)
	kept, keptErr := marked(stateDir, keptDir)
	if err := errors.Join(err, pendingErr, keptErr); err != nil {
		return 0, fmt.Errorf("sweep sessions: %w", err)
	}
	all = slices.Concat(all, pending, kept)
	slices.Sort(all)
	return sweep(stateDir, slices.Compact(all), func(int) bool { return false })
}

const (
	// sweepTime bounds the time that [SweepPending] takes for sessions.
	sweepTime = 5 * time.Millisecond
	// sweptAlways is the number of sessions that it looks at in any case, so that even on a
	// busy machine a start removes what the last session left.
	sweptAlways = 20
)

// SweepPending is [Sweep] for a start. It looks only at sessions that are alive or left something
// and, if there are many, at some of them.
func SweepPending(stateDir string) (int, error) {
	names, err := marked(stateDir, pendingDir)
	if err != nil {
		return 0, fmt.Errorf("sweep sessions: %w", err)
	}
	if len(names) > sweptAlways {
		// Some may have to stay for long, and must not keep others from their turn.
		first := rand.IntN(len(names))
		names = slices.Concat(names[first:], names[:first])
	}
	end := time.Now().Add(sweepTime)
	return sweep(stateDir, names, func(swept int) bool { return swept >= sweptAlways && time.Now().After(end) })
}

// sweep sweeps sessions until enough returns true, then the workspaces and the frozen layers.
func sweep(stateDir string, names []string, enough func(swept int) bool) (int, error) {
	removed := 0
	var errs []error
	for i, name := range names {
		if enough(i) {
			break
		}
		swept, err := sweepSession(stateDir, name)
		if swept {
			removed++
		}
		errs = append(errs, err)
	}
	gone, err := sweepWorkspaces(stateDir)
	errs = append(errs, err, overlay.SweepFrozen(FrozenLayers(Path(stateDir, "x"))))
	return removed + gone, errors.Join(errs...)
}

// sweepWorkspaces removes dead sessions' own workspaces, once their sandbox is gone.
func sweepWorkspaces(stateDir string) (removed int, err error) {
	entries, err := os.ReadDir(sandbox.WorkspacesDir(stateDir))
	if err != nil {
		return 0, state.IgnoreMissing(err)
	}
	var errs []error
	for _, e := range entries {
		session := Path(stateDir, e.Name())
		if _, err := os.Lstat(session); err == nil && (LivesIn(session) || hasRemains(stateDir, session)) {
			continue
		}
		if err := RemoveWorkspace(stateDir, e.Name()); err != nil {
			errs = append(errs, err)
			continue
		}
		removed++
	}
	return removed, errors.Join(errs...)
}

func hasRemains(stateDir, session string) bool {
	return len(Remains(stateDir, filepath.Base(session))) > 0
}

// Remains returns the paths, relative to the state directory, of what is left of a dead session's
// sandbox: its cleanup list, and the content of the sandbox's directory. No process may have a
// sandbox for the session now.
func Remains(stateDir, session string) []string {
	var left []string
	for _, name := range []string{session + ".json", session + ".json.damaged"} {
		list := filepath.Join("cleanup", name)
		if _, err := os.Lstat(filepath.Join(stateDir, list)); !errors.Is(err, fs.ErrNotExist) {
			left = append(left, list)
		}
	}
	dir := filepath.Join(Path(stateDir, session), SandboxDir)
	inside, err := os.ReadDir(dir)
	if rel, relErr := filepath.Rel(stateDir, dir); relErr == nil {
		dir = rel
	}
	if state.IgnoreMissing(err) != nil {
		return append(left, dir)
	}
	for _, e := range inside {
		left = append(left, filepath.Join(dir, e.Name()))
	}
	return left
}

// makingTime is longer than [Create] takes to make a session's directories, of which the sandbox's
// is the last, and to lock its log.
const makingTime = time.Minute

// sweepSession sweeps one session unless it is alive, and marks it according to what is left. It
// reports whether it removed the sandbox's directory.
func sweepSession(stateDir, name string) (removed bool, err error) {
	session := Path(stateDir, name)
	log, err := os.Open(filepath.Join(session, LogFile))
	if err == nil {
		defer func() { _ = log.Close() }() // also releases the lock
		if held(log) {
			return false, mark(stateDir, pendingDir, name)
		}
	}
	switch {
	case state.IgnoreMissing(err) != nil, inTheMaking(stateDir, name):
		return false, nil // it may be alive
	case err != nil:
		_ = os.Remove(session) // it is empty if the process was killed before it made the log
	default:
		if removed, err = sweepDead(stateDir, session); err != nil {
			return removed, err
		}
	}
	return removed, settle(stateDir, name)
}

func inTheMaking(stateDir, name string) bool {
	session := Path(stateDir, name)
	for _, made := range []string{SandboxDir, OutputDir} {
		if _, err := os.Lstat(filepath.Join(session, made)); err == nil {
			return false
		}
	}
	info, err := os.Lstat(session)
	if errors.Is(err, fs.ErrNotExist) {
		info, err = os.Lstat(filepath.Join(stateDir, pendingDir, name))
	}
	return err == nil && time.Since(info.ModTime()) < makingTime && !hasRecords(session)
}

// sweepDead sweeps the directory of a session whose process is dead, and reports whether it removed
// the sandbox's directory.
func sweepDead(stateDir, session string) (bool, error) {
	dir := filepath.Join(session, SandboxDir)
	_, missing := os.Lstat(dir)
	err := os.RemoveAll(filepath.Join(session, OutputDir))
	if missing == nil {
		err = errors.Join(err, removeUnnoted(session))
	}
	if !hasRecords(session) && !mayHaveRun(stateDir, session) {
		return missing == nil, errors.Join(err, removeUnrecorded(session))
	}
	// It may hold what a backend noted and could not remove yet.
	return os.Remove(dir) == nil, err
}

// removeUnnoted removes what a dead session's process made and no backend noted: the socket for
// users' commands, and unfinished layers.
func removeUnnoted(session string) error {
	socket := filepath.Join(session, SandboxDir, sandbox.ExecSocket)
	var socketErr error
	if info, err := os.Lstat(socket); err == nil && info.Mode().Type() == fs.ModeSocket {
		socketErr = state.IgnoreMissing(os.Remove(socket))
	}
	_, err := overlay.SweepUnmade(filepath.Join(session, OverlayDir))
	return errors.Join(socketErr, err)
}

// hasRecords reports whether a session has begun, or that is unknown.
func hasRecords(session string) bool {
	for _, name := range []string{record.TraceFile, record.AuditFile} {
		info, err := os.Lstat(filepath.Join(session, name))
		if err == nil && info.Size() > 0 || state.IgnoreMissing(err) != nil {
			return true
		}
	}
	return false
}

// mayHaveRun reports whether a dead session without records has a sandbox or changes. Go programs
// that only make a sandbox write no records.
func mayHaveRun(stateDir, session string) bool {
	changes, err := os.ReadDir(filepath.Join(session, OverlayDir, overlay.UpperDir))
	return len(changes) > 0 || state.IgnoreMissing(err) != nil || hasRemains(stateDir, session)
}

// removeUnrecorded removes the directory of a dead session in which nothing ran. The log, which
// shows that the session is dead, goes last.
func removeUnrecorded(session string) error {
	names, err := os.ReadDir(session)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name.Name() != LogFile {
			if err := workspace.RemoveTree(filepath.Join(session, name.Name())); err != nil {
				return err
			}
		}
	}
	return errors.Join(state.IgnoreMissing(os.Remove(filepath.Join(session, LogFile))), state.IgnoreMissing(os.Remove(session)))
}

// LivesIn reports whether the process of the session in a directory is alive, or may be: it locks
// its log as long as it lives.
func LivesIn(session string) bool {
	log, err := os.Open(filepath.Join(session, LogFile))
	if err != nil {
		return true
	}
	defer func() { _ = log.Close() }() // also releases the lock
	return held(log)
}

// SessionLives reports whether the process of the session in dir is known to be alive. Without
// records or a log, it returns false.
func SessionLives(dir string) bool {
	for _, name := range []string{record.TraceFile, LogFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return LivesIn(dir)
}
