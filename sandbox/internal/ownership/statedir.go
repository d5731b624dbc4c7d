package ownership

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// ErrStateDir is the error for a state directory that can't be trusted: others
// could write to it, and cleanup lists of others must not be acted on.
var ErrStateDir = errors.New("state directory is not safe to use")

// CheckStateDir returns [ErrStateDir] unless dir is a directory that belongs to
// the user of this process and that no other user can write to. A symlink is
// refused: the owner of the directory that contains it chooses its target.
func CheckStateDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("check state directory: %w", err)
	}
	if err := checkPrivate(info); err != nil {
		return fmt.Errorf("check state directory %s: %w: %w", dir, ErrStateDir, err)
	}
	return nil
}

// openListDir opens the directory of the cleanup lists below stateDir, and
// creates it if create is set.
func openListDir(stateDir string, create bool) (*os.Root, error) {
	if err := CheckStateDir(stateDir); err != nil {
		return nil, err
	}
	state, err := os.OpenRoot(stateDir)
	if err != nil {
		return nil, fmt.Errorf("open state directory: %w", err)
	}
	defer func() { _ = state.Close() }()
	if create {
		if err := state.Mkdir(listDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("make cleanup directory: %w", err)
		}
	}
	info, err := state.Lstat(listDir)
	if err != nil {
		return nil, fmt.Errorf("open cleanup directory: %w", err)
	}
	if err := checkPrivate(info); err != nil {
		return nil, fmt.Errorf("open cleanup directory in %s: %w: %w", stateDir, ErrStateDir, err)
	}
	root, err := state.OpenRoot(listDir)
	if err != nil {
		return nil, fmt.Errorf("open cleanup directory: %w", err)
	}
	return root, nil
}
