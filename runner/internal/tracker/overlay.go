package tracker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Bounds of each list of a [record.OverlayResult].
const (
	maxNotes     = 1_000
	maxNotesText = 256 << 10
)

func boundOverlay(o *record.OverlayResult) {
	for _, list := range []*[]record.PathNote{&o.Conflicts, &o.LeftOut, &o.Failed} {
		n, text := 0, 0
		for ; n < min(len(*list), maxNotes); n++ {
			if text += len((*list)[n].Path) + len((*list)[n].Why); text > maxNotesText {
				break
			}
		}
		o.Omitted += len(*list) - n
		*list = slices.Clone((*list)[:n])
	}
}

// overlayTracker tracks a workspace that the sandbox sees copy-on-write. The upper layer holds
// the changes.
type overlayTracker struct {
	*recording
	Options

	layers *overlay.Layers
	reader *livesandbox.View
	// uncollected reports that a copy could not be collected in full.
	uncollected atomic.Bool
	// recorded reports that the layers know the original directory, or since when it may
	// differ. reopened reports that the layers existed before the session was opened.
	recorded, reopened bool
	// walked is closed when the original directory is no longer being recorded. hurryWalk
	// starts the walk at once, and endWalk ends it. They are set before recording is done.
	walked    chan struct{}
	hurryWalk func()
	endWalk   context.CancelCauseFunc
	// onWalk is called before the walk, in tests. It may be nil.
	onWalk func(context.Context)
}

// NewOverlay makes an overlay's layers and returns its tracker. The error is a
// [state.DirError].
func NewOverlay(o Options) (Tracker, error) {
	layers, err := overlay.Create(filepath.Join(o.Dir, sessiondir.OverlayDir), o.CreateOptions)
	if err != nil {
		return nil, &state.DirError{Path: o.Dir, Reason: "can't hold the layers of an overlay: " + err.Error(), Err: err}
	}
	return newOverlayTracker(o, layers), nil
}

// ReopenOverlay returns the tracker of a resumed session and the state of its changes, which
// still exist only if they are kept. Errors are as for [overlay.Reopen].
func ReopenOverlay(o Options) (Tracker, overlay.State, error) {
	layers, state, err := overlay.Reopen(filepath.Join(o.Dir, sessiondir.OverlayDir), o.CreateOptions)
	if err != nil {
		return nil, "", err
	}
	t := newOverlayTracker(o, layers)
	t.reopened = true
	if !layers.Info().Recorded {
		return t, overlay.Empty, nil
	}
	t.recorded = true
	close(t.done)
	o.Sandbox.MarkTouched()
	return t, state, nil
}

func newOverlayTracker(o Options, layers *overlay.Layers) *overlayTracker {
	t := &overlayTracker{recording: newRecording(), Options: o, layers: layers, reader: livesandbox.NewView(o.Sandbox, o.Original)}
	t.walked = make(chan struct{})
	close(t.walked)
	t.hurryWalk = func() {}
	t.endWalk = func(error) {}
	return t
}

func (o *overlayTracker) WorkspaceView() workspace.View { return o.reader }

func (o *overlayTracker) PrepareSpec(ctx context.Context, spec *sandbox.Spec) {
	if o.Mode == sandbox.ModeCopy {
		// Files must not be sent older than recorded. A failed recording ends the start
		// elsewhere.
		_ = o.WaitRecorded(ctx)
	}
	spec.Workspace.Mode, spec.Workspace.Layers, spec.Workspace.Lowers = o.Mode, o.layers.Dir(), o.layers.Lowers()
}

// Freeze freezes what the session has changed, and reports whether it could change
// anything so far.
func (o *overlayTracker) Freeze(ctx context.Context) (bool, error) {
	o.waitStarted()
	if !o.recorded {
		return false, nil
	}
	if err := o.waitWalked(ctx); err != nil {
		return false, err
	}
	return true, o.layers.Freeze(ctx, sessiondir.FrozenLayers(o.Dir))
}

// Fork returns the tracker of another session on what was frozen.
func (o *overlayTracker) Fork(of Options) (Tracker, error) {
	layers, err := o.layers.Fork(filepath.Join(of.Dir, sessiondir.OverlayDir), of.Session)
	if err != nil {
		return nil, &state.DirError{Path: of.Dir, Reason: "can't hold the layers of an overlay: " + err.Error(), Err: err}
	}
	fork := newOverlayTracker(of, layers)
	fork.recorded = true
	close(fork.done)
	return fork, nil
}

func (o *overlayTracker) StartRecording(ctx context.Context) {
	if o.isDone() { // by the parent of this fork, or before this session was resumed
		return
	}
	o.runInBackground(func() error {
		if err := o.recordLower(ctx); err != nil {
			o.Log.Error("record workspace", zap.Error(err))
			return &livesandbox.StartError{Cause: err}
		}
		o.recorded = true
		return nil
	})
}

