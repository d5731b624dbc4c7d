package sessiondir

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits/state"
)

const inventoryPrefix = "repositories-"

// inventoryFile returns the name, in a session's directory, of the list of repositories that it
// found in a workspace or other directory. A live session locks the list and removes it at its
// end: an unlocked one belongs to a session that was killed before it could quarantine what its
// commands made.
func inventoryFile(workspace string) string {
	sum := sha256.Sum256([]byte(workspace))
	return inventoryPrefix + hex.EncodeToString(sum[:4]) + ".json"
}

// MaxSiblings bounds the sessions whose directories are read, newest first.
const MaxSiblings = 200

type inventory struct {
	Workspace string `json:"workspace"`
	// Repositories are paths, which need not be UTF-8.
	Repositories [][]byte `json:"repositories"`
}

// inventoryTime bounds the wait while another session compares an inventory.
const inventoryTime = 5 * time.Second

// KeepInventory writes and locks the list of repositories of the session in dir. remove removes it.
func KeepInventory(dir, workspace string, repositories []string) (remove func() error, err error) {
	path := filepath.Join(dir, inventoryFile(workspace))
	list := inventory{Workspace: workspace}
	for _, p := range repositories {
		list.Repositories = append(list.Repositories, []byte(p))
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("keep inventory: %w", err)
	}
	lock, err := state.Acquire(context.Background(), path, inventoryTime) // another session may be comparing an earlier one
	if err != nil {
		return nil, fmt.Errorf("keep inventory: %w", err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("keep inventory: %w", err), lock.Release())
	}
	return lock.Remove, nil
}

// NewRepository is a repository that appeared during a session that was killed.
type NewRepository struct{ Path, Session string }

// TakeNewRepositories compares the repositories of now with the lists that killed sessions on this
// workspace left. It returns the ones that such a list lacks, and removes the lists. dir is this
// session's directory.
func TakeNewRepositories(dir, workspace string, now []string) ([]NewRepository, error) {
	var out []NewRepository
	var errs []error
	for _, sibling := range append([]string{dir}, Siblings(dir)...) { // in dir, an earlier process may have left one
		path := filepath.Join(sibling, inventoryFile(workspace))
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		lock, err := state.TryAcquire(path)
		if err != nil {
			continue // its session is alive
		}
		before, ok := readInventory(path, workspace)
		if !ok {
			errs = append(errs, lock.Release())
			continue
		}
		known := map[string]bool{}
		for _, p := range before.Repositories {
			known[string(p)] = true
		}
		for _, p := range now {
			if !known[p] {
				out = append(out, NewRepository{Path: p, Session: filepath.Base(sibling)})
			}
		}
		errs = append(errs, lock.Remove())
	}
	return out, errors.Join(errs...)
}

// Neighbours returns the live sessions with a workspace in bind mode, except the one in dir. Only
// sessions in bind mode keep an inventory while they are alive.
func Neighbours(dir, workspace string) []string {
	var out []string
	for _, sibling := range Siblings(dir) {
		if _, ok := readInventory(filepath.Join(sibling, inventoryFile(workspace)), workspace); ok && LivesIn(sibling) {
			out = append(out, filepath.Base(sibling))
		}
	}
	return out
}

// Siblings returns the directories of other sessions that are alive or left something, newest
// first, at most [MaxSiblings].
func Siblings(dir string) []string {
	names, err := marked(stateOf(dir), pendingDir)
	if err != nil {
		return nil
	}
	slices.Reverse(names) // IDs sort by time
	var out []string
	for _, name := range names[:min(len(names), MaxSiblings)] {
		if sibling := filepath.Join(filepath.Dir(dir), name); sibling != dir {
			out = append(out, sibling)
		}
	}
	return out
}

// hasInventory reports whether the session in dir left an inventory of a directory that still
// exists, for the next session on it. An unreadable one counts.
func hasInventory(dir string) bool {
	entries, err := os.ReadDir(dir)
	return state.IgnoreMissing(err) != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		if !strings.HasPrefix(e.Name(), inventoryPrefix) {
			return false
		}
		var list inventory
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return !errors.Is(err, fs.ErrNotExist)
		}
		return json.Unmarshal(text, &list) == nil && mayExist(list.Workspace)
	})
}

// mayExist reports whether a workspace exists, or that is unknown.
func mayExist(workspace string) bool {
	_, err := os.Stat(workspace)
	return !errors.Is(err, fs.ErrNotExist)
}

func readInventory(path, workspace string) (list inventory, ok bool) {
	text, err := os.ReadFile(path)
	ok = err == nil && json.Unmarshal(text, &list) == nil && list.Workspace == workspace
	return list, ok
}
