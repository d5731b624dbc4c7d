package main

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// applyFlags are the flags of caisson apply.
type applyFlags struct {
	Workspace string `flag:"workspace" doc:"directory that the session worked on (default: the session's own, or the working directory)"`
	DryRun    bool   `flag:"dry-run" doc:"list the changes, and do nothing"`
	Rest      bool   `flag:"skip-conflicts" doc:"apply the changes that don't conflict"`
	GitConfig bool   `flag:"with-git-config" doc:"also apply files that git on the host obeys or runs: read them first"`
	LinksOut  bool   `flag:"with-symlinks-out" doc:"also apply symlinks that lead out of the workspace: look at their targets first"`
	Discard   bool   `flag:"discard" doc:"remove the changes instead"`
	JSON      bool   `flag:"json" doc:"write the result as one JSON object to standard output"`
}

func newApplyCommand(a *app) *cobra.Command {
	var f applyFlags
	return newCommand(&cobra.Command{
		Use: "apply [flags] [SESSION]", Short: "Apply the changes of an overlay run", Args: wantArgs(0, 1, "one session"),
		Long: `Apply the changes of a run in overlay mode to its workspace.

A file that changed in the workspace since the run began is a conflict. With a conflict, nothing is applied,
unless --skip-conflicts applies the rest. Each file is replaced as a whole or not at all; if an apply is
killed, the next one continues it. Some changes are left out and listed: files that git on the host obeys
or runs (config, hooks, attributes of a repository), symlinks that lead out of the workspace, special
files, and .caisson.

Files that the run wrote to caches are kept once its first change is applied.

Changes that were applied completely are no longer kept. The rest is kept until it is applied,
discarded, or expires (keep_changes).
`,
		Example: "  caisson apply --dry-run\n  caisson apply --skip-conflicts ses_01JD\n  caisson apply --discard",
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.Discard && (f.DryRun || f.Rest || f.GitConfig || f.LinksOut) {
				return newUsageError("--discard applies nothing, so it takes no other choice")
			}
			k, err := openKept(a, firstArgument(args), f.Workspace)
			if err != nil {
				return tellUnchanged(a, err, f.JSON, func(i overlay.Info) any {
					return newAppliedDocument(i.Session, i.Workspace, &overlay.Result{State: i.State}, f.DryRun, nil)
				})
			}
			defer func() { _ = k.close() }()
			ctx, stop := stopOnSignal(cmd.Context(), a)
			defer stop()
			return k.apply(ctx, f)
		},
	}, &f, usesConfig|usesInput|appliesChanges|interruptible, statuses{exitFailed: "a change could not be applied, or the apply did not finish"})
}

func (k *keptChanges) apply(ctx context.Context, f applyFlags) error {
	session := k.layers.Info().Session
	// Once the lock is held, the session's Caisson has ended. removeSandbox waits for
	// its sandbox.
	if err := k.layers.Lock(); err != nil {
		return k.explain(err)
	}
	if err := k.backends.removeSandbox(ctx, session, false); err != nil {
		return err
	}
	if f.Discard {
		k.layers.SetUser(runner.LocalUser())
		if err := k.layers.End(overlay.Discarded); err != nil {
			return k.explain(err)
		}
		k.tellCaches(sessiondir.DropCaches(k.sessionDir()))
		fmt.Fprintf(k.app.stderr, "the changes of session %s are discarded\n", session)
		return nil
	}
	// Show the warnings before changing anything.
	changes, err := k.readChanges(ctx)
	if err != nil {
		return err
	}
	o := overlay.ApplyOptions{Rest: f.Rest, GitConfig: f.GitConfig, LinksOut: f.LinksOut, DryRun: f.DryRun}
	if !f.JSON {
		k.warnAbout(changes, o)
	}
	k.layers.SetUser(runner.LocalUser())
	r, err := k.layers.Apply(ctx, k.workspace.Dir, o)
	if r == nil {
		return k.explain(err)
	}
	if !f.DryRun && !r.Refused && (len(r.Applied) > 0 || r.State == overlay.Applied) {
		k.tellCaches(sessiondir.MergeCaches(ctx, k.sessionDir()))
	}
	status := k.exitStatus(ctx, r, f, err)
	if f.JSON {
		return cmp.Or(writeJSON(k.app.stdout, newAppliedDocument(session, k.workspace.Path, r, f.DryRun, err)), status)
	}
	k.tellApplied(r, f, err)
	return status
}

