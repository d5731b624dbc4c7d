package runner

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// overlayDir is where an overlay session's layers are, below its folder.
const overlayDir = "overlay"

// OverlayResult is what became of the changes of an overlay session.
//
//	{"state":"kept","changes":3,"applied":0,"conflicts":[{"path":"a","why":"…"}]}
type OverlayResult struct {
	// State is kept, applied or empty.
	State overlay.State `json:"state"`
	// Changes counts what differs, folders included; Applied what was brought
	// into the workspace, with apply.
	Changes int `json:"changes"`
	Applied int `json:"applied"`
	// Conflicts are changes whose originals changed in the workspace while the
	// session ran, LeftOut those that an apply leaves out, Failed those that the
	// system refused.
	Conflicts []PathNote `json:"conflicts,omitempty"`
	LeftOut   []PathNote `json:"left_out,omitempty"`
	Failed    []PathNote `json:"failed,omitempty"`
}

// PathNote is a path and what is to be said of it.
type PathNote struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// overlaid says whether the session works on a copy-on-write view.
func (s *Session) overlaid() bool { return s.opts.Mode == sandbox.ModeOverlay }

// mode is the workspace's, as records name it.
func (s *Session) mode() string {
	if s.overlaid() {
		return string(sandbox.ModeOverlay)
	}
	return string(sandbox.ModeBind)
}

// openLayers makes the layers of an overlay session, and the reader that goes
// through its sandbox.
func (s *Session) openLayers(original *workspace.Reader) error {
	layers, err := overlay.Create(filepath.Join(s.dir, overlayDir), overlay.CreateOptions{
		Session: s.opts.Folder.Session, Path: s.opts.Workspace.Path, Workspace: s.opts.Workspace.Dir,
	})
	if errors.Is(err, overlay.ErrUnsupported) {
		return &Error{Status: ExitSandboxStart, Err: err, Problem: Problem{
			Cause: "overlay workspaces can't be had here: " + err.Error(), Mend: "Take --mode bind, on a copy of the folder if need be.",
		}}
	}
	if err != nil {
		return stateError(s.dir, "can't hold the layers of an overlay: "+err.Error(), err)
	}
	s.layers = layers
	s.reader = &boxView{box: s.box, names: original}
	s.box.spec.Workspace.Mode, s.box.spec.Workspace.Layers = sandbox.ModeOverlay, layers.Dir()
	return nil
}

// lookBelow records the original folder: until it has, nothing runs. What is not
// known can't be told from what changed, so a failure ends the session.
func (s *Session) lookBelow(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookTime, errSlow)
	defer cancel()
	if err := s.layers.Record(ctx, s.opts.Workspace.Dir); err != nil {
		s.log.Error("record workspace", zap.Error(err))
		s.box.fail(fmt.Errorf("%w: %w", tools.ErrSandboxStart, err))
		return
	}
	s.recorded = true
}

// overlayChanges fills in what the upper layer holds, and the whole diff.
func (s *Session) overlayChanges(r *Report) {
	r.Changed, r.HostExecuted = []Changed{}, []HostExecuted{}
	if s.looking {
		<-s.looked
	}
	if !s.recorded {
		return // nothing has run
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), lookTime, errSlow)
	defer cancel()
	changes, err := s.layers.Changes(ctx, s.opts.Workspace.Dir)
	if err != nil {
		s.log.Warn("read changes", zap.Error(err))
		r.Incomplete = true
		r.Overlay = &OverlayResult{State: overlay.Kept}
		return
	}
	var patch strings.Builder
	stats, err := s.layers.Diff(ctx, s.opts.Workspace.Dir, changes, &patch, overlay.DiffOptions{})
	if err != nil {
		s.log.Warn("make diff", zap.Error(err))
		r.Incomplete = true
		stats = &overlay.Stats{Files: make([]overlay.FileStat, len(changes.List))}
	}
	r.Patch = patch.String()
	r.Incomplete = r.Incomplete || changes.Truncated || len(changes.Unread) > 0
	r.Changed = changedFiles(changes, stats)
	r.HostExecuted = HostExecutedChanges(changes, false)
	r.Overlay = &OverlayResult{State: overlay.Kept, Changes: len(changes.List)}
	r.Overlay.Conflicts, r.Overlay.LeftOut = ChangeNotes(changes.List, false)
}

// changedFiles lists changes as records do: files, and folders whose mode alone
// changed.
func changedFiles(c *overlay.Changes, stats *overlay.Stats) []Changed {
	out := []Changed{}
	for i := range c.List {
		change := &c.List[i]
		if !change.File() && change.Kind != overlay.Mode {
			continue
		}
		st := stats.Files[i]
		out = append(out, Changed{
			Path: change.Path, Change: string(change.Kind), Insertions: st.Insertions, Deletions: st.Deletions, HasDiff: st.HasDiff,
		})
	}
	return out
}

// endLayers applies the changes where that was asked for and the session ended
// well, removes layers without any, and gives the lock back.
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
			case <-s.opts.Force: // somebody asked twice: it stops between two files
				cancel(errors.New("interrupted"))
			case <-ctx.Done():
			}
		}()
	}
	s.layers.SetUser(s.opts.User.Name)
	done, err := s.layers.Apply(ctx, s.opts.Workspace.Dir, overlay.ApplyOptions{})
	if done != nil {
		r.Overlay.State, r.Overlay.Applied = done.State, len(done.Applied)
		r.Overlay.Conflicts, _ = ChangeNotes(done.Conflicts, false)
		_, r.Overlay.LeftOut = ChangeNotes(done.LeftOut, false)
		r.ApplyRefused = done.Refused
		for _, f := range done.Failed {
			r.Overlay.Failed = append(r.Overlay.Failed, PathNote{f.Path, f.Err.Error()})
		}
	}
	if err != nil {
		s.log.Error("apply changes", zap.Error(err))
		r.Overlay.Failed = append(r.Overlay.Failed, PathNote{".", err.Error()})
	}
}

// ChangeNotes divides changes into those that conflict and those that apply
// leaves out; gitConfig says that it brings in what git obeys. A folder that is
// left out stands for what is in it.
func ChangeNotes(list []overlay.Change, gitConfig bool) (conflicts, left []PathNote) {
	folder := PathNote{}
	for i := range list {
		c := &list[i]
		switch {
		case c.LeftOut != "" && (!c.Git || !gitConfig):
			if folder.Path != "" && c.LeftOut == folder.Why && strings.HasPrefix(c.Path, folder.Path+"/") {
				continue
			}
			folder = PathNote{c.Path, c.LeftOut}
			left = append(left, folder)
		case c.Conflict != "":
			conflicts = append(conflicts, PathNote{c.Path, c.Conflict})
		}
	}
	return conflicts, left
}
