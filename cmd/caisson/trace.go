package main

import (
	"cmp"
	"context"
	"fmt"
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
)

func newTraceCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "trace", Short: "Sessions and their records: list, show, verify, attest, export, page, prune",
		Long: "Show sessions and their records. SESSION is an id, the beginning of one, last, or the path of a\n" +
			"session's directory or trace.jsonl (with a slash in it, or .jsonl at its end).",
	}, newTraceListCommand(a), newTraceShowCommand(a), newTraceVerifyCommand(a), newTraceAttestCommand(a),
		newTraceExportCommand(a), newTraceHTMLCommand(a), newTracePruneCommand(a))
}

var oneSession = wantArgs(1, 1, "one session (caisson trace ls lists them)")

func traceSession(env environ, name string) (trace.Session, error) {
	state, err := findState(env)
	if err != nil {
		return trace.Session{}, err
	}
	return trace.Find(state, name)
}

func reportDamage(a *app, o trace.Overview) {
	a.warn(fmt.Sprintf("the records of %s were changed: %s. Only the records before that were shown.", o.Session, trimPoint(o.Damage)))
}

func trimPoint(s string) string { return strings.TrimRight(s, ".") }

func newTraceListCommand(a *app) *cobra.Command {
	var f struct {
		Limit int  `flag:"limit" default:"20" doc:"most sessions to list, 0 for all"`
		JSON  bool `flag:"json" doc:"write a JSON array"`
	}
	return newCommand(&cobra.Command{
		Use: "ls [flags]", Short: "List sessions, the newest first", Args: noArgs,
		Long: `List sessions, the newest first: time, state, cost and task.

STATE is "live"; how the session ended, as reason and exit status, or for caisson exec how its command
ended; "cut short" for a session that was killed; or "damaged" if its first or last record can't be
read. The command reads only the first records, up to the task, and the last two: caisson trace verify
reads all.
`,
		Example: "  caisson trace ls\n  caisson trace ls --json --limit 0 | jq -r '.[] | select(.state==\"cut short\").session'",
		RunE: func(*cobra.Command, []string) error {
			if f.Limit < 0 {
				return newUsageError("--limit is a number of sessions, 0 for all; got %d", f.Limit)
			}
			state, err := findState(a.environ)
			if err != nil {
				return err
			}
			list, err := trace.List(state, f.Limit, nil)
			if err != nil {
				return err
			}
			if len(list) == 0 && !f.JSON {
				a.warn("there are no sessions yet")
				return nil
			}
			err = showTable(a, f.JSON, list, table[trace.Entry]{
				titles: []string{"SESSION", "BEGUN", "STATE", "TIME", "COST", "TASK"},
				cells: func(e trace.Entry) []string {
					return []string{e.Session, begunText(e.Begun, "2006-01-02 15:04"), stateText(e), wallText(e), costText(e), firstLine(cmp.Or(e.Damage, e.Task), 60)}
				},
			})
			if f.Limit > 0 && len(list) == f.Limit && !f.JSON {
				a.printLines(fmt.Sprintf("the newest %d; --limit 0 lists all", f.Limit))
			}
			return err
		},
	}, &f, usesConfig|usesInput, nil)
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
		text = cmp.Or(e.Command, fmt.Sprintf("%s (%d)", e.Reason, *e.ExitStatus))
	}
	if e.Pruned {
		text += ", pruned"
	}
	return text
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
	return "$" + strings.TrimSuffix(strings.TrimRight(e.CostUSD, "0"), ".")
}

func newTraceShowCommand(a *app) *cobra.Command {
	var f struct {
		Kinds  []string `flag:"kind" doc:"only records of this kind, one a line (repeatable)"`
		JSON   bool     `flag:"json" doc:"write the records' own lines"`
		Follow bool     `flag:"follow,f" doc:"of a running session, also show new records, until it ends"`
		Full   bool     `flag:"full" doc:"show long texts in full"`
	}
	return newCommand(&cobra.Command{
		Use: "show [flags] SESSION", Short: "Show what happened in a session", Args: oneSession,
		Long: `Show what happened in a session: turns, model calls, tool calls with class, rule, answers, duration
and outcome. Long texts are shortened in the middle; --full shows all. For a running session, the
records so far are shown; --follow continues until its end.

--kind shows records of some kinds instead, one per line; --json writes their own lines.
`,
		Example: "  caisson trace show ses_01JD\n  caisson trace show --kind tool.confirmation_resolved --kind tool.confirmation_attempted ses_01JD\n  caisson trace show --json ses_01JD | jq -r .kind\n  caisson trace show --follow last",
		RunE: func(cmd *cobra.Command, args []string) error {
			o := trace.ShowOptions{FullHint: "--full shows them", JSON: f.JSON, Full: f.Full, Colour: wantsColour(a, a.stdout)}
			for _, k := range f.Kinds {
				if !slices.ContainsFunc(record.Payloads(), func(p record.Payload) bool { return string(p.Kind()) == k }) {
					return newUsageError("there is no kind %q; docs/records.md lists them", k)
				}
				o.Kinds = append(o.Kinds, record.Kind(k))
			}
			s, err := traceSession(a.environ, args[0])
			if err != nil {
				return err
			}
			if a.terminal(a.stdout) {
				columns, _ := a.size()
				o.Wrap = func(line, indent string) []string { return ui.WrapWords(line, columns-1, indent) }
			}
			ctx := cmd.Context()
			if f.Follow {
				var stop func()
				ctx, _, _, stop = a.handleInterrupts(ctx, func(string) {})
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
				reportDamage(a, over)
				return exitWith(exitFailed)
			}
			return nil
		},
	}, &f, usesConfig|usesInput, statuses{exitFailed: "the records are damaged"})
}