// recordLower records the original directory, the lower layer. If that fails, changes can't be
// told from the original, so nothing may run. In overlay mode, commands need not wait for the
// walk, since they don't change the directory. Until it is over, or if it fails, the time of its
// beginning must do.
func (o *overlayTracker) recordLower(ctx context.Context) error {
	if o.Mode == sandbox.ModeCopy || !o.Original.IsLocal() { // another machine's clock may differ
		ctx, cancel := context.WithTimeoutCause(ctx, ScanTime, errScanSlow)
		defer cancel()
		return o.layers.Record(ctx, o.Workspace)
	}
	if err := o.layers.RecordTime(); err != nil {
		return err
	}
	o.startWalk(ctx)
	return nil
}

// walkDelay keeps the walk from slowing down a session that only runs a short command, which
// mostly changes nothing.
const walkDelay = 250 * time.Millisecond

// startWalk records the original directory while commands run. It goes on after ctx: an
// interrupted session keeps its changes.
func (o *overlayTracker) startWalk(ctx context.Context) {
	ctx, end := context.WithCancelCause(context.WithoutCancel(ctx))
	walked := make(chan struct{})
	needed := make(chan struct{})
	o.walked = walked
	o.hurryWalk = sync.OnceFunc(func() { close(needed) })
	o.endWalk = end
	go func() {
		defer close(walked)
		defer end(nil)
		select {
		case <-needed:
		case <-time.After(walkDelay):
		case <-ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeoutCause(ctx, ScanTime, errScanSlow)
		defer cancel()
		if o.onWalk != nil {
			o.onWalk(ctx)
		}
		if err := o.layers.Record(ctx, o.Workspace); err != nil && !errors.Is(err, errUnneeded) {
			o.Log.Warn("record workspace", zap.Error(err))
		}
	}()
}

// errUnneeded ends a walk whose result nothing needs.
var errUnneeded = errors.New("it is not needed any more")

// waitWalked waits for the end of the walk, or ends it if the end of the session is forced.
func (o *overlayTracker) waitWalked(ctx context.Context) error {
	o.hurryWalk()
	select {
	case <-o.walked:
	case <-o.Force:
		o.dropWalk()
	case <-ctx.Done():
		return fmt.Errorf("wait for workspace: %w", context.Cause(ctx))
	}
	return nil
}

// dropWalk ends the walk. Nothing writes to the layers afterwards.
func (o *overlayTracker) dropWalk() {
	o.endWalk(errUnneeded)
	<-o.walked
}

// IsFresh returns false: diffs are read from the layers.
func (o *overlayTracker) IsFresh(context.Context, string) bool { return false }

// CheckAfterCommand does nothing: no program on the host sees the changes until they are
// applied.
func (o *overlayTracker) CheckAfterCommand(context.Context) {}

// CheckAtEnd collects the changes of a copy.
func (o *overlayTracker) CheckAtEnd() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), livesandbox.CollectTime, errScanSlow)
	defer cancel()
	if err := o.collectChanges(ctx); err != nil {
		o.Log.Error("collect changes", zap.Error(err))
		o.uncollected.Store(true)
	}
}

// collectChanges collects a copy's changes into the layers.
func (o *overlayTracker) collectChanges(ctx context.Context) error {
	if o.Mode != sandbox.ModeCopy || o.Sandbox.IsUntouched() {
		return nil
	}
	return o.Sandbox.Collect(ctx)
}

func (o *overlayTracker) FindDifferences(ctx context.Context) (changes.Differences, error) {
	if err := o.waitWalked(ctx); err != nil {
		return changes.Differences{}, err
	}
	collectErr := o.collectChanges(ctx)
	if _, ok := errors.AsType[*overlay.IncompleteError](collectErr); collectErr != nil && !ok {
		return changes.Differences{}, collectErr
	}
	list, err := o.layers.Changes(ctx, o.Workspace, changes.ReadBounds)
	if err != nil {
		return changes.Differences{}, err
	}
	d, err := changes.ReadOverlay(ctx, o.layers, o.Workspace, list)
	d.Incomplete = d.Incomplete || collectErr != nil
	return d, err
}

func (o *overlayTracker) AddChanges(end *record.SessionEnded, apply bool) (patch string, refused bool) {
	r := &sessionChanges{SessionEnded: end}
	o.addDifferences(r)
	o.endLayers(r, apply)
	return r.patch, r.refused
}

