package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/caches"
	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

func newDiffCommand(a *app) *cobra.Command {
	var f struct {
		Workspace string `flag:"workspace" doc:"directory that the session worked on (default: the session's own, or the working directory)"`
		Stat      bool   `flag:"stat" doc:"list the files with their counts of lines"`
		JSON      bool   `flag:"json" doc:"write one JSON object instead of the diff"`
	}
	return newCommand(&cobra.Command{
		Use: "diff [flags] [SESSION]", Short: "Show the changes of an overlay run", Args: wantArgs(0, 1, "one session"),
		Long: `Show the changes of a run in overlay mode that have not been applied: a unified diff on standard output
that git apply and patch -p1 accept. Lines that begin with "# " name binary files, large files and other
changes that a diff can't hold, and conflicts: files that changed in the workspace since the run began.

SESSION is a session's id, the beginning of it, or "last" for the newest. The default is the newest overlay
session on the workspace. Standard error shows the session and its task.
`,
		Example: "  caisson diff\n  caisson diff --stat ses_01JD\n  caisson diff > changes.patch && git apply --check changes.patch",
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.Stat && f.JSON {
				return newUsageError("--stat or --json, not both")
			}
			k, err := openKept(a, firstArgument(args), f.Workspace)
			if err != nil {
				return tellUnchanged(a, err, f.JSON, func(i overlay.Info) any {
					return keptDocument{
						Session: i.Session, Workspace: i.Workspace, Began: i.Began, Changes: []keptChange{}, HostExecuted: []record.HostExecuted{},
					}
				})
			}
			defer func() { _ = k.close() }()
			ctx, stop := stopOnSignal(cmd.Context(), a)
			defer stop()
			if err := k.backends.removeSandbox(ctx, k.layers.Info().Session, true); err != nil {
				return err
			}
			return k.showDiff(ctx, f.Stat, f.JSON, wantsColour(a, a.stdout))
		},
	}, &f, usesConfig|usesInput, nil)
}

// stopOnSignal returns a context that the first signal ends.
func stopOnSignal(parent context.Context, a *app) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals, done := a.takeSignals(), make(chan struct{})
	go func() {
		select {
		case sig := <-signals:
			cancel(&runner.Interrupted{Signal: signalNumber(sig)})
		case <-done:
		}
	}()
	return ctx, func() {
		close(done)
		cancel(nil)
	}
}

// showDiff writes the changes to standard output and warnings to standard error.
func (k *keptChanges) showDiff(ctx context.Context, stat, asJSON, colour bool) error {
	list, err := k.readChanges(ctx)
	if err != nil {
		return err
	}
	var text strings.Builder
	var w io.Writer = &text
	if stat || asJSON {
		w = io.Discard
	}
	stats, err := k.layers.Diff(ctx, k.workspace.Dir, list, w, overlay.DiffOptions{})
	if err != nil {
		return k.explain(err)
	}
	shown := text.String()
	switch {
	case asJSON:
		return k.showJSON(list, stats)
	case stat:
		shown = withNewline(strings.Join(ui.Stat(changes.List(list, stats), colour), "\n"))
	case k.app.terminal(k.app.stdout):
		shown = ui.Diff(shown, colour)
	}
	if _, err := io.WriteString(k.app.stdout, shown); err != nil {
		return err
	}
	k.warnAbout(list, overlay.ApplyOptions{})
	return nil
}

type keptDocument struct {
	Session      string                `json:"session"`
	Workspace    string                `json:"workspace"`
	Began        time.Time             `json:"began"`
	Changes      []keptChange          `json:"changes"`
	HostExecuted []record.HostExecuted `json:"host_executed"`
	Conflicts    int                   `json:"conflicts"`
	LeftOut      int                   `json:"left_out"`
	// Truncated is set if there are too many changes to read. Unread are the
	// directories that could not be read.
	Truncated bool     `json:"truncated,omitempty"`
	Unread    []string `json:"unread,omitempty"`
}

type keptChange struct {
	overlay.Change
	stat overlay.FileStat
}

// MarshalJSON adds the counts of lines to the change.
func (c keptChange) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(c.Change)
	if err != nil || !c.stat.HasDiff {
		return text, err
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	fields["insertions"], fields["deletions"] = c.stat.Insertions, c.stat.Deletions
	return json.Marshal(fields)
}

