package main

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/terminal"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

const diffLong = `Show what a run in overlay mode changed and has not been applied: a unified diff on standard
output that git apply and patch -p1 take. Binary files, large ones and what a diff can't hold are
named in lines that begin with "# ", and so is what conflicts: files that changed in the workspace
since the run began.

SESSION is a session's id, the beginning of it, or "last" for the newest. Without one it is the last
session on the workspace whose changes are still kept.
`

func newDiffCommand(a *app) *cobra.Command {
	var workspace string
	var stat, asJSON bool
	cmd := &cobra.Command{
		Use:     "diff [flags] [SESSION]",
		Short:   "Show what an overlay run changed",
		Long:    diffLong + exitHelp(nil, runner.ExitInput, runner.ExitConfig),
		Example: "  caisson diff\n  caisson diff --stat ses_01JD\n  caisson diff > changes.patch && git apply --check changes.patch",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usage("diff takes one session, got %d arguments", len(args))
			}
			if stat && asJSON {
				return usage("--stat or --json, not both")
			}
			k, err := openKept(a, first(args), workspace)
			if err != nil {
				return tellUnchanged(a, err, asJSON, func(i overlay.Info) any {
					return keptDocument{
						Session: i.Session, Workspace: i.Workspace, Began: i.Began, Changes: []keptChange{}, HostExecuted: []record.HostExecuted{},
					}
				})
			}
			defer k.close()
			ctx, stop := stopping(cmd.Context(), a)
			defer stop()
			if err := k.settle(ctx, true); err != nil {
				return err
			}
			return k.show(ctx, stat, asJSON, colours(a, a.stdout))
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&workspace, "workspace", "", "folder that the session worked on (default: the session's own, or the working folder)")
	cmd.Flags().BoolVar(&stat, "stat", false, "list the files with their counts of lines")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write one JSON object instead of the diff")
	return cmd
}

func first(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// stopping ends the context at the first signal.
func stopping(parent context.Context, a *app) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals, done := a.listen(), make(chan struct{})
	go func() {
		select {
		case sig := <-signals:
			cancel(&runner.Interrupted{Signal: number(sig)})
		case <-done:
		}
	}()
	return ctx, func() {
		close(done)
		cancel(nil)
	}
}

// show writes the changes to standard output, and what to mind to standard error.
func (k *keptChanges) show(ctx context.Context, stat, asJSON, colour bool) error {
	changes, err := k.read(ctx)
	if err != nil {
		return err
	}
	var text strings.Builder
	var w io.Writer = &text
	if stat || asJSON {
		w = io.Discard
	}
	stats, err := k.layers.Diff(ctx, k.workspace.Dir, changes, w, overlay.DiffOptions{})
	if err != nil {
		return keptError(k.layers.Info(), err)
	}
	switch {
	case asJSON:
		return k.json(changes, stats)
	case stat:
		for _, l := range terminal.Stat(runner.ListChanges(changes, stats), colour) {
			if _, err := io.WriteString(k.app.stdout, l+"\n"); err != nil {
				return err
			}
		}
	case k.app.terminal(k.app.stdout):
		if _, err := io.WriteString(k.app.stdout, terminal.Diff(text.String(), colour)); err != nil {
			return err
		}
	default:
		if _, err := io.WriteString(k.app.stdout, text.String()); err != nil {
			return err
		}
	}
	k.warn(changes, overlay.ApplyOptions{})
	return nil
}

// keptDocument is what caisson diff --json writes.
type keptDocument struct {
	Session      string                `json:"session"`
	Workspace    string                `json:"workspace"`
	Began        time.Time             `json:"began"`
	Changes      []keptChange          `json:"changes"`
	HostExecuted []record.HostExecuted `json:"host_executed"`
	Conflicts    int                   `json:"conflicts"`
	LeftOut      int                   `json:"left_out"`
	// Truncated says that there are more changes than are read, and Unread
	// names what could not be.
	Truncated bool     `json:"truncated,omitempty"`
	Unread    []string `json:"unread,omitempty"`
}

// keptChange is one change with its count of lines.
type keptChange struct {
	overlay.Change
	stat overlay.FileStat
}

// MarshalJSON adds the count to the change.
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

func (k *keptChanges) json(changes *overlay.Changes, stats *overlay.Stats) error {
	info := k.layers.Info()
	conflicts, left := runner.ChangeNotes(changes.List, overlay.ApplyOptions{})
	doc := keptDocument{
		Session: info.Session, Workspace: info.Workspace, Began: info.Began, Changes: []keptChange{},
		HostExecuted: runner.HostExecutedChanges(changes, overlay.ApplyOptions{}), Conflicts: len(conflicts), LeftOut: len(left),
		Truncated: changes.Truncated, Unread: changes.Unread,
	}
	for i, c := range changes.List {
		doc.Changes = append(doc.Changes, keptChange{c, stats.Files[i]})
	}
	return writeDocument(k.app.stdout, doc)
}
