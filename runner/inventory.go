package runner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofrs/flock"
	"go.uber.org/zap"
)

// inventoryFile is the name, in a session's folder, of the list of repositories
// that it found in its workspace. A live session holds a lock on it and removes
// it at its end: one that nobody holds is of a session that was killed before it
// could quarantine what its commands made.
const inventoryFile = "repositories.json"

// inventories bounds how many sessions' folders are looked at, the newest first.
const inventories = 200

// inventory is the content of that file.
type inventory struct {
	Workspace string `json:"workspace"`
	// Repositories are paths, whose bytes may be no UTF-8.
	Repositories [][]byte `json:"repositories"`
}

// keepInventory writes and locks this session's list. The function that it
// returns removes it.
func (s *Session) keepInventory(found *repositories) (remove func(), err error) {
	path := filepath.Join(s.dir, inventoryFile)
	list := inventory{Workspace: s.opts.Workspace.Path}
	for _, p := range found.paths() {
		list.Repositories = append(list.Repositories, []byte(p))
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("keep inventory: %w", err)
	}
	lock := flock.New(path, flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o600))
	if ok, err := lock.TryLock(); err != nil || !ok {
		return nil, fmt.Errorf("keep inventory: lock held %v: %w", !ok, err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("keep inventory: %w", err), lock.Close())
	}
	return func() {
		// Removed while it is locked: nobody takes it for a dead session's.
		if err := errors.Join(os.Remove(path), lock.Close()); err != nil {
			s.log.Warn("remove inventory", zap.Error(err))
		}
	}, nil
}

// suspects lists the repositories that are here now and were not when a session
// began on this workspace that was killed since. It forgets that session.
func (s *Session) suspects(now *repositories) []string {
	folders, err := os.ReadDir(filepath.Dir(s.dir))
	if err != nil {
		return nil
	}
	slices.Reverse(folders) // ids sort by time
	var out []string
	for _, folder := range folders[:min(len(folders), inventories)] {
		path := filepath.Join(filepath.Dir(s.dir), folder.Name(), inventoryFile)
		before, ok := deadInventory(path)
		if !ok || before.Workspace != s.opts.Workspace.Path {
			continue
		}
		known := map[string]bool{}
		for _, p := range before.Repositories {
			known[string(p)] = true
		}
		for _, p := range now.paths() {
			if !known[p] {
				out = append(out, fmt.Sprintf("%s appeared while the session %s worked here, which was killed: look at its configuration before git does", showBytes(p), folder.Name()))
			}
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("remove inventory", zap.Error(err))
		}
	}
	return out
}

// deadInventory reads the list of a session that is dead.
func deadInventory(path string) (inventory, bool) {
	if _, err := os.Lstat(path); err != nil {
		return inventory{}, false
	}
	lock := flock.New(path, flock.SetFlag(os.O_RDWR))
	if ok, err := lock.TryLock(); err != nil || !ok {
		return inventory{}, false
	}
	defer func() { _ = lock.Close() }() // nothing was written
	text, err := os.ReadFile(path)
	if err != nil {
		return inventory{}, false
	}
	var found inventory
	if err := json.Unmarshal(text, &found); err != nil {
		return inventory{}, false
	}
	return found, true
}
