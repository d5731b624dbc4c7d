package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/gofrs/flock"
)

// Grant is one answer that was stored for good.
//
//	{"tool":"shell","workspace":"/home/me/project","phrase":"git status","decision":"allow","created":"2026-11-20T10:00:00Z"}
type Grant struct {
	// Tool is canonical.
	Tool Name `json:"tool"`
	// Workspace is the absolute host path that it holds for.
	Workspace string `json:"workspace"`
	// Phrase is the exact command of an execute tool, as [StaticPhrase] gives
	// it; "" for other classes.
	Phrase string `json:"phrase,omitempty"`
	// Decision is DecisionAllow or DecisionDeny.
	Decision Decision `json:"decision"`
	// Created is when it was stored, UTC.
	Created time.Time `json:"created"`
}

func (g Grant) sameKey(o Grant) bool {
	return g.Tool == o.Tool && g.Workspace == o.Workspace && g.Phrase == o.Phrase
}

// Grants is the file of lasting answers. It belongs outside every workspace
// ($XDG_STATE_HOME/caisson/approvals.json). It is read anew for each question,
// so that a change holds at once. It is safe for concurrent use, by several
// processes too. The zero value is not useful.
type Grants struct {
	path string
	now  func() time.Time
}

// NewGrants names the file; it need not exist, nor its folder.
func NewGrants(path string) *Grants { return &Grants{path: path, now: time.Now} }

// CorruptGrantsError says that the file was not what this package writes. It
// was moved aside and counts as empty: everything prompts again.
type CorruptGrantsError struct {
	// Path is the file, Quarantine where it is now; "" where it could not be moved.
	Path, Quarantine string
	Err              error
}

// Error gives both places and the cause.
func (e *CorruptGrantsError) Error() string {
	return fmt.Sprintf("read approvals %s: %v (moved to %q)", e.Path, e.Err, e.Quarantine)
}

// Unwrap gives the cause.
func (e *CorruptGrantsError) Unwrap() error { return e.Err }

// maxGrantsBytes bounds the file: some ten thousand grants.
const maxGrantsBytes = 4 << 20

// grantsLockTimeout bounds the wait for another process, which holds the lock
// for a millisecond.
const grantsLockTimeout = 5 * time.Second

type grantsFile struct {
	Version int     `json:"version"`
	Grants  []Grant `json:"grants"`
}

// Find looks for the stored answer to a tool, workspace and phrase. A deny
// beats an allow. With an error the answer is none.
func (g *Grants) Find(key Grant) (Decision, bool, error) {
	list, err := g.List()
	decision := Decision("")
	for _, grant := range list {
		if !grant.sameKey(key) {
			continue
		}
		if decision = grant.Decision; decision == DecisionDeny {
			break
		}
	}
	return decision, decision != "", err
}

// List gives all grants in the order in which they were stored.
func (g *Grants) List() ([]Grant, error) {
	if _, err := os.Lstat(g.path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil // without making a folder only to look
	}
	var list []Grant
	err := g.locked(func() (err error) {
		list, err = g.read()
		return err
	})
	return list, err
}

// Add stores an answer in the place of an earlier one to the same.
func (g *Grants) Add(grant Grant) error {
	if grant.Tool == "" || grant.Workspace == "" || (grant.Decision != DecisionAllow && grant.Decision != DecisionDeny) {
		return fmt.Errorf("store approval of %q: tool, workspace and a decision of allow or deny are needed", grant.Tool)
	}
	grant.Created = g.now().UTC().Truncate(time.Second)
	return g.change(func(list []Grant) []Grant {
		return append(slices.DeleteFunc(list, grant.sameKey), grant)
	})
}

// Revoke removes the grants that match and says how many there were.
func (g *Grants) Revoke(match func(Grant) bool) (int, error) {
	removed := 0
	err := g.change(func(list []Grant) []Grant {
		kept := slices.DeleteFunc(slices.Clone(list), match)
		removed = len(list) - len(kept)
		return kept
	})
	return removed, err
}

func (g *Grants) change(edit func([]Grant) []Grant) error {
	return g.locked(func() error {
		list, err := g.read()
		var corrupt *CorruptGrantsError
		if err != nil && !errors.As(err, &corrupt) {
			return err
		}
		return g.write(edit(list))
	})
}

// locked keeps other processes out: the lock is a file beside, because the
// file itself is replaced.
func (g *Grants) locked(f func() error) error {
	if err := os.MkdirAll(filepath.Dir(g.path), 0o700); err != nil {
		return fmt.Errorf("make approvals folder: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), grantsLockTimeout, errors.New("held by another process"))
	defer cancel()
	lock := flock.New(g.path+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, 5*time.Millisecond); err != nil {
		return fmt.Errorf("lock approvals %s: %w", g.path, err)
	}
	return errors.Join(f(), lock.Close())
}

func (g *Grants) read() ([]Grant, error) {
	info, err := os.Lstat(g.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read approvals: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxGrantsBytes {
		return nil, g.quarantine(fmt.Errorf("not a regular file of at most %d bytes", maxGrantsBytes))
	}
	text, err := os.ReadFile(g.path)
	if err != nil {
		return nil, fmt.Errorf("read approvals: %w", err)
	}
	list, err := parseGrants(text)
	if err != nil {
		return nil, g.quarantine(err)
	}
	return list, nil
}

func parseGrants(text []byte) ([]Grant, error) {
	if _, err := decodeJSON(text, maxGrantsBytes, 8); err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var file grantsFile
	if err := dec.Decode(&file); err != nil {
		return nil, err
	}
	if file.Version != 1 {
		return nil, fmt.Errorf("version is %d, must be 1", file.Version)
	}
	for _, grant := range file.Grants {
		if grant.Tool == "" || grant.Workspace == "" || (grant.Decision != DecisionAllow && grant.Decision != DecisionDeny) {
			return nil, errors.New("an entry has no tool, workspace or decision")
		}
	}
	return file.Grants, nil
}

func (g *Grants) quarantine(cause error) error {
	corrupt := &CorruptGrantsError{Path: g.path, Quarantine: g.path + ".corrupt-" + g.now().UTC().Format("20060102T150405.000000000"), Err: cause}
	if err := os.Rename(g.path, corrupt.Quarantine); err != nil {
		corrupt.Quarantine = ""
		corrupt.Err = errors.Join(cause, err)
	}
	return corrupt
}

// write replaces the file: whole or not at all, and on disk before it returns.
func (g *Grants) write(list []Grant) error {
	text, err := json.MarshalIndent(grantsFile{Version: 1, Grants: list}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode approvals: %w", err)
	}
	dir := filepath.Dir(g.path)
	tmp, err := os.CreateTemp(dir, ".approvals-*") // mode 0600
	if err != nil {
		return fmt.Errorf("write approvals: %w", err)
	}
	_, err = tmp.Write(append(text, '\n'))
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), g.path)
	}
	if err != nil {
		return fmt.Errorf("write approvals: %w", errors.Join(err, os.Remove(tmp.Name())))
	}
	return syncFolder(dir)
}

func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	return errors.Join(f.Sync(), f.Close())
}
