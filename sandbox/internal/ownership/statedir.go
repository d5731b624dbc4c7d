package ownership

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// ErrStateDir says that a state folder can't be trusted: others could write to
// it, and a cleanup list that others wrote must not be acted on.
var ErrStateDir = errors.New("state folder is not safe to use")

// CheckStateDir says whether dir is a folder that belongs to the user of this
// process and that nobody else can write to, and no link: who owns the folder
// that a link lies in chooses what it leads to. It fails with [ErrStateDir].
func CheckStateDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("check state folder: %w", err)
	}
	if err := checkPrivate(info); err != nil {
		return fmt.Errorf("check state folder %s: %w: %w", dir, ErrStateDir, err)
	}
	return nil
}

// openJournals opens the folder of the cleanup lists below stateDir, and makes it
// where make is set.
func openListDir(stateDir string, create bool) (*os.Root, error) {
	if err := CheckStateDir(stateDir); err != nil {
		return nil, err
	}
	state, err := os.OpenRoot(stateDir)
	if err != nil {
		return nil, fmt.Errorf("open state folder: %w", err)
	}
	defer state.Close()
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
