package tracker

import (
	"context"
	"fmt"
	"path/filepath"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Settler is a tracker that applies or discards the changes so far while its session goes
// on. Nothing may use the workspace while its methods run.
type Settler interface {
	// Apply applies all changes, or none if some would be left out: the result has
	// those. The session then begins with the workspace as it is.
	Apply(ctx context.Context) (*overlay.Result, error)
	// Discard removes all changes.
	Discard(ctx context.Context) error
}

// Apply implements [Settler].
func (o *overlayTracker) Apply(ctx context.Context) (*overlay.Result, error) {
	o.waitStarted()
	if !o.recorded || o.Sandbox.IsUntouched() { // nothing can have run
		return &overlay.Result{State: overlay.Empty}, nil
	}
	if err := o.waitWalked(ctx); err != nil {
		return nil, err
	}
	bounds := overlay.ApplyOptions{MaxEntries: changes.ReadBounds.MaxEntries, MaxTextBytes: changes.ReadBounds.MaxTextBytes}
	try := bounds
	try.DryRun = true
	r, err := o.layers.Apply(ctx, o.Workspace, try)
	if err != nil {
		return nil, err
	}
	if r.Refused || len(r.Conflicts)+len(r.LeftOut)+len(r.Unread) > 0 {
		r.Refused, r.Applied = true, nil
		return r, nil
	}
	o.layers.SetUser(o.User)
	r, err = o.layers.Apply(ctx, o.Workspace, bounds)
	if err != nil || r.State != overlay.Applied {
		return r, err
	}
	return r, o.renewLayers(ctx)
}

// Discard implements [Settler].
func (o *overlayTracker) Discard(ctx context.Context) error {
	o.waitStarted()
	if !o.recorded || o.Sandbox.IsUntouched() {
		return nil
	}
	o.dropWalk()
	o.layers.SetUser(o.User)
	if err := o.layers.End(overlay.Discarded); err != nil {
		return err
	}
	return o.renewLayers(ctx)
}

// renewLayers makes fresh layers in the place of those that have ended. After an error nothing
// may run in the session any more.
func (o *overlayTracker) renewLayers(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			o.Log.Error("begin with fresh layers", zap.Error(err))
			o.err, o.recorded = &livesandbox.StartError{Cause: err}, false
		}
	}()
	info := o.layers.Info()
	if err := o.layers.Close(); err != nil {
		return fmt.Errorf("begin with fresh layers: %w", err)
	}
	dir := filepath.Join(o.Dir, sessiondir.OverlayDir)
	if err := workspace.RemoveTree(dir); err != nil {
		return fmt.Errorf("begin with fresh layers: %w", err)
	}
	layers, err := overlay.Create(dir, overlay.CreateOptions{Session: info.Session, Path: info.Workspace, Workspace: o.Workspace})
	if err != nil {
		return fmt.Errorf("begin with fresh layers: %w", err)
	}
	o.layers = layers
	if err := o.recordLower(ctx); err != nil {
		return fmt.Errorf("begin with fresh layers: %w", err)
	}
	return nil
}
