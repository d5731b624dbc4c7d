package workmount

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/sandbox/internal/owner"
)

// noted is a thing that was made, and its number in the journal.
type noted struct {
	id   int
	name string
}

// notedPlaceholder is a placeholder that was made.
type notedPlaceholder struct {
	id int
	owner.Placeholder
}

// undo knows what Prepare made.
type undo struct {
	mu           sync.Mutex
	journal      *owner.Journal
	log          *zap.Logger
	base         string   // the path of Options.Dir
	dir          *os.File // Options.Dir, closed by close
	workspace    *os.File // the caller's
	mounts       []noted
	folder       *noted
	placeholders []notedPlaceholder
}

// unstage removes the staging mounts, the last one first, and their folder.
func (u *undo) unstage() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.unstageLocked()
}

func (u *undo) unstageLocked() error {
	var errs []error
	var done []int
	u.mounts = slices.DeleteFunc(u.mounts, func(m noted) bool {
		err := owner.Unmount(u.dir, m.name)
		if err != nil {
			errs = append(errs, err)
			return false
		}
		done = append(done, m.id)
		return true
	})
	if u.folder != nil && len(u.mounts) == 0 {
		// RemoveTree enters no mount, so that it can't reach the workspace.
		if err := owner.RemoveTree(u.dir, u.folder.name); err != nil {
			errs = append(errs, err)
		} else {
			done = append(done, u.folder.id)
			u.folder = nil
		}
	}
	if len(done) > 0 {
		errs = append(errs, u.journal.Forget(done...))
	}
	return errors.Join(errs...)
}

// close undoes everything that is left. It does not wait for anything, so that
// ctx only says whether to begin.
func (u *undo) close(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("close workspace mounts: %w", err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.dir == nil {
		return nil
	}
	errs := []error{u.unstageLocked()}
	var done []int
	// Those inside .git first.
	u.placeholders = slices.DeleteFunc(u.placeholders, func(p notedPlaceholder) bool {
		err := p.Remove(u.workspace)
		switch {
		case errors.Is(err, owner.ErrChanged):
			u.log.Info("placeholder was changed and stays", zap.String("name", p.Name))
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
			return false
		}
		done = append(done, p.id)
		return true
	})
	if len(done) > 0 {
		errs = append(errs, u.journal.Forget(done...))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close workspace mounts: %w", err)
	}
	u.dir.Close()
	u.dir = nil
	return nil
}