// followEvery is the time between two looks at the records of a running session.
const followEvery = 200 * time.Millisecond

// waitForRecords waits until it is time to look for more records. It returns false if
// ctx ended.
func waitForRecords(ctx context.Context) bool {
	select {
	case <-time.After(followEvery):
		return true
	case <-ctx.Done():
		return false
	}
}

func newTracePruneCommand(a *app) *cobra.Command {
	var f struct {
		Keep   string `flag:"keep" doc:"time to keep whole sessions, such as 720h (default: keep_sessions)"`
		DryRun bool   `flag:"dry-run" doc:"list the sessions, and remove nothing"`
		JSON   bool   `flag:"json" doc:"write a JSON object: pruned, left"`
	}
	return newCommand(&cobra.Command{
		Use: "prune [flags]", Short: "Shorten old sessions to their audit records", Args: noArgs,
		Long: `Shorten old sessions to their audit records: questions and answers, refusals, the sandbox, the end.
These records stay as they were, in audit.jsonl. Messages, outputs, patches and logs are removed. At
most once an hour, a start does the same for some sessions.

A session is old when its last record is older than keep_sessions in the configuration (90 days). A
session stays whole if it runs, keeps changes that were not applied, has a sandbox that is not gone, or
if its records were changed.
`,
		Example: "  caisson trace prune --dry-run\n  caisson trace prune --keep 720h",
		RunE: func(cmd *cobra.Command, _ []string) error {
			conf, err := loadConfig(a, "")
			if err != nil {
				return err
			}
			time := conf.KeepSessions
			if f.Keep != "" {
				t, err := config.ParseDuration(f.Keep)
				if err != nil {
					return newUsageError("--keep: %v", err)
				}
				time = &t
			}
			state, err := findState(a.environ)
			if err != nil {
				return err
			}
			report, err := sessiondir.Prune(cmd.Context(), pruneOptions(state, time, f.DryRun))
			var failures []string
			if err != nil {
				failures = strings.Split(err.Error(), "\n")
			}
			return a.endWithFailures(a.show(f.JSON, report, func(p *page) { describePruned(p, report, f.DryRun) }), failures)
		},
	}, &f, usesConfig, statuses{exitFailed: "a session could not be shortened"})
}

func pruneOptions(state string, keep *config.Duration, dry bool) sessiondir.PruneOptions {
	return sessiondir.PruneOptions{StateDir: filepath.Clean(state), Keep: time.Duration(*keep), DryRun: dry}
}

func describePruned(p *page, r sessiondir.PruneReport, dry bool) {
	word := "pruned"
	if dry {
		word = "would prune"
	}
	for _, one := range r.Pruned {
		p.line("%s  %s  %d records and %s of files; %d audit records stay", word, one.Session, one.Removed, memoryText(max(one.Bytes, 0)), one.Audit)
	}
	for _, l := range r.Left {
		p.line("left  %s  %s", l.Session, trimPoint(l.Why))
	}
	if len(r.Pruned)+len(r.Left) == 0 {
		p.line("no session is old enough")
	}
}

// pruneSessions shortens some old sessions at a start, and returns the failures.
func (s *settings) pruneSessions(ctx context.Context) []string {
	if err := sessiondir.PruneNext(ctx, pruneOptions(s.environ.stateDir(), s.conf.KeepSessions, false)); err != nil {
		return []string{"old sessions could not be shortened (caisson trace prune): " + err.Error()}
	}
	return nil
}

// mostListed is the number of sessions that /resume lists.
const mostListed = 10

func listResumable(a *app, workspace string) ([]trace.Entry, error) {
	list, err := trace.List(a.environ.stateDir(), mostListed, func(e trace.Entry) bool {
		return e.Workspace == workspace && e.Model != "" && e.Task != "" && !e.Pruned && e.State != trace.StateDamaged
	})
	if err != nil {
		return nil, describeError(err)
	}
	return list, nil
}
