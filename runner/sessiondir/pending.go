package sessiondir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// A session is marked by an empty file with its ID in one of these directories below the state
// directory, so that a start need not look at all sessions. The mark is made before the
// session's directory and removed last. An obsolete mark does no harm: the next sweep removes it.
const (
	// pendingDir marks live sessions, and dead ones that left something for a sweep,
	// [ExpireChanges] or the next session on their workspace.
	pendingDir = "pending"
	// keptDir marks other dead sessions, whose changes wait to be applied.
	keptDir = "kept"
)

func mark(stateDir, in, session string) error {
	path := filepath.Join(stateDir, in, session)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		file, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	}
	if err != nil {
		return err
	}
	return file.Close()
}

// marked returns the sessions marked in one of the directories, oldest first.
func marked(stateDir, in string) ([]string, error) {
	return listIDs(filepath.Join(stateDir, in), func(os.DirEntry) bool { return true })
}

// markChanged marks the session in dir because its changes may now be applied or discarded. If that
// fails, a sweep finds out once the changes would have expired.
func markChanged(dir string) {
	_ = mark(stateOf(dir), pendingDir, filepath.Base(dir))
}

// settle marks an ended session according to what it left, or unmarks it. The caller holds its log,
// if it has one, so that a process which resumes the session marks it afterwards.
func settle(stateDir, session string) error {
	where := findMark(stateDir, session)
	if where != "" {
		if err := mark(stateDir, where, session); err != nil {
			return err
		}
	}
	var errs []error
	for _, in := range []string{pendingDir, keptDir} {
		if in != where {
			errs = append(errs, state.IgnoreMissing(os.Remove(filepath.Join(stateDir, in, session))))
		}
	}
	return errors.Join(errs...)
}

// findMark returns the directory that should mark an ended session, or "".
func findMark(stateDir, session string) string {
	dir := Path(stateDir, session)
	kept := false
	if l, err := overlay.Open(filepath.Join(dir, OverlayDir)); err == nil {
		kept = l.Info().State == overlay.Kept
		if l.Interrupted() || kept && !l.Info().Recorded {
			return pendingDir
		}
	}
	left := []string{SandboxDir, OutputDir}
	if !kept {
		left = append(left, CachesDir)
	}
	isThere := func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return state.IgnoreMissing(err) != nil || err == nil
	}
	switch {
	case slices.ContainsFunc(left, isThere), hasRemains(stateDir, dir), hasInventory(dir), hasUnreportedPatch(dir):
		return pendingDir
	case kept:
		return keptDir
	}
	return ""
}
