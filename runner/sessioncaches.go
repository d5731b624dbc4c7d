package runner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// SessionCaches are the caches of one session.
type SessionCaches struct {
	// Mounts and Env are those of the session's sandbox.
	Mounts []sandbox.Mount
	Env    []string

	lease  *caches.Lease // nil if there are none
	layers []*overlay.Layers
	dir    *sessiondir.Dir
	log    *zap.Logger
}

// OpenCaches opens the caches of a session on a workspace that is mounted in the given
// mode. Unless commands may change them at once, they are mounted copy-on-write. The
// caller ends them after the sandbox.
func OpenCaches(dir *sessiondir.Dir, w *Workspace, mode sandbox.WorkspaceMode, o CacheOptions) (_ *SessionCaches, err error) {
	c := &SessionCaches{dir: dir, log: dir.Log}
	if _, err := caches.ParseUse(string(o.Use)); err != nil || !o.enabled() {
		return c, err
	}
	if o.Store == nil {
		return nil, errors.New("the store of the caches is missing")
	}
	targets, err := caches.Targets(o.Caches)
	if err != nil {
		return nil, err
	}
	path, err := filepath.EvalSymlinks(w.Path)
	if err != nil {
		return nil, err
	}
	if c.lease, err = o.Store.Open(path, cacheOwner(w), targets); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.End(false)
		}
	}()
	c.Env = caches.Env(o.Caches)
	for _, d := range c.lease.Dirs {
		m := sandbox.Mount{Target: d.Target, Path: d.Path, Dir: d.File}
		if mode.KeepsChanges() || o.Use == caches.Frozen {
			layers, err := sessiondir.OpenCacheLayers(dir, d.File)
			if err != nil {
				return nil, err
			}
			c.layers = append(c.layers, layers)
			m.Layers = layers.Dir()
		}
		c.Mounts = append(c.Mounts, m)
	}
	for _, cache := range o.Caches {
		if cache.Config == nil {
			continue
		}
		d, err := c.lease.OpenConfig(*cache.Config)
		if err != nil {
			return nil, err
		}
		c.Mounts = append(c.Mounts, sandbox.Mount{Target: d.Target, Path: d.Path, Dir: d.File, ReadOnly: true})
	}
	return c, nil
}

// cacheOwner returns the owner of new files in a workspace.
func cacheOwner(w *Workspace) caches.Owner {
	info, err := w.Dir.Stat()
	if err != nil {
		return caches.Owner{}
	}
	return caches.OwnerOf(info)
}

// End closes the caches. keep leaves the layers, for the time when the changes of the
// workspace are applied.
func (c *SessionCaches) End(keep bool) {
	var errs []error
	for _, l := range c.layers {
		if keep {
			errs = append(errs, l.Close())
			continue
		}
		errs = append(errs, sessiondir.EndCacheLayers(l, overlay.Discarded))
	}
	if !keep {
		_ = os.Remove(filepath.Join(c.dir.Path, sessiondir.CachesDir)) // it is empty, or not there
	}
	if c.lease != nil {
		errs = append(errs, c.lease.Close())
	}
	if err := errors.Join(errs...); err != nil {
		c.log.Warn("close caches", zap.Error(err))
	}
	c.layers, c.lease = nil, nil
}

// endCaches merges what commands wrote to caches where the changes of the workspace were
// applied, keeps it where those are kept, and drops it otherwise.
func (s *Session) endCaches(r *Report, apply bool) {
	o := r.Overlay
	left := len(r.Left) > 0 // what could not be taken down may still write
	merge := s.opts.isOverlay() && s.opts.Caches.Use != caches.Frozen && o != nil &&
		(o.State == overlay.Applied || o.Applied > 0 || apply && o.State == overlay.Empty)
	s.caches.End(merge || left || s.opts.isOverlay() && s.opts.Caches.Use != caches.Frozen && o != nil && o.State == overlay.Kept)
	if !merge || left {
		return
	}
	if err := sessiondir.MergeCaches(context.Background(), s.dir); err != nil {
		s.log.Warn("merge caches", zap.Error(err))
	}
}

// Creator returns a creator of sandboxes with the caches. Where they can't be mounted
// copy-on-write, commands have empty directories in their place, and warn gets the reason.
func (c *SessionCaches) Creator(backend sandbox.Creator, warn func(message string)) sandbox.Creator {
	if len(c.layers) == 0 {
		return backend
	}
	return scratchFallback{backend, warn}
}

// scratchFallback makes sandboxes with empty directories in the place of caches that can't
// be mounted copy-on-write.
type scratchFallback struct {
	sandbox.Creator
	warn func(message string)
}

// Create makes a sandbox.
func (f scratchFallback) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	made, err := f.Creator.Create(ctx, spec)
	isLayered := func(m sandbox.Mount) bool { return m.Layers != "" }
	if !errors.Is(err, sandbox.ErrUnsupported) || !slices.ContainsFunc(spec.Mounts, isLayered) {
		return made, err
	}
	spec.Mounts = slices.Clone(spec.Mounts)
	for i, m := range spec.Mounts {
		if isLayered(m) {
			spec.Mounts[i] = sandbox.Mount{Target: m.Target, Type: sandbox.MountScratch, Bytes: spec.Resources.HomeBytes}
		}
	}
	made, again := f.Creator.Create(ctx, spec)
	if again != nil {
		return nil, err
	}
	f.warn(fmt.Sprintf("the caches are empty in this session, and what is written to them is not kept: they can't be mounted copy-on-write here (%v)", err))
	return made, nil
}

// recordCaches returns the caches of a session as records have them.
func recordCaches(o CacheOptions) *record.Caches {
	if len(o.Caches) == 0 {
		return nil
	}
	out := &record.Caches{Use: string(cmp.Or(o.Use, caches.Writable))}
	for _, c := range o.Caches {
		out.Names = append(out.Names, c.Name)
	}
	return out
}