func (k *keptChanges) showJSON(list *overlay.Changes, stats *overlay.Stats) error {
	info := k.layers.Info()
	conflicts, left := changes.Notes(list.List, overlay.ApplyOptions{})
	doc := keptDocument{
		Session: info.Session, Workspace: info.Workspace, Began: info.Began, Changes: []keptChange{},
		HostExecuted: changes.HostExecuted(list, overlay.ApplyOptions{}), Conflicts: len(conflicts), LeftOut: len(left),
		Truncated: list.Truncated, Unread: list.Unread,
	}
	for i, c := range list.List {
		doc.Changes = append(doc.Changes, keptChange{c, stats.Files[i]})
	}
	return writeJSON(k.app.stdout, doc)
}

// keptChanges are the open changes of one overlay session, with its workspace.
type keptChanges struct {
	app       *app
	backends  *backends
	layers    *overlay.Layers
	workspace *runner.Workspace
	colour    bool // of standard error
}

// openKept opens a session's changes and shows which session it is. A session named ""
// is the newest one on the workspace. A workspace named "" is the named session's, or
// else the working directory.
func openKept(a *app, session, workspace string) (_ *keptChanges, err error) {
	bs, err := openDefaultBackends(a)
	if err != nil {
		return nil, err
	}
	state := a.environ.stateDir()
	k := &keptChanges{app: a, backends: bs, colour: wantsColour(a, a.stderr)}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
		}
	}()
	if session == trace.Last {
		last, err := trace.Find(state, session)
		if err != nil {
			return nil, err
		}
		session = last.ID
	}
	if session != "" {
		if k.layers, err = sessiondir.OpenChanges(state, session); err != nil {
			return nil, err
		}
		if workspace == "" {
			workspace = k.layers.Info().Workspace
		}
	}
	k.workspace, err = workspaceFor(a.environ, workspace)
	if err != nil {
		return nil, err
	}
	if k.layers == nil {
		if k.layers, err = sessiondir.OpenLastChanges(state, k.workspace.Dir, k.workspace.Path); err != nil {
			return nil, err
		}
	}
	a.printLines(describeSession(state, k.layers.Info().Session))
	if note := sessiondir.CutOffPatch(state, k.layers.Info().Session); note != "" {
		fmt.Fprintln(a.stderr, "! "+note)
	}
	return k, k.workspace.CheckOwner(*bs.conf.CallerOwnsFiles)
}

// describeSession returns a session's id with the beginning of its task.
func describeSession(state, id string) string {
	s, err := trace.Find(state, id)
	if err != nil {
		return "session " + id
	}
	f, err := record.OpenRegular(s.Path)
	if err != nil {
		return "session " + id
	}
	defer func() { _ = f.Close() }()
	begin, _ := trace.ReadBegin(f) // after an error, begin has what was read
	if task := firstLine(begin.Task, 100); task != "" {
		return "session " + id + ": " + task
	}
	return "session " + id
}

func describeOlder(state, id string) string {
	return "the changes of an older " + describeSession(state, id) + " are still kept: to use them, name that session in the command"
}

func (k *keptChanges) close() error {
	var err error
	if k.layers != nil {
		err = k.layers.Close()
	}
	if k.workspace != nil {
		err = errors.Join(err, k.workspace.Close())
	}
	k.backends.close()
	return err
}

// removeSandbox makes sure that no container of a dead Caisson still writes to a
// session's layers: their locks end with Caisson, but the container may outlive it. It
// removes the rest of the session's sandbox as caisson sandbox gc does, or returns an
// error. If running is set, it accepts a session whose Caisson lives: the locks decide
// then.
func (bs *backends) removeSandbox(ctx context.Context, session string, running bool) error {
	note := filepath.Join(bs.environ.stateDir(), "cleanup", session+".json")
	noted := func() bool {
		_, err := os.Lstat(note)
		_, damaged := os.Lstat(note + ".damaged")
		return !errors.Is(err, fs.ErrNotExist) || !errors.Is(damaged, fs.ErrNotExist)
	}
	if !noted() {
		return nil
	}
	failures := bs.eachBackend(ctx, func(ctx context.Context, b sandbox.Backend) error {
		_, err := b.Sweep(ctx)
		return err
	})
	if !noted() {
		return nil
	}
	if running {
		found, _ := bs.listSandboxes(ctx)
		if slices.ContainsFunc(found, func(l sandbox.Listing) bool {
			return l.Session == session && l.Owner.State == "alive" && !l.GivenUp && !l.Foreign
		}) {
			return nil
		}
	}
	cause := "the sandbox of session " + session + " is not gone: commands in it could still change what is kept"
	if len(failures) > 0 {
		cause += ": " + strings.Join(failures, "; ")
	}
	return newFailure(exitInput, overlay.ErrBusy, cause, "Look at caisson sandbox ls, fix what caisson sandbox gc reports, and try again; nothing was changed.")
}

