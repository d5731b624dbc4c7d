package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools"
)

func newTraceCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "trace", Short: "Sessions and their records: list, show, verify, export, page, prune",
		Long: "Sessions and their records. SESSION is an id, the beginning of one, last, or the path of a\n" +
			"session's directory or trace.jsonl (with a slash in it, or .jsonl at its end).",
	}, newTraceListCommand(a), newTraceShowCommand(a), newTraceVerifyCommand(a),
		newTraceExportCommand(a), newTraceHTMLCommand(a), newTracePruneCommand(a))
}

// traceState is the state directory, which need not exist.
func traceState(env environ) (string, error) {
	state := env.stateDir()
	if state == "" {
		return "", &commandError{Status: exitConfig, Problem: record.Problem{
			Cause: "there is no place for Caisson's state: neither HOME nor XDG_STATE_HOME is an absolute path",
			Hint:  "Set HOME, or XDG_STATE_HOME.",
		}}
	}
	return state, nil
}

// traceSession finds the one session that a command names.
func traceSession(env environ, cmd *cobra.Command, args []string) (trace.Session, error) {
	if len(args) != 1 {
		return trace.Session{}, newUsageError("%s takes one session, got %d arguments; caisson trace ls lists them", cmd.CommandPath(), len(args))
	}
	state, err := traceState(env)
	if err != nil {
		return trace.Session{}, err
	}
	return trace.Find(state, args[0])
}

// reportDamage warns that a session was shown up to damaged records.
func reportDamage(w io.Writer, o trace.Overview) error {
	_, err := fmt.Fprintf(w, "caisson: the records of %s were changed: %s. What was shown is what stands before that.\n", o.Session, makeSafeLine(o.Damage))
	return err
}

// makeSafeLine makes a text of a file safe to show.
func makeSafeLine(s string) string {
	safe, _ := tools.Display(s)
	return strings.TrimRight(safe, ".")
}

const traceListLong = `List sessions, the newest first: time, state, cost and task.

STATE is "live", the reason and exit status of the end, "cut short" for a session that was killed, or
"damaged" if its first or last record can't be read. Only the first records, up to the task, and the
last one are read: caisson trace verify reads all.
`

func newTraceListCommand(a *app) *cobra.Command {
	var asJSON bool
	var limit int
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Short:   "List sessions, the newest first",
		Long:    traceListLong + exitHelp(nil, usesConfig|usesInput),
		Example: "  caisson trace ls\n  caisson trace ls --json --limit 0 | jq -r '.[] | select(.state==\"cut short\").session'",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			if limit < 0 {
				return newUsageError("--limit is a number of sessions, 0 for all; got %d", limit)
			}
			state, err := traceState(a.environ)
			if err != nil {
				return err
			}
			list, err := trace.List(state, limit)
			if err != nil {
				return err
			}
			return showSessions(a, list, asJSON, limit)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().IntVar(&limit, "limit", 20, "most sessions to list, 0 for all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write a JSON array")
	return cmd
}

func showSessions(a *app, list []trace.Entry, asJSON bool, limit int) error {
	if asJSON {
		return writeJSON(a.stdout, list)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(a.stderr, "caisson: there are no sessions yet")
		return err
	}
	rows := [][]string{{"SESSION", "BEGUN", "STATE", "TIME", "COST", "TASK"}}
	for _, e := range list {
		rows = append(rows, []string{e.Session, begunText(e.Begun, "2006-01-02 15:04"), stateText(e), wallText(e), costText(e), taskText(e)})
	}
	if err := a.writeTable(rows); err != nil {
		return err
	}
	if limit > 0 && len(list) == limit {
		_, err := fmt.Fprintf(a.stderr, "the newest %d; --limit 0 lists all\n", limit)
		return err
	}
	return nil
}

func begunText(t time.Time, layout string) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(layout)
}

func stateText(e trace.Entry) string {
	text := string(e.State)
	if e.State == trace.StateEnded && e.ExitStatus != nil {
		text = fmt.Sprintf("%s (%d)", e.Reason, *e.ExitStatus)
	}
	if e.Pruned {
		text += ", pruned"
	}
	safe, _ := tools.Display(text)
	return safe
}