func (k *keptChanges) sessionDir() string { return filepath.Dir(k.layers.Dir()) }

// tellCaches reports an error of merging or dropping the session's caches. It doesn't
// affect the changes of the workspace.
func (k *keptChanges) tellCaches(err error) {
	if err != nil {
		k.app.warn(err.Error() + ": the next run removes the rest")
	}
}

// exitStatus returns the exit status of an apply as an error, or nil for success.
func (k *keptChanges) exitStatus(ctx context.Context, r *overlay.Result, f applyFlags, err error) error {
	interrupted := interruption(ctx)
	switch {
	case interrupted != nil && err != nil:
		return interrupted
	case err != nil || len(r.Failed) > 0:
		return exitWith(exitFailed)
	case r.Refused, len(r.Conflicts) > 0 && !f.Rest:
		return exitWith(exitConflict)
	}
	return nil
}

func (k *keptChanges) tellApplied(r *overlay.Result, f applyFlags, err error) {
	session := k.layers.Info().Session
	k.app.printLines(ui.Failed(listFailures(r), k.colour)...)
	switch {
	case r.Refused:
		reportError(k.app, record.Problem{
			Cause: "nothing is applied: " + formatCount(len(r.Conflicts), "change conflicts", "changes conflict") + " with what changed in the workspace since the run began",
			Hint:  "Look at caisson diff " + session + "; --skip-conflicts applies the rest.",
		})
	case f.DryRun:
		for i := range r.Applied {
			fmt.Fprintf(k.app.stdout, "%-8s %s\n", r.Applied[i].Kind, overlay.Quote(r.Applied[i].Path))
		}
		k.app.printLines(fmt.Sprintf("would be applied to %s: %s", makeSafe(k.workspace.Path), overlay.CountText(r.Applied)))
	default:
		k.app.printLines(fmt.Sprintf("applied to %s: %s", makeSafe(k.workspace.Path), overlay.CountText(r.Applied)))
		if left := len(r.Conflicts) + len(r.LeftOut) + len(r.Failed) + len(r.Unread); left > 0 {
			k.app.printLines(fmt.Sprintf("%s kept: caisson diff %s shows them, caisson apply --discard %s removes them", formatCount(left, "change is", "changes are"), session, session))
		}
	}
	if err != nil {
		reportError(k.app, record.Problem{Cause: "the apply did not finish: " + err.Error(), Hint: "Fix that and run it again: it continues where it stopped."})
	}
}

func formatCount(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}

func listFailures(r *overlay.Result) []record.PathNote {
	var out []record.PathNote
	for _, f := range r.Failed {
		out = append(out, record.PathNote{Path: f.Path, Why: f.Err.Error()})
	}
	return out
}

// appliedDocument is the output of caisson apply --json.
type appliedDocument struct {
	Session   string            `json:"session"`
	Workspace string            `json:"workspace"`
	State     overlay.State     `json:"state"`
	DryRun    bool              `json:"dry_run"`
	Refused   bool              `json:"refused"`
	Applied   []overlay.Change  `json:"applied"`
	Conflicts []overlay.Change  `json:"conflicts"`
	LeftOut   []overlay.Change  `json:"left_out"`
	Failed    []record.PathNote `json:"failed"`
	Unread    []string          `json:"unread,omitempty"`
	Error     string            `json:"error,omitempty"`
}

func newAppliedDocument(session, workspace string, r *overlay.Result, dryRun bool, err error) appliedDocument {
	doc := appliedDocument{
		Session: session, Workspace: workspace, State: r.State, DryRun: dryRun, Refused: r.Refused,
		Applied: record.NonNil(r.Applied), Conflicts: record.NonNil(r.Conflicts), LeftOut: record.NonNil(r.LeftOut), Failed: record.NonNil(listFailures(r)), Unread: r.Unread,
	}
	if err != nil {
		doc.Error = err.Error()
	}
	return doc
}
