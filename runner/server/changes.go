package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

const (
	// maxPatchBytes bounds the patch in a JSON response; /patch returns all of
	// it.
	maxPatchBytes = 4 << 20
	// applyTime bounds an apply, which continues if its client leaves.
	applyTime = 10 * time.Minute
)

// Diff describes what a session changed so far.
type Diff struct {
	Session             string                `json:"session"`
	State               State                 `json:"state"`
	Mode                string                `json:"mode" doc:"bind: the changes are in the workspace; overlay and copy: they are kept apart until they are applied"`
	Changes             string                `json:"changes,omitempty" doc:"for an overlay: kept, applied, discarded, expired or empty"`
	Files               []record.Changed      `json:"files" nullable:"false"`
	FilesOmitted        int                   `json:"files_omitted,omitempty" doc:"changed files that are not listed"`
	Count               record.ChangeCount    `json:"count" doc:"all changed files, and their lines"`
	HostExecuted        []record.HostExecuted `json:"host_executed" nullable:"false" doc:"changed files that a program of the host would run or obey, deleted files that restricted one, and symlinks that lead out of the workspace: read them first"`
	HostExecutedOmitted int                   `json:"host_executed_omitted,omitempty"`
	Conflicts           []Note                `json:"conflicts" nullable:"false" doc:"changes to files that also changed in the workspace"`
	LeftOut             []Note                `json:"left_out" nullable:"false" doc:"changes that an apply leaves out"`
	Incomplete          bool                  `json:"incomplete" doc:"the workspace was too large or unreadable, so the list may be incomplete"`
	Patch               string                `json:"patch" doc:"a unified diff; at most 4 MiB"`
	PatchPartial        bool                  `json:"patch_partial" doc:"the patch is cut, or has bytes that are not UTF-8: GET …/patch has the exact bytes"`
}

// ApplyRequest has the options of an apply.
type ApplyRequest struct {
	SkipConflicts   bool `json:"skip_conflicts,omitempty" doc:"apply what does not conflict, rather than nothing"`
	WithSymlinksOut bool `json:"with_symlinks_out,omitempty" doc:"also apply symlinks that lead out of the workspace: look at their targets first"`
	DryRun          bool `json:"dry_run,omitempty" doc:"report what would be done, but do nothing"`
	Discard         bool `json:"discard,omitempty" doc:"remove the changes instead"`
}

// Applied is the result of an apply.
type Applied struct {
	Session   string `json:"session"`
	Workspace string `json:"workspace"`
	Changes   string `json:"changes" doc:"what became of them: kept if some are left, applied, discarded or empty"`
	DryRun    bool   `json:"dry_run"`
	Applied   []Note `json:"applied" nullable:"false"`
	Conflicts []Note `json:"conflicts" nullable:"false"`
	LeftOut   []Note `json:"left_out" nullable:"false"`
	Failed    []Note `json:"failed" nullable:"false"`
}

type changesAPI struct {
	sessions *registry
	// open and settle are Options.OpenWorkspace and Options.Settle.
	open   func(path string) (*runner.Workspace, error)
	settle func(ctx context.Context, session string) error
}

func (a changesAPI) addOperations(o operations) {
	huma.Register(o.api, o.newOperation(http.MethodGet, "/sessions/{id}/diff", "getDiff", "A session's changes",
		"For a live session, its changes so far: what it writes meanwhile may be missing.", http.StatusOK, 404, 409, 410),
		func(ctx context.Context, in *SessionPath) (*body[Diff], error) {
			d, _, err := a.readDiff(ctx, in.ID)
			return &body[Diff]{d}, err
		})
	op := o.newOperation(http.MethodGet, "/sessions/{id}/patch", "getPatch", "A session's changes as a patch",
		"The exact bytes of a unified diff that git apply and patch -p1 accept.", http.StatusOK, 404, 409, 410)
	op.Responses["200"] = bytesResponse("text/x-diff")
	huma.Register(o.api, op, func(ctx context.Context, in *SessionPath) (*huma.StreamResponse, error) {
		_, patch, err := a.readDiff(ctx, in.ID)
		if err != nil {
			return nil, err
		}
		return &huma.StreamResponse{Body: func(c huma.Context) {
			c.SetHeader("Content-Type", "text/x-diff")
			a.sessions.writeBytes(c.BodyWriter(), []byte(patch))
		}}, nil
	})
	huma.Register(o.api, o.newOperation(http.MethodPost, "/sessions/{id}/apply", "applyChanges", "Apply an overlay session's changes",
		"A live session must be idle, and is ended first. A file that changed in the workspace since the session began is a conflict: then nothing is applied and 409 lists the conflicts, unless skip_conflicts applies the rest. Symlinks that lead out of the workspace are left out unless with_symlinks_out is set. Files that a git of the host would obey are never applied here.",
		http.StatusOK, 404, 409, 410, 422),
		func(ctx context.Context, in *sessionRequest[ApplyRequest]) (*body[Applied], error) {
			out, err := a.applyChanges(ctx, in.ID, in.Body)
			return &body[Applied]{out}, err
		})
}

