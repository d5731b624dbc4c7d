package runner

import (
	"context"
	"errors"
	"path/filepath"
	"slices"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Bounds of each list of an [record.OverlayResult].
const (
	maxNotes     = 1_000
	maxNotesText = 256 << 10
)

// boundOverlay cuts the lists.
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

// overlaid reports whether the session works on a copy-on-write view.
func (s *Session) overlaid() bool { return s.opts.Mode == sandbox.ModeOverlay }

// workspaceMode is the workspace's, as records name it.
func (s *Session) workspaceMode() string {
	if s.overlaid() {
		return string(sandbox.ModeOverlay)
	}
	return string(sandbox.ModeBind)
}

// openLayers makes the layers of an overlay session, and the reader that sees them.
func (s *Session) openLayers(original *workspace.Reader) error {
	layers, err := overlay.Create(filepath.Join(s.dir, sessiondir.OverlayDir), overlay.CreateOptions{
		Session: s.opts.Dir.Session, Path: s.opts.Workspace.Path, Workspace: s.opts.Workspace.Dir,
	})
	if errors.Is(err, overlay.ErrUnsupported) {
		return &Error{Status: ExitSandboxStart, Err: err, Problem: record.Problem{
			Cause: "overlay workspaces can't be had here: " + err.Error(), Hint: "Take --mode bind, on a copy of the folder if need be.",
		}}
	}
	if err != nil {
		return &sessiondir.StateError{Path: s.dir, Reason: "can't hold the layers of an overlay: " + err.Error(), Err: err}
	}
	s.layers = layers
	s.reader = &boxView{box: s.box, original: original}
	s.box.spec.Workspace.Mode, s.box.spec.Workspace.Layers = sandbox.ModeOverlay, layers.Dir()
	return nil
}

// lookBelow records the original folder: until it has, nothing runs. What is not
// known can't be told from what changed, so nothing runs after a failure either.
func (s *Session) lookBelow(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTime, errSlow)
	defer cancel()
	if err := s.layers.Record(ctx, s.opts.Workspace.Dir); err != nil {
		s.log.Error("record workspace", zap.Error(err))
		return &startError{err}
	}
	s.recorded = true
	return nil
}

// overlayChanges fills in what the upper layer holds, and the whole diff.
func (s *Session) overlayChanges(r *Report) {
	r.Changed, r.HostExecuted = []record.Changed{}, []record.HostExecuted{}
	if s.looking {
		<-s.looked
	}
	if !s.recorded || s.box.isUntouched() { // nothing can have run
		r.Overlay = &record.OverlayResult{State: overlay.Empty}
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), lookTime, errSlow)
	defer cancel()
	list, err := s.layers.Changes(ctx, s.opts.Workspace.Dir, changes.ReadBounds)
	if err != nil {
		s.log.Warn("read changes", zap.Error(err))
		r.Incomplete = true
		r.Overlay = &record.OverlayResult{State: overlay.Kept}
		return
	}
	d, err := changes.ReadOverlay(ctx, s.layers, s.opts.Workspace.Dir, list)
	if err != nil {
		s.log.Warn("make diff", zap.Error(err))
		d = changes.List(list, &overlay.Stats{Files: make([]overlay.FileStat, len(list.List))})
		d.Incomplete, d.Patch = true, ""
	}
	r.setDifferences(d)
	r.Overlay = &record.OverlayResult{State: overlay.Kept, Changes: len(list.List) + list.Omitted}
	r.Overlay.Conflicts, r.Overlay.LeftOut = changes.Notes(list.List, overlay.ApplyOptions{})
	boundOverlay(r.Overlay)
}

// endLayers applies the changes where that was asked for and the session ended
// well, removes layers without any, and releases the lock.
func (s *Session) endLayers(r *Report) {
	if s.layers == nil {
		return
	}
	defer func() {
		if err := s.layers.Close(); err != nil {
			s.log.Warn("close layers", zap.Error(err))
		}
	}()
	// What could not be taken down may still write.
	gone := len(r.Left) == 0
	switch {
	case !gone:
	case r.Overlay == nil, r.Overlay.Changes == 0 && !r.Incomplete:
		if err := s.layers.End(overlay.Empty); err != nil {
			s.log.Warn("remove layers", zap.Error(err))
			r.Left = append(r.Left, err.Error())
		}
		if r.Overlay != nil {
			r.Overlay.State = overlay.Empty
		}
	case s.opts.Apply && r.Reason == loop.StopAnswered && r.Unapproved == 0:
		s.applyLayers(r)
	}
}

// applyLayers brings the changes in.
func (s *Session) applyLayers(r *Report) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	if s.opts.Force != nil {
		go func() {
			select {
			case <-s.opts.Force: // the second request: it stops between two files
				cancel(errors.New("interrupted"))
			case <-ctx.Done():
			}
		}()
	}
	s.layers.SetUser(s.opts.User.Name)
	done, err := s.layers.Apply(ctx, s.opts.Workspace.Dir, overlay.ApplyOptions{
		MaxEntries: changes.ReadBounds.MaxEntries, MaxTextBytes: changes.ReadBounds.MaxTextBytes,
	})
	if done != nil {
		r.Overlay.State, r.Overlay.Applied = done.State, len(done.Applied)
		r.Overlay.Omitted = 0
		r.Overlay.Conflicts, _ = changes.Notes(done.Conflicts, overlay.ApplyOptions{})
		_, r.Overlay.LeftOut = changes.Notes(done.LeftOut, overlay.ApplyOptions{})
		r.ApplyRefused = done.Refused
		for _, f := range done.Failed {
			r.Overlay.Failed = append(r.Overlay.Failed, record.PathNote{Path: f.Path, Why: f.Err.Error()})
		}
		boundOverlay(r.Overlay)
	}
	if err != nil {
		s.log.Error("apply changes", zap.Error(err))
		r.Overlay.Failed = append(r.Overlay.Failed, record.PathNote{Path: ".", Why: err.Error()})
	}
}