func wallText(e trace.Entry) string {
	d := time.Duration(e.WallMS) * time.Millisecond
	if e.State != trace.StateEnded {
		d = e.Last.Sub(e.Begun)
	}
	if e.State == trace.StateDamaged || d < 0 {
		return "-"
	}
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}

func costText(e trace.Entry) string {
	switch e.CostUSD {
	case "":
		return "-"
	case "unknown":
		return "unknown"
	}
	safe, _ := tools.Display("$" + strings.TrimSuffix(strings.TrimRight(e.CostUSD, "0"), "."))
	return safe
}

// taskText is the task's first line, short.
func taskText(e trace.Entry) string {
	text, _, more := strings.Cut(strings.TrimSpace(e.Task), "\n")
	if e.Damage != "" {
		text, more = e.Damage, false
	}
	runes := []rune(text)
	if len(runes) > 60 {
		runes, more = runes[:60], true
	}
	safe, _ := tools.Display(string(runes))
	if more {
		safe += "…"
	}
	return safe
}

const traceShowLong = `Show what happened in a session: turns, model calls, tool calls with class, rule, answers, duration
and outcome. Of long texts both ends are shown; --full shows all. For a running session, the
records so far are shown; --follow continues until its end.

--kind shows records of some kinds instead, one per line; --json writes their own lines.
`

func newTraceShowCommand(a *app) *cobra.Command {
	o := trace.ShowOptions{FullHint: "--full shows them"}
	var kinds []string
	var follow bool
	cmd := &cobra.Command{
		Use:     "show [flags] SESSION",
		Short:   "Show what happened in a session",
		Long:    traceShowLong + exitHelp(map[int]string{exitFailed: "the records are damaged"}, usesConfig|usesInput),
		Example: "  caisson trace show ses_01JD\n  caisson trace show --kind tool.confirmation_resolved --kind tool.confirmation_attempted ses_01JD\n  caisson trace show --json ses_01JD | jq -r .kind\n  caisson trace show --follow last",
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, k := range kinds {
				if !slices.ContainsFunc(record.Payloads(), func(p record.Payload) bool { return string(p.Kind()) == k }) {
					return newUsageError("there is no kind %q; docs/records.md lists them", k)
				}
				o.Kinds = append(o.Kinds, record.Kind(k))
			}
			s, err := traceSession(a.environ, cmd, args)
			if err != nil {
				return err
			}
			o.Colour = wantsColour(a, a.stdout)
			if a.terminal(a.stdout) {
				columns, _ := a.size()
				o.Wrap = func(line, indent string) []string { return ui.WrapWords(line, columns-1, indent) }
			}
			ctx := cmd.Context()
			if follow {
				var stop func()
				ctx, _, _, stop = handleInterrupts(ctx, a.takeSignals(), func(string) {}, a.exit)
				defer stop()
				o.Again = func() bool { return waitForRecords(ctx) }
			}
			over, err := trace.Show(a.stdout, s, o)
			if err != nil {
				return err
			}
			if interrupted := interruption(ctx); interrupted != nil {
				return interrupted
			}
			if over.Damage != "" {
				return cmp.Or(reportDamage(a.stderr, over), exitWith(exitFailed))
			}
			return nil
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringArrayVar(&kinds, "kind", nil, "only records of this kind, one a line; may be given again")
	cmd.Flags().BoolVar(&o.JSON, "json", false, "write the records' own lines")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what a session that runs records, until it ends")
	cmd.Flags().BoolVar(&o.Full, "full", false, "leave no text out")
	return cmd
}

// followEvery is how often the records of a session that runs are looked at.
const followEvery = 200 * time.Millisecond

// waitForRecords waits until it is time to look for more records, and reports
// false where ctx ended.
func waitForRecords(ctx context.Context) bool {
	select {
	case <-time.After(followEvery):
		return true
	case <-ctx.Done():
		return false
	}
}

const tracePruneLong = `Shorten old sessions to their audit records: questions and answers, refusals, the sandbox, the end.
Their lines stay as they were, in audit.jsonl. Messages, outputs, patches
and logs are removed. Each start does the same for a few sessions.

A session is old when its last record is older than keep_sessions in the configuration (90 days).
One that runs, keeps changes that were not applied, has a sandbox that is not gone, or whose records
were changed is left whole.
`

func newTracePruneCommand(a *app) *cobra.Command {
	var dry, asJSON bool
	var keep string
	cmd := &cobra.Command{
		Use:     "prune [flags]",
		Short:   "Shorten old sessions to their audit records",
		Long:    tracePruneLong + exitHelp(map[int]string{exitFailed: "a session could not be shortened"}, usesConfig),
		Example: "  caisson trace prune --dry-run\n  caisson trace prune --keep 720h",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conf, err := loadConfig(a, "")
			if err != nil {
				return err
			}
			time := conf.KeepSessions
			if keep != "" {
				t, err := config.ParseDuration(keep)
				if err != nil {
					return newUsageError("--keep: %v", err)
				}
				time = &t
			}
			state, err := traceState(a.environ)
			if err != nil {
				return err
			}
			report, err := sessiondir.Prune(cmd.Context(), pruneOptions(state, time, dry))
			shown := errors.Join(showPrunedSessions(a, report, dry, asJSON), showErrors(a.stderr, err))
			if shown == nil && err != nil {
				return exitWith(exitFailed)
			}
			return shown
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&keep, "keep", "", "time to keep whole sessions, such as 720h (default: keep_sessions)")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "list the sessions, and remove nothing")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write a JSON object: pruned, left")
	return cmd
}