func (a changesAPI) readDiff(ctx context.Context, id string) (Diff, string, error) {
	dir, err := a.sessions.findDir(id)
	if err != nil {
		return Diff{}, "", err
	}
	if live := a.sessions.liveSession(id); live != nil {
		d, err := live.run.Differences(ctx)
		if err == nil {
			out := diffView(live.sessionView(false), d)
			if sandbox.WorkspaceMode(out.Mode).KeepsChanges() {
				out.Changes = string(overlay.Kept)
			}
			return out, d.Patch, nil
		}
		if !errors.Is(err, runner.ErrOver) {
			return Diff{}, "", a.sessions.internalProblem("compare workspace", err)
		}
		if err := waitClosed(ctx, live.closed); err != nil {
			return Diff{}, "", err
		}
	}
	return a.readPastDiff(ctx, id, dir)
}

func waitClosed(ctx context.Context, closed <-chan struct{}) error {
	select {
	case <-closed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of the session: %w", context.Cause(ctx))
	}
}

func diffView(v Session, d changes.Differences) Diff {
	return Diff{
		Session: v.ID, State: v.State, Mode: v.Mode, Files: record.NonNil(d.Changed), FilesOmitted: d.ChangedOmitted, Count: d.Count,
		HostExecuted: record.NonNil(d.HostExecuted), HostExecutedOmitted: d.HostExecutedOmitted, Conflicts: record.NonNil(d.Conflicts), LeftOut: record.NonNil(d.LeftOut),
		Incomplete: d.Incomplete, Patch: d.Patch[:min(len(d.Patch), maxPatchBytes)], PatchPartial: len(d.Patch) > maxPatchBytes || !utf8.ValidString(d.Patch),
	}
}

