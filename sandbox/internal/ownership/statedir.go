package ownership

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/limits/state"
)

// openListDir opens the directory of the cleanup lists below stateDir, and
// creates it if create is set. Lists of others must not be acted on.
func openListDir(stateDir string, create bool) (*os.Root, error) {
	if err := state.CheckDir(stateDir); err != nil {
		return nil, err
	}
	dir := filepath.Join(stateDir, listDir)
	if create {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	return state.OpenDir(dir)
}
