package runner

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/runner/record"
)

// SessionDir is the folder of a session below the state folder.
func SessionDir(stateDir, session string) string {
	return filepath.Join(stateDir, "sessions", session)
}

// makeSessionDir makes the session's folder, private to its user. It refuses a
// state folder that others could change: records, approvals and the names of
// what runs are believed because they are there.
func makeSessionDir(stateDir, session string) (string, error) {
	dir := SessionDir(stateDir, session)
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return "", stateError(stateDir, "can't be made: "+err.Error(), err)
	}
	for _, path := range []string{stateDir, filepath.Dir(dir)} {
		if err := CheckStateDir(path); err != nil {
			return "", err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", stateError(dir, "can't be made: "+err.Error(), err)
	}
	return dir, nil
}

// CheckStateDir says why a folder can't be trusted with state: an [Error], or nil.
func CheckStateDir(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return stateError(path, "can't be looked at: "+err.Error(), err)
	}
	if why := unsafeFolder(info); why != "" {
		return stateError(path, why, nil)
	}
	return nil
}

func stateError(path, why string, err error) error {
	return &Error{Status: ExitConfig, Err: err, Problem: record.Problem{
		Cause: fmt.Sprintf("the state folder %s %s", path, why),
		Mend:  "Make it a folder that you own and that nobody else can write, or set XDG_STATE_HOME to one.",
	}}
}