func (o *overlayTracker) addDifferences(r *sessionChanges) {
	o.waitStarted()
	// Nothing can have run, or nothing was changed. What is left may still write.
	if !o.recorded || o.Sandbox.IsUntouched() || len(r.Left) == 0 && o.isUnchanged() {
		r.Overlay = &record.OverlayResult{State: overlay.Empty}
		return
	}
	_ = o.waitWalked(context.Background()) // bounded by ScanTime
	ctx, cancel := context.WithTimeoutCause(context.Background(), ScanTime, errScanSlow)
	defer cancel()
	list, err := o.layers.Changes(ctx, o.Workspace, changes.ReadBounds)
	if err != nil {
		o.Log.Warn("read changes", zap.Error(err))
		r.Incomplete = true
		r.Overlay = &record.OverlayResult{State: overlay.Kept}
		return
	}
	d, err := changes.ReadOverlay(ctx, o.layers, o.Workspace, list)
	if err != nil {
		o.Log.Warn("make diff", zap.Error(err))
		d = changes.List(list, &overlay.Stats{Files: make([]overlay.FileStat, len(list.List))})
		d.Incomplete, d.Patch = true, ""
	}
	r.setDifferences(d)
	r.Incomplete = r.Incomplete || o.uncollected.Load()
	r.Overlay = &record.OverlayResult{State: overlay.Kept, Changes: len(list.List) + list.Omitted}
	r.Overlay.Conflicts, r.Overlay.LeftOut = changes.Notes(list.List, overlay.ApplyOptions{})
	boundOverlay(r.Overlay)
}

// isUnchanged reports whether no command has changed anything. It doesn't need the walk.
func (o *overlayTracker) isUnchanged() bool {
	if o.Mode == sandbox.ModeCopy { // some changes may not have been collected
		return false
	}
	unchanged, err := o.layers.IsUnchanged(o.Workspace)
	return unchanged && err == nil // reading the changes fails with the same error
}

func (o *overlayTracker) DiscardState() {
	if o.reopened { // the layers are the session's
		if err := o.layers.Close(); err != nil {
			o.Log.Warn("close layers", zap.Error(err))
		}
		return
	}
	o.endLayers(&sessionChanges{SessionEnded: &record.SessionEnded{}}, false)
}

func (o *overlayTracker) ReleaseState() {
	if err := o.Images.Close(); err != nil {
		o.Log.Warn("remove scratch files", zap.Error(err))
	}
	o.waitStarted()
	o.dropWalk()
}

// endLayers applies the changes if apply is set, removes empty layers, and releases the lock.
func (o *overlayTracker) endLayers(r *sessionChanges, apply bool) {
	o.dropWalk()
	defer func() {
		if err := o.layers.Close(); err != nil {
			o.Log.Warn("close layers", zap.Error(err))
		}
	}()
	// Remains of the sandbox may still write.
	gone := len(r.Left) == 0
	switch {
	case !gone:
	case r.Overlay == nil, r.Overlay.Changes == 0 && !r.Incomplete:
		if err := o.layers.End(overlay.Empty); err != nil {
			o.Log.Warn("remove layers", zap.Error(err))
			r.Left = append(r.Left, err.Error())
		}
		if r.Overlay != nil {
			r.Overlay.State = overlay.Empty
		}
	case apply:
		o.applyLayers(r)
	}
}

func (o *overlayTracker) applyLayers(r *sessionChanges) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	if o.Force != nil {
		go func() {
			select {
			case <-o.Force: // forced: stop between two files
				cancel(errors.New("interrupted"))
			case <-ctx.Done():
			}
		}()
	}
	o.layers.SetUser(o.User)
	done, err := o.layers.Apply(ctx, o.Workspace, overlay.ApplyOptions{
		MaxEntries: changes.ReadBounds.MaxEntries, MaxTextBytes: changes.ReadBounds.MaxTextBytes,
	})
	if done != nil {
		r.Overlay.State, r.Overlay.Applied = done.State, len(done.Applied)
		r.Overlay.Omitted = 0
		r.Overlay.Conflicts, _ = changes.Notes(done.Conflicts, overlay.ApplyOptions{})
		_, r.Overlay.LeftOut = changes.Notes(done.LeftOut, overlay.ApplyOptions{})
		r.refused = done.Refused
		for _, f := range done.Failed {
			r.Overlay.Failed = append(r.Overlay.Failed, record.PathNote{Path: f.Path, Why: f.Err.Error()})
		}
		boundOverlay(r.Overlay)
	}
	if err != nil {
		o.Log.Error("apply changes", zap.Error(err))
		r.Overlay.Failed = append(r.Overlay.Failed, record.PathNote{Path: ".", Why: err.Error()})
	}
}

// Settler is a tracker that can apply or discard the changes during its session. Nothing may use
// the workspace meanwhile.
type Settler interface {
	// Apply applies all changes, or none if some would be left out, which the result lists. The
	// session then continues from the workspace as it is.
	Apply(ctx context.Context) (*overlay.Result, error)
	// Discard removes all changes.
	Discard(ctx context.Context) error
}

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

// renewLayers replaces ended layers with fresh ones. If it fails, nothing may run in the session
// any more.
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
