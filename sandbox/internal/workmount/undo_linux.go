package workmount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/caisson-run/caisson/sandbox/internal/owner"
	"github.com/caisson-run/caisson/tools/workspace"
)

// noted is a thing that was made, and its number in the journal.
type noted struct {
	id   int
	name string
}

// undo knows what Prepare made.
type undo struct {
	mu           sync.Mutex
	journal      *owner.Journal
	base         string   // the path of Options.Dir
	dir          *os.File // Options.Dir, closed by close
	workspace    *os.File // the caller's
	layers       *layers  // of an overlay, closed by close
	view         *os.File // the overlay's root, closed by close
	upper        *os.File // the layer below it that changes, closed by close
	volume       *Volume  // of an engine, closed by close
	entrance     *Entrance
	mounts       []noted
	folder       *noted
	folders      []noted // of what is bound in other things' place
	placeholders []int   // their numbers in the journal
}

// unstage removes the staging mounts, the last one first, and their folder.
func (u *undo) unstage() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.unstageLocked()
}

// restart takes back what was staged, so that it can be staged in another way.
func (u *undo) restart() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closeView()
	return u.unstageLocked()
}

// root returns the overlay's root and its layers, if this process mounted one.
func (u *undo) root() (*os.File, workspace.Layers) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.view, workspace.Layers{Upper: u.upper, Lower: u.workspace}
}

func (u *undo) closeView() {
	closeAll(u.view, u.upper)
	u.view, u.upper = nil, nil
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
	u.closeView()
	errs := []error{u.unstageLocked()}
	u.folders = slices.DeleteFunc(u.folders, func(f noted) bool {
		err := owner.RemoveTree(u.dir, f.name)
		if err == nil {
			err = u.journal.Forget(f.id)
		}
		errs = append(errs, err)
		return err == nil
	})
	for _, id := range slices.Backward(slices.Clone(u.placeholders)) { // those inside .git first
		if err := u.journal.Release(ctx, u.workspace, id); err != nil {
			errs = append(errs, err)
			continue
		}
		u.placeholders = slices.DeleteFunc(u.placeholders, func(have int) bool { return have == id })
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close workspace mounts: %w", err)
	}
	u.dir.Close()
	u.dir = nil
	if u.entrance != nil {
		u.entrance.close()
	}
	if u.volume != nil {
		u.volume.close()
	}
	if u.layers != nil {
		u.layers.clean()        // so that their owner can remove them
		return u.layers.close() // last: it gives up the lock
	}
	return nil
}
