package sessiondir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// CachesDir is the directory of the layers over caches, below the session's directory.
const CachesDir = "caches"

// OpenCacheLayers makes a session's layers over the open directory of a cache, or reopens the ones
// of an earlier process. The caller closes them with [EndCacheLayers], or with Close to keep them.
func OpenCacheLayers(dir *Dir, cache *os.File) (*overlay.Layers, error) {
	above := filepath.Join(dir.Path, CachesDir)
	if err := os.Mkdir(above, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create layers of cache: %w", err)
	}
	path := filepath.Join(above, filepath.Base(cache.Name()))
	o := overlay.CreateOptions{Session: dir.Session, Path: cache.Name(), Workspace: cache}
	l, _, err := overlay.Reopen(path, o)
	if errors.Is(err, overlay.ErrOther) || errors.Is(err, overlay.ErrPartlyApplied) {
		// It is only a cache: replace unusable layers.
		if err := workspace.RemoveTree(path); err != nil {
			return nil, fmt.Errorf("create layers of cache: %w", err)
		}
		l, err = overlay.Create(path, o)
	}
	if err != nil {
		return nil, err
	}
	if l.Info().Recorded {
		return l, nil
	}
	if err := l.RecordTime(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// MergeCaches merges what a session wrote to caches into them, and removes its layers. If another
// session wrote the same file meanwhile, that content stays. It skips caches that were removed,
// and continues after errors.
func MergeCaches(ctx context.Context, session string) error {
	return eachCacheLayers(session, func(l *overlay.Layers) error {
		return mergeCache(ctx, l)
	})
}

// DropCaches removes what a session wrote to caches, except layers in use. It continues after
// errors.
func DropCaches(session string) error {
	return eachCacheLayers(session, func(*overlay.Layers) error { return nil })
}

// dropDeadCaches is [DropCaches] for a session whose process may be alive.
func dropDeadCaches(session string) error {
	if _, err := os.Lstat(filepath.Join(session, CachesDir)); err != nil || LivesIn(session) {
		return state.IgnoreMissing(err)
	}
	if err := DropCaches(session); !errors.Is(err, overlay.ErrBusy) {
		return err
	}
	return nil
}

// EndCacheLayers ends a session's layers and removes them.
func EndCacheLayers(l *overlay.Layers, state overlay.State) error {
	err := errors.Join(l.End(state), l.Close())
	if err != nil {
		return err
	}
	return workspace.RemoveTree(l.Dir())
}

func mergeCache(ctx context.Context, l *overlay.Layers) error {
	cache, err := os.Open(l.Info().Workspace)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = cache.Close() }()
	// Nothing on the host runs git there, but go and cargo keep repositories in caches.
	r, err := l.Apply(ctx, cache, overlay.ApplyOptions{Rest: true, GitConfig: true})
	if errors.Is(err, overlay.ErrOther) || errors.Is(err, overlay.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range r.Failed {
		errs = append(errs, f)
	}
	return errors.Join(errs...)
}

// eachCacheLayers locks each of a session's cache layers, calls do with them, and removes them.
func eachCacheLayers(session string, do func(*overlay.Layers) error) error {
	above := filepath.Join(session, CachesDir)
	names, err := os.ReadDir(above)
	if err != nil {
		return state.IgnoreMissing(err)
	}
	var errs []error
	for _, name := range names {
		errs = append(errs, endCache(filepath.Join(above, name.Name()), do))
	}
	_ = os.Remove(above) // it fails if something is left
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("end layers of caches: %w", err)
	}
	return nil
}

func endCache(dir string, do func(*overlay.Layers) error) error {
	l, err := overlay.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return workspace.RemoveTree(dir)
	}
	if err != nil {
		return err
	}
	if err := l.Lock(); err != nil {
		return err
	}
	err = do(l)
	if l.Info().State == overlay.Kept {
		return errors.Join(err, EndCacheLayers(l, overlay.Discarded))
	}
	return errors.Join(err, l.Close(), workspace.RemoveTree(dir))
}
