package workmount

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/caisson-run/caisson/sandbox/internal/ownership"
	"github.com/caisson-run/caisson/tools/workspace"
)

// listedDir is a mount or directory and its number in the cleanup list.
type listedDir struct {
	id   int
	name string
}

// placeholderOf is a placeholder's number in the cleanup list and its
// directory, which belongs to the caller.
type placeholderOf struct {
	id  int
	dir *os.File
}

// cleanup removes what Prepare made.
type cleanup struct {
	mu           sync.Mutex
	list         *ownership.CleanupList
	base         string         // Options.Dir, closed by closeAll
	dir          *os.File       // Options.Dir, closed by close
	workspace    *os.File       // the caller's
	layers       *overlayLayers // of an overlay, closed by closeAll
	view         *os.File       // the overlay's root, closed by closeAll
	upper        *os.File       // the overlay's upper layer, closed by closeAll
	volume       *Volume        // of an engine, closed by closeAll
	namespace    *MountNamespace
	mounts       []listedDir
	mountsDir    *listedDir
	dirs         []listedDir // of files bound in place of others, scratch directories and layers
	further      []furtherMount
	maps         IDMaps   // of what is bound by path
	places       int      // mount points in wire.LayersDir
	scratch      []string // directories below base that belong to the commands
	placeholders []placeholderOf
}

// makeDir makes a directory below base, after adding it to the cleanup list.
func (u *cleanup) makeDir(name string, mode os.FileMode) (string, error) {
	ids, err := u.list.Add(ownership.Entry{Kind: ownership.KindDirectory, Path: name})
	if err != nil {
		return "", err
	}
	u.dirs = append(u.dirs, listedDir{id: ids[0], name: name})
	dir := filepath.Join(u.base, name)
	return dir, os.Mkdir(dir, mode)
}

// removeStaging removes the staging mounts, last one first, and their
// directory. They stay in the cleanup list's file until it is next written.
func (u *cleanup) removeStaging() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.removeStagingLocked()
}

// discardStaging removes all staging, so that it can be done in another way.
func (u *cleanup) discardStaging() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closeView()
	return errors.Join(u.removeStagingLocked(), u.list.Forget())
}

// overlayRoot returns the overlay's root and layers, if this process mounted
// one. It returns no layers if some are frozen.
func (u *cleanup) overlayRoot() (*os.File, workspace.Layers) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.layers != nil && len(u.layers.frozen) > 0 {
		return u.view, workspace.Layers{}
	}
	return u.view, workspace.Layers{Upper: u.upper, Lower: u.workspace}
}

func (u *cleanup) closeView() {
	closeAll(u.view, u.upper)
	u.view, u.upper = nil, nil
}

func (u *cleanup) removeStagingLocked() error {
	var errs []error
	var done []int
	u.mounts = slices.DeleteFunc(u.mounts, func(m listedDir) bool {
		err := ownership.Unmount(u.dir, m.name)
		if err != nil {
			errs = append(errs, err)
			return false
		}
		done = append(done, m.id)
		return true
	})
	if u.mountsDir != nil && len(u.mounts) == 0 {
		// RemoveTreeAt enters no mount, so it can't reach the workspace.
		if err := workspace.RemoveTreeAt(u.dir, u.mountsDir.name); err != nil {
			errs = append(errs, err)
		} else {
			done = append(done, u.mountsDir.id)
			u.mountsDir = nil
		}
	}
	u.list.Drop(done...)
	return errors.Join(errs...)
}

// closeAll removes everything that is left. A ctx that is done stops it only at
// the beginning.
func (u *cleanup) closeAll(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.dir == nil {
		return nil
	}
	u.closeView()
	errs := []error{u.removeStagingLocked()}
	u.dirs = slices.DeleteFunc(u.dirs, func(f listedDir) bool {
		err := workspace.RemoveTreeAt(u.dir, f.name)
		if err == nil {
			u.list.Drop(f.id) // a list with a placeholder is synced whenever it is written
		}
		errs = append(errs, err)
		return err == nil
	})
	for _, p := range slices.Backward(slices.Clone(u.placeholders)) { // those inside .git first
		if err := u.list.Release(ctx, p.dir, p.id); err != nil {
			errs = append(errs, err)
			continue
		}
		u.placeholders = slices.DeleteFunc(u.placeholders, func(have placeholderOf) bool { return have.id == p.id })
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_ = u.dir.Close()
	u.dir = nil
	if u.namespace != nil {
		u.namespace.closeSockets()
	}
	if u.volume != nil {
		u.volume.closeLayers()
	}
	var unlocked []error // last
	for _, m := range u.further {
		unlocked = append(unlocked, m.layers.release())
	}
	return errors.Join(append(unlocked, u.layers.release())...)
}
