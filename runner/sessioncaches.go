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

// SessionCaches are one session's caches.
type SessionCaches struct {
	// Mounts and Env are for the session's sandbox.
	Mounts []sandbox.Mount
	Env    []string

	lease  *caches.Lease // or nil
	layers []*overlay.Layers
	dir    *sessiondir.Dir
	log    *zap.Logger
}

// OpenCaches opens a session's caches. They are mounted copy-on-write if mode keeps changes or
// the caches are frozen. The caller ends them after the sandbox.
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

func cacheOwner(w *Workspace) caches.Owner {
	info, err := w.Dir.Stat()
	if err != nil {
		return caches.Owner{}
	}
	return caches.OwnerOf(info)
}

// End closes the caches. With keep, the layers stay until the workspace's changes are applied.
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
		_ = os.Remove(filepath.Join(c.dir.Path, sessiondir.CachesDir)) // empty or missing
	}
	if c.lease != nil {
		errs = append(errs, c.lease.Close())
	}
	if err := errors.Join(errs...); err != nil {
		c.log.Warn("close caches", zap.Error(err))
	}
	c.layers, c.lease = nil, nil
}

// endCaches merges what commands wrote to the caches if the workspace's changes were
// applied, keeps it if they are kept, and otherwise drops it.
func (s *Session) endCaches(r *Report, apply bool) {
	o := r.Overlay
	left := len(r.Left) > 0 // it may still be written to
	mayMerge := s.opts.isOverlay() && s.opts.Caches.Use != caches.Frozen && o != nil
	merge := mayMerge && (o.State == overlay.Applied || o.Applied > 0 || apply && o.State == overlay.Empty)
	keep := mayMerge && o.State == overlay.Kept
	s.caches.End(merge || left || keep)
	if !merge || left {
		return
	}
	if err := sessiondir.MergeCaches(context.Background(), s.dir); err != nil {
		s.log.Warn("merge caches", zap.Error(err))
	}
}

// Creator returns a creator of sandboxes with the caches. If they can't be mounted
// copy-on-write, commands get empty directories instead, and warn gets the reason.
func (c *SessionCaches) Creator(backend sandbox.Creator, warn func(message string)) sandbox.Creator {
	if len(c.layers) == 0 {
		return backend
	}
	return scratchFallback{backend, warn}
}

// scratchFallback mounts empty directories if caches can't be mounted copy-on-write.
type scratchFallback struct {
	sandbox.Creator
	warn func(message string)
}

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
