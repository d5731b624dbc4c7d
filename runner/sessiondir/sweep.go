package sessiondir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

// Sweep removes, from the directories of sessions whose process is dead, what
// no backend noted: the socket on which users were answered, the sandbox's
// directory where that leaves it empty, and a workspace of the session's own. Records and
// logs stay. It goes on after an error and returns how many directories it removed.
func Sweep(stateDir string) (int, error) {
	dirs, err := filepath.Glob(filepath.Join(stateDir, "sessions", "ses_*", SandboxDir))
	if err != nil {
		return 0, fmt.Errorf("sweep sessions: %w", err)
	}
	removed := 0
	var errs []error
	for _, dir := range dirs {
		if LivesIn(filepath.Dir(dir)) {
			continue
		}
		socket := filepath.Join(dir, sandbox.ExecSocket)
		if info, err := os.Lstat(socket); err == nil && info.Mode().Type() == fs.ModeSocket {
			errs = append(errs, ignoreMissing(os.Remove(socket)))
		}
		// It may hold what a backend noted and could not remove yet.
		if os.Remove(dir) == nil {
			removed++
		}
	}
	gone, err := sweepWorkspaces(stateDir)
	return removed + gone, errors.Join(append(errs, err)...)
}

// sweepWorkspaces removes the workspaces that dead sessions had of their own, once their
// sandbox is gone.
func sweepWorkspaces(stateDir string) (removed int, err error) {
	entries, err := os.ReadDir(sandbox.WorkspacesDir(stateDir))
	if err != nil {
		return 0, ignoreMissing(err)
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
	name := filepath.Base(session)
	for _, note := range []string{name + ".json", name + ".json.damaged"} {
		if _, err := os.Lstat(filepath.Join(stateDir, "cleanup", note)); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	inside, err := os.ReadDir(filepath.Join(session, SandboxDir))
	return len(inside) > 0 || err != nil && !errors.Is(err, fs.ErrNotExist)
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

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
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

// Lives reports whether the process of a session lives, or can't be known to be
// gone.
func Lives(stateDir, session string) bool { return LivesIn(Path(stateDir, session)) }