func (k *keptChanges) readChanges(ctx context.Context) (*overlay.Changes, error) {
	changes, err := k.layers.Changes(ctx, k.workspace.Dir, overlay.ReadOptions{})
	if err != nil {
		return nil, k.explain(err)
	}
	return changes, nil
}

// explain explains an error about the changes.
func (k *keptChanges) explain(err error) error {
	i, status := k.layers.Info(), exitInput
	switch {
	case errors.Is(err, overlay.ErrBusy):
		return newFailure(status, err, "session "+i.Session+" still runs, or its changes, or others of this directory, are being applied", "Wait for that, or end it.")
	case errors.Is(err, overlay.ErrOther):
		return newFailure(status, err, fmt.Sprintf("session %s worked on another directory: the one that was %s then", i.Session, i.Workspace),
			"Name that directory with --workspace, or make a patch of workspace.patch in the session's directory.")
	case errors.Is(err, overlay.ErrTooMany):
		return newFailure(status, err, "session "+i.Session+" changed too much: "+err.Error(), "Nothing of it can be applied safely; caisson apply --discard removes it.")
	case errors.Is(err, context.Canceled):
		status = exitInterrupted
	}
	return newFailure(status, err, "the changes of session "+i.Session+" can't be read: "+err.Error(), "Look at the cause; nothing was changed.")
}

// tellUnchanged reports on standard error that a session changed nothing, and names an
// older session whose changes are kept. If asJSON is set, it also writes document to
// standard output. It returns other errors unchanged.
func tellUnchanged(a *app, err error, asJSON bool, document func(overlay.Info) any) error {
	unchanged, ok := errors.AsType[*sessiondir.UnchangedError](err)
	state := a.environ.stateDir()
	if gone, isGone := errors.AsType[*sessiondir.ChangesError](err); isGone && gone.Older != "" {
		a.printLines(describeOlder(state, gone.Older))
	}
	if !ok {
		return err
	}
	a.printLines(describeSession(state, unchanged.Info.Session), "it changed nothing")
	if unchanged.Older != "" {
		a.printLines(describeOlder(state, unchanged.Older))
	}
	if asJSON {
		return writeJSON(a.stdout, document(unchanged.Info))
	}
	return nil
}

// warnAbout lists what the user should know before changes are applied.
func (k *keptChanges) warnAbout(c *overlay.Changes, o overlay.ApplyOptions) {
	conflicts, left := changes.Notes(c.List, o)
	k.app.printLines(slices.Concat(ui.Conflicts(conflicts, k.colour), ui.LeftOut(left, k.colour),
		ui.HostExecuted(changes.HostExecuted(c, o), 0, k.colour))...)
	for _, dir := range c.Unread {
		fmt.Fprintf(k.app.stderr, "! can't be read, and is not applied: %s\n", overlay.Quote(dir))
	}
}

// drawsOn reports whether a stream is a terminal that can move its cursor.
func (a *app) drawsOn(stream io.Writer) bool {
	return a.terminal(stream) && a.environ.get("TERM") != "dumb" && a.environ.get("TERM") != ""
}

func wantsColour(a *app, stream io.Writer) bool {
	return a.drawsOn(stream) && a.environ.get("NO_COLOR") == ""
}

// expireChanges removes the changes of overlay runs that waited longer than
// keep_changes.
func (s *settings) expireChanges() []string {
	gone, err := sessiondir.ExpireChanges(s.environ.stateDir(), time.Duration(*s.conf.KeepChanges))
	return describeExpired(gone, err, "the changes of session %s are gone: they were not applied in time (keep_changes)", "changes of old sessions")
}

// expireCaches removes caches that no session has used for keep_caches.
func (s *settings) expireCaches() []string {
	gone, err := caches.NewStore(s.environ.stateDir()).Expire(time.Duration(*s.conf.KeepCaches))
	return describeExpired(gone, err, "the caches of %s are gone: no session used them in time (keep_caches)", "old caches")
}

func describeExpired(gone []string, err error, format, kept string) []string {
	var out []string
	for _, one := range gone {
		out = append(out, fmt.Sprintf(format, one))
	}
	if err != nil {
		out = append(out, kept+" could not be removed: "+err.Error())
	}
	return out
}