func pruneOptions(state string, keep *config.Duration, dry bool) sessiondir.PruneOptions {
	return sessiondir.PruneOptions{StateDir: filepath.Clean(state), Keep: time.Duration(*keep), DryRun: dry}
}

// showErrors writes errors of things that went on.
func showErrors(w io.Writer, err error) error {
	if err == nil {
		return nil
	}
	return showFailures(w, strings.Split(err.Error(), "\n"))
}

func showPrunedSessions(a *app, r sessiondir.PruneReport, dry, asJSON bool) error {
	if asJSON {
		return writeJSON(a.stdout, r)
	}
	word := "pruned"
	if dry {
		word = "would prune"
	}
	var errs []error
	for _, p := range r.Pruned {
		_, err := fmt.Fprintf(a.stdout, "%s  %s  %d records and %s of files; %d audit records stay\n", word, p.Session, p.Removed, memoryText(max(p.Bytes, 0)), p.Audit)
		errs = append(errs, err)
	}
	for _, l := range r.Left {
		_, err := fmt.Fprintf(a.stdout, "left  %s  %s\n", l.Session, makeSafeLine(l.Why))
		errs = append(errs, err)
	}
	if len(r.Pruned)+len(r.Left) == 0 {
		_, err := fmt.Fprintln(a.stdout, "no session is old enough")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// startPruneSessions and startPruneTime bound the pruning at one start.
const (
	startPruneSessions = 4
	startPruneTime     = time.Second
)

// pruneSessions shortens some old sessions at a start, and returns the failures.
func (s *settings) pruneSessions(ctx context.Context) []string {
	o := pruneOptions(s.environ.stateDir(), s.conf.KeepSessions, false)
	o.Most = startPruneSessions
	ctx, cancel := context.WithTimeoutCause(ctx, startPruneTime, errors.New("the rest is for the next start"))
	defer cancel()
	if _, err := sessiondir.Prune(ctx, o); err != nil && ctx.Err() == nil {
		return []string{"old sessions could not be shortened (caisson trace prune): " + err.Error()}
	}
	return nil
}

// mostListed is how many sessions /resume lists.
const mostListed = 10

// listResumable returns the newest sessions with a model and a message on a workspace.
func listResumable(a *app, workspace string) ([]trace.Entry, error) {
	list, err := trace.List(a.environ.stateDir(), 0)
	if err != nil {
		return nil, describeError(err)
	}
	list = slices.DeleteFunc(list, func(e trace.Entry) bool {
		return e.Workspace != workspace || e.Model == "" || e.Task == "" || e.Pruned || e.State == trace.StateDamaged
	})
	return list[:min(len(list), mostListed)], nil
}