// readPastDiff reads the changes of a session that is not live here: the kept
// changes if there are any, otherwise the report's.
func (a changesAPI) readPastDiff(ctx context.Context, id, dir string) (Diff, string, error) {
	p, err := readPast(id, dir)
	if err != nil {
		return Diff{}, "", a.sessions.internalProblem("read session", err)
	}
	v := p.sessionView(a.sessions.archive.isLive(id), false)
	if v.State == StateElsewhere {
		return Diff{}, "", runsElsewhere(id, "Ask again once it has ended")
	}
	layers, err := sessiondir.OpenChanges(a.sessions.archive.stateDir, id)
	if err == nil {
		defer func() { _ = layers.Close() }() // only read
		d, err := a.readKeptDiff(ctx, layers)
		if err != nil {
			return Diff{}, "", err
		}
		out := diffView(v, d)
		out.Changes = string(overlay.Kept)
		return out, d.Patch, nil
	}
	var report record.SessionEnded
	text, err := os.ReadFile(filepath.Join(dir, "report.json"))
	switch {
	case err == nil && json.Unmarshal(text, &report) == nil:
	case p.ended != nil:
		report = *p.ended
	default:
		return Diff{}, "", newProblem(http.StatusGone, "no_changes", "session "+id+" was interrupted, and left no list of its changes", "In bind mode, its changes are in the workspace")
	}
	patch, err := os.ReadFile(filepath.Join(dir, record.PatchFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Diff{}, "", a.sessions.internalProblem("read patch", err)
	}
	d := changes.Differences{
		Changed: report.Changed, ChangedOmitted: report.ChangedOmitted, Count: report.ChangedCount,
		HostExecuted: report.HostExecuted, HostExecutedOmitted: report.HostExecutedOmitted, Patch: string(patch), Incomplete: report.Incomplete,
	}
	if report.Overlay != nil {
		d.Conflicts, d.LeftOut = report.Overlay.Conflicts, report.Overlay.LeftOut
	}
	out := diffView(v, d)
	if report.Overlay != nil {
		out.Changes = a.layersState(dir, report.Overlay)
	}
	return out, d.Patch, nil
}

func (a changesAPI) layersState(dir string, then *record.OverlayResult) string {
	l, err := overlay.Open(filepath.Join(dir, "overlay"))
	if err != nil {
		return string(then.State)
	}
	defer func() { _ = l.Close() }() // only read
	return string(l.Info().State)
}

func (a changesAPI) readKeptDiff(ctx context.Context, l *overlay.Layers) (changes.Differences, error) {
	w, err := a.openWorkspace(l)
	if err != nil {
		return changes.Differences{}, err
	}
	defer func() { _ = w.Close() }() // only read
	list, err := l.Changes(ctx, w.Dir, changes.ReadBounds)
	if err != nil {
		return changes.Differences{}, a.changesProblem(l.Info(), err)
	}
	d, err := changes.ReadOverlay(ctx, l, w.Dir, list)
	if err != nil {
		return d, a.changesProblem(l.Info(), err)
	}
	return d, nil
}

func (a changesAPI) openWorkspace(l *overlay.Layers) (*runner.Workspace, error) {
	w, err := a.open(l.Info().Workspace)
	if err != nil {
		return nil, a.sessions.asProblem("open workspace", err)
	}
	return w, nil
}

func (a changesAPI) changesProblem(i overlay.Info, err error) error {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	switch {
	case errors.Is(err, overlay.ErrBusy):
		return newProblem(http.StatusConflict, "busy", "the changes of session "+i.Session+", or of another one on its directory, are being applied", "Try again when that is done")
	case errors.Is(err, overlay.ErrOther):
		return newProblem(http.StatusConflict, "other_directory", "session "+i.Session+" worked on another directory, which was "+i.Workspace+" then", "Use the patch")
	case errors.Is(err, overlay.ErrTooMany):
		return newProblem(http.StatusConflict, "too_many", fmt.Sprintf("session %s made more changes than are applied over HTTP: %d, or %d MiB of names and symlink targets",
			i.Session, changes.ReadBounds.MaxEntries, changes.ReadBounds.MaxTextBytes>>20), "Apply them on the server's host, or discard them")
	}
	return a.sessions.internalProblem("read changes", err)
}

// applyChanges applies or discards an overlay session's changes. It ends a live
// session first, so that its changes are final.
func (a changesAPI) applyChanges(ctx context.Context, id string, r ApplyRequest) (Applied, error) {
	if r.Discard && (r.DryRun || r.SkipConflicts || r.WithSymlinksOut) {
		return Applied{}, newProblem(http.StatusUnprocessableEntity, "invalid", "discard applies nothing, so it takes no other option", "Leave the others out")
	}
	dir, err := a.sessions.findDir(id)
	if err != nil {
		return Applied{}, err
	}
	if err := a.endForApply(ctx, id, r); err != nil {
		return Applied{}, err
	}
	p, err := readPast(id, dir)
	if err != nil {
		return Applied{}, a.sessions.internalProblem("read session", err)
	}
	if p.sessionView(a.sessions.archive.isLive(id), false).State == StateElsewhere {
		return Applied{}, runsElsewhere(id, "End it there")
	}
	// The apply is completed even if the client leaves, and the server waits
	// for it.
	ctx, done, err := a.sessions.beginWork(ctx, applyTime)
	if err != nil {
		return Applied{}, err
	}
	defer done()
	layers, err := sessiondir.OpenChanges(a.sessions.archive.stateDir, id)
	if err != nil {
		status, code := http.StatusConflict, "no_changes"
		if errors.Is(err, overlay.ErrGone) {
			status, code = http.StatusGone, "changes_gone"
		} else if e, ok := errors.AsType[*sessiondir.ChangesError](err); !ok || e.Reason == sessiondir.Unreadable {
			return Applied{}, a.sessions.internalProblem("open changes", err)
		}
		return Applied{}, fromProblem(status, code, record.Problem{Cause: err.Error(), Hint: "Its diff shows what is known of them."})
	}
	defer func() { _ = layers.Close() }() // what was done is done
	return a.applyLayers(ctx, layers, r)
}

// endForApply ends a live session if its changes can be applied.
func (a changesAPI) endForApply(ctx context.Context, id string, r ApplyRequest) error {
	live := a.sessions.liveSession(id)
	if live == nil {
		return nil
	}
	v := live.sessionView(false)
	switch {
	case live.adopted != nil:
		return inTerminal()
	case !sandbox.WorkspaceMode(v.Mode).KeepsChanges():
		return newProblem(http.StatusConflict, "no_changes", "session "+id+" works on the directory itself", "Its changes are there; mode overlay keeps changes apart")
	case v.State == StateRunning:
		return newProblem(http.StatusConflict, "busy", "turn "+v.Turn+" is running", "Wait for its end, or cancel it")
	case r.DryRun:
		return newProblem(http.StatusConflict, "busy", "session "+id+" is live", "GET …/diff shows what it changed and what conflicts; an apply ends it first")
	}
	if a.sessions.ctx.Err() != nil {
		return serverStopping() // it may have cut a turn
	}
	if !live.endIdle(clientOf(ctx).name()) {
		return newProblem(http.StatusConflict, "busy", "a turn has begun, or the session's end is cutting it short", "Wait for its end, or cancel it")
	}
	return waitClosed(ctx, live.closed)
}

func (a changesAPI) applyLayers(ctx context.Context, l *overlay.Layers, r ApplyRequest) (Applied, error) {
	info := l.Info()
	w, err := a.openWorkspace(l)
	if err != nil {
		return Applied{}, err
	}
	defer func() { _ = w.Close() }() // only its directory was written to
	if err := l.Lock(); err != nil {
		return Applied{}, a.changesProblem(info, err)
	}
	if a.settle != nil {
		if err := a.settle(ctx, info.Session); err != nil {
			return Applied{}, a.sessions.asProblem("settle session", err)
		}
	}
	from := clientOf(ctx)
	l.SetUser(from.name())
	a.sessions.log.Info("changes are applied", zap.String("session", info.Session), zap.String("client", from.label), zap.Bool("discard", r.Discard), zap.Bool("dry_run", r.DryRun))
	out := Applied{Session: info.Session, Workspace: w.Path, DryRun: r.DryRun, Applied: []Note{}, Conflicts: []Note{}, LeftOut: []Note{}, Failed: []Note{}}
	if r.Discard {
		if err := l.End(overlay.Discarded); err != nil {
			return Applied{}, a.changesProblem(info, err)
		}
		a.noteCaches(info, sessiondir.DropCaches(filepath.Dir(l.Dir())))
		out.Changes = string(overlay.Discarded)
		return out, nil
	}
	o := overlay.ApplyOptions{
		Rest: r.SkipConflicts, LinksOut: r.WithSymlinksOut, DryRun: r.DryRun,
		MaxEntries: changes.ReadBounds.MaxEntries, MaxTextBytes: changes.ReadBounds.MaxTextBytes,
	}
	done, err := l.Apply(ctx, w.Dir, o)
	if done == nil {
		return Applied{}, a.changesProblem(info, err)
	}
	out.setResult(done, o)
	if !r.DryRun && !done.Refused && (len(done.Applied) > 0 || done.State == overlay.Applied) {
		a.noteCaches(info, sessiondir.MergeCaches(ctx, filepath.Dir(l.Dir())))
	}
	if err != nil {
		out.Failed = append(out.Failed, Note{Path: ".", Why: err.Error()})
	}
	if done.Refused || len(out.Conflicts) > 0 && !r.SkipConflicts {
		p := newProblem(http.StatusConflict, "conflicts", fmt.Sprintf("nothing is applied: %d changes conflict with what changed in the workspace meanwhile", len(out.Conflicts)),
			"skip_conflicts applies the rest")
		p.Conflicts = out.Conflicts
		return Applied{}, p
	}
	return out, nil
}

func (a changesAPI) noteCaches(i overlay.Info, err error) {
	if err != nil {
		a.sessions.log.Warn("end caches", zap.String("session", i.Session), zap.Error(err))
	}
}

func (a *Applied) setResult(r *overlay.Result, o overlay.ApplyOptions) {
	a.Changes = string(r.State)
	for i := range r.Applied {
		a.Applied = append(a.Applied, Note{Path: overlay.Quote(r.Applied[i].Path), Why: string(r.Applied[i].Kind)})
	}
	conflicts, _ := changes.Notes(r.Conflicts, o)
	_, left := changes.Notes(r.LeftOut, o)
	a.Conflicts, a.LeftOut = append(a.Conflicts, conflicts...), append(a.LeftOut, left...)
	for _, f := range r.Failed {
		a.Failed = append(a.Failed, Note{Path: overlay.Quote(f.Path), Why: f.Err.Error()})
	}
}
