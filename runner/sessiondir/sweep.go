package sessiondir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Sweep removes what sessions whose process is dead left, and no backend noted: the
// socket on which users were answered, the sandbox's directory where that leaves it
// empty, the output that was kept of commands, a workspace of the session's own, layers
// that were not made yet, the whole directory of a session in which nothing ran, and
// frozen layers that no session needs. Records and logs stay. It goes on after an error
// and returns how many directories of sandboxes and workspaces it removed.
func Sweep(stateDir string) (int, error) {
	names, err := List(stateDir)
	if err != nil {
		return 0, fmt.Errorf("sweep sessions: %w", err)
	}
	removed := 0
	var errs []error
	for _, name := range names {
		swept, err := sweepSession(stateDir, Path(stateDir, name))
		if swept {
			removed++
		}
		errs = append(errs, err, sweepOutput(Path(stateDir, name)))
	}
	gone, err := sweepWorkspaces(stateDir)
	errs = append(errs, err, overlay.SweepFrozen(FrozenLayers(Path(stateDir, "x"))))
	return removed + gone, errors.Join(errs...)
}

// sweepOutput removes the output of commands that the process of a session kept, if it is
// dead.
func sweepOutput(session string) error {
	dir := filepath.Join(session, OutputDir)
	if _, err := os.Lstat(dir); err != nil || LivesIn(session) {
		return state.IgnoreMissing(err)
	}
	return os.RemoveAll(dir)
}

// sweepWorkspaces removes the workspaces that dead sessions had of their own, once their
// sandbox is gone.
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

// hasRemains reports whether a part of the sandbox of a dead session is left.
func hasRemains(stateDir, session string) bool {
	return len(Remains(stateDir, filepath.Base(session))) > 0
}

// Remains returns the paths, relative to the state directory, of what is left of the
// sandbox of a dead process of a session: its cleanup list, and what is in the sandbox's
// directory. No process may have a sandbox for the session now.
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

// makingTime is longer than [Create] takes to make the directories of a session and to
// lock its log. The sandbox's directory is the last of them.
const makingTime = time.Minute

// sweepSession sweeps the directory of one session, and reports whether it removed the
// sandbox's.
func sweepSession(stateDir, session string) (bool, error) {
	dir := filepath.Join(session, SandboxDir)
	if _, err := os.Lstat(dir); err != nil {
		info, err := os.Lstat(session)
		if err != nil || hasRecords(session) || time.Since(info.ModTime()) < makingTime {
			return false, state.IgnoreMissing(err)
		}
		_ = os.Remove(session) // it is empty if the process was killed before it made the log
		if LivesIn(session) || mayHaveRun(stateDir, session) {
			return false, nil
		}
		return false, removeUnrecorded(session)
	}
	if LivesIn(session) {
		return false, nil
	}
	err := removeUnnoted(session)
	if hasRecords(session) || mayHaveRun(stateDir, session) {
		// It may hold what a backend noted and could not remove yet.
		return os.Remove(dir) == nil, err
	}
	return true, errors.Join(err, removeUnrecorded(session))
}

// removeUnnoted removes what the dead process of a session made and no backend noted: the
// socket on which users were answered, and layers that were not made yet.
func removeUnnoted(session string) error {
	socket := filepath.Join(session, SandboxDir, sandbox.ExecSocket)
	var socketErr error
	if info, err := os.Lstat(socket); err == nil && info.Mode().Type() == fs.ModeSocket {
		socketErr = state.IgnoreMissing(os.Remove(socket))
	}
	_, err := overlay.SweepUnmade(filepath.Join(session, OverlayDir))
	return errors.Join(socketErr, err)
}

// hasRecords reports whether a session has begun, as far as can be told.
func hasRecords(session string) bool {
	for _, name := range []string{record.TraceFile, record.AuditFile} {
		info, err := os.Lstat(filepath.Join(session, name))
		if err == nil && info.Size() > 0 || state.IgnoreMissing(err) != nil {
			return true
		}
	}
	return false
}

// mayHaveRun reports whether a dead session without records, as those of Go programs
// that make a sandbox alone, has a sandbox or changes.
func mayHaveRun(stateDir, session string) bool {
	changes, err := os.ReadDir(filepath.Join(session, OverlayDir, overlay.UpperDir))
	return len(changes) > 0 || state.IgnoreMissing(err) != nil || hasRemains(stateDir, session)
}

// removeUnrecorded removes the directory of a dead session in which nothing ran. It is
// known to be dead by its log, which goes last.
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
	return errors.Join(state.IgnoreMissing(os.Remove(filepath.Join(session, LogFile))), os.Remove(session))
}

// LivesIn reports whether the process of the session with the given directory lives,
// or can't be known to be gone: it locks its log as long as it lives.
func LivesIn(session string) bool {
	log, err := os.Open(filepath.Join(session, LogFile))
	if err != nil {
		return true
	}
	defer func() { _ = log.Close() }() // gives up the lock, too
	return held(log)
}

// SessionLives reports whether the process of the session whose directory dir is
// lives, as far as can be told from here. A directory without records has no
// answer yet, and one without a log none any more: both are no.
func SessionLives(dir string) bool {
	for _, name := range []string{record.TraceFile, LogFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return LivesIn(dir)
}
