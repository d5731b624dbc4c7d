package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools"
)

func newTraceCommand(d deps, env environ, status *int) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trace",
		Short: "Sessions and their records: list, show, verify, export, one HTML page, prune",
		Long: "Sessions and their records. SESSION is an id, the beginning of one, last, or the path of a\n" +
			"session's folder or trace.jsonl (with a slash in it, or .jsonl at its end).",
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage("caisson trace has no %q; there are %s", args[0], commandNames(cmd))
			}
			return cmd.Help()
		},
	}
	cmd.AddCommand(newTraceListCommand(d, env), newTraceShowCommand(d, env, status), newTraceVerifyCommand(d, env, status),
		newTraceExportCommand(d, env), newTraceHTMLCommand(d, env), newTracePruneCommand(d, env, status))
	return cmd
}

// traceState is the state folder, which need not exist.
func traceState(env environ) (string, error) {
	state := env.stateDir()
	if state == "" {
		return "", &runner.Error{Status: runner.ExitConfig, Problem: runner.Problem{
			Cause: "there is no place for Caisson's state: neither HOME nor XDG_STATE_HOME is an absolute path",
			Mend:  "Set HOME, or XDG_STATE_HOME.",
		}}
	}
	return state, nil
}

// traceSession finds the one session that a command names.
func traceSession(env environ, cmd *cobra.Command, args []string) (trace.Session, error) {
	if len(args) != 1 {
		return trace.Session{}, usage("%s takes one session, got %d arguments; caisson trace ls lists them", cmd.CommandPath(), len(args))
	}
	state, err := traceState(env)
	if err != nil {
		return trace.Session{}, err
	}
	return trace.Find(state, args[0])
}

const traceListLong = `List sessions, the newest first: when they began, how they stand, what they cost and what was asked.

STATE is live, the reason and exit status of the end, "cut short" where a session was killed, or
"damaged" where its first or last record can't be read. Only those two are read: caisson trace
verify reads all.
`

func newTraceListCommand(d deps, env environ) *cobra.Command {
	var asJSON bool
	var limit int
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Short:   "List sessions, the newest first",
		Long:    traceListLong + exitHelp(runner.ExitDone, runner.ExitUsage, runner.ExitInput, runner.ExitConfig),
		Example: "  caisson trace ls\n  caisson trace ls --json --limit 0 | jq -r '.[] | select(.state==\"cut short\").session'",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			if limit < 0 {
				return usage("--limit is a number of sessions, 0 for all; got %d", limit)
			}
			state, err := traceState(env)
			if err != nil {
				return err
			}
			list, err := trace.List(state, limit)
			if err != nil {
				return err
			}
			return showSessions(d, list, asJSON, limit)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().IntVar(&limit, "limit", 20, "most sessions to list, 0 for all")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write a JSON array")
	return cmd
}

func showSessions(d deps, list []trace.Entry, asJSON bool, limit int) error {
	if asJSON {
		return writeJSON(d.stdout, list)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(d.stderr, "caisson: there are no sessions yet")
		return err
	}
	t := tabwriter.NewWriter(d.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SESSION\tBEGUN\tSTATE\tTIME\tCOST\tTASK")
	for _, e := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", e.Session, begunText(e.Begun), stateText(e), wallText(e), costText(e), taskText(e))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if limit > 0 && len(list) == limit {
		_, err := fmt.Fprintf(d.stderr, "the newest %d; --limit 0 lists all\n", limit)
		return err
	}
	return nil
}

func begunText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
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
and outcome. Long texts are shown by their ends; --full shows what the records have. The answer of
a session that runs is what it has recorded by now.

--kind shows records of some kinds instead, one a line; --json writes their own lines.
`

func newTraceShowCommand(d deps, env environ, status *int) *cobra.Command {
	var o trace.ShowOptions
	var kinds []string
	cmd := &cobra.Command{
		Use:     "show [flags] SESSION",
		Short:   "Show what happened in a session",
		Long:    traceShowLong + ownExitHelp(map[int]string{runner.ExitFailed: "the records are damaged"}, runner.ExitDone, runner.ExitFailed, runner.ExitUsage, runner.ExitInput, runner.ExitConfig),
		Example: "  caisson trace show ses_01JD\n  caisson trace show --kind tool.confirmation_resolved --kind tool.confirmation_attempted ses_01JD\n  caisson trace show --json ses_01JD | jq -r .kind",
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, k := range kinds {
				if !slices.ContainsFunc(runner.Payloads(), func(p runner.Payload) bool { return string(p.Kind()) == k }) {
					return usage("there is no kind %q; docs/records.md lists them", k)
				}
				o.Kinds = append(o.Kinds, runner.Kind(k))
			}
			s, err := traceSession(env, cmd, args)
			if err != nil {
				return err
			}
			o.Colour = colours(d, env, d.stdout)
			over, err := trace.Show(d.stdout, s, o)
			if err == nil && over.Damage != "" {
				*status = runner.ExitFailed
				err = damaged(d.stderr, over)
			}
			return err
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringArrayVar(&kinds, "kind", nil, "only records of this kind, one a line; may be given again")
	cmd.Flags().BoolVar(&o.JSON, "json", false, "write the records' own lines")
	cmd.Flags().BoolVar(&o.Full, "full", false, "leave no text out")
	return cmd
}

// damaged says that a session was shown as far as its records can be believed.
func damaged(w io.Writer, o trace.Overview) error {
	_, err := fmt.Fprintf(w, "caisson: the records of %s were changed: %s. What was shown is what stands before that.\n", o.Session, tidy(o.Damage))
	return err
}

// tidy makes a text of a file safe to show.
func tidy(s string) string {
	safe, _ := tools.Display(s)
	return strings.TrimRight(safe, ".")
}

const traceVerifyLong = `Verify that a session's records are as they were written: seq without gaps, each record's hash in
the next one, and the long values that are kept in files as their records say.

The chain can't tell that records are missing at the end: a session without session.ended is said
to be cut short, which a kill does too. Nor can it tell a chain that somebody has made anew from
the start: note the hash of the last record elsewhere, and compare.
`

func newTraceVerifyCommand(d deps, env environ, status *int) *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:     "verify [flags] SESSION | --all",
		Short:   "Verify that records were not changed",
		Long:    traceVerifyLong + ownExitHelp(map[int]string{runner.ExitFailed: "records were changed, are missing or can't be read"}, runner.ExitDone, runner.ExitFailed, runner.ExitUsage, runner.ExitInput, runner.ExitConfig),
		Example: "  caisson trace verify ses_01JD\n  caisson trace verify --all --json | jq '.[] | select(.ok|not)'",
		RunE: func(cmd *cobra.Command, args []string) error {
			var list []trace.Session
			if all && len(args) > 0 {
				return usage("a session or --all, not both")
			}
			if all {
				state, err := traceState(env)
				if err != nil {
					return err
				}
				if list, err = trace.All(state); err != nil {
					return err
				}
			} else {
				s, err := traceSession(env, cmd, args)
				if err != nil {
					return err
				}
				list = []trace.Session{s}
			}
			return verifySessions(d, list, asJSON, status)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&all, "all", false, "every session of this user")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write a JSON array")
	return cmd
}

// verifySessions verifies sessions and goes on after a damaged one.
func verifySessions(d deps, list []trace.Session, asJSON bool, status *int) error {
	verdicts := []trace.Verdict{}
	for _, s := range list {
		v, err := trace.Verify(s)
		if err != nil && len(list) == 1 {
			return err
		}
		if err != nil {
			v.Damage = failure(err).Cause
		}
		if !v.OK {
			*status = runner.ExitFailed
		}
		if asJSON {
			verdicts = append(verdicts, v)
			continue
		}
		if _, err := fmt.Fprintln(d.stdout, verdictText(v)); err != nil {
			return err
		}
	}
	if asJSON {
		return writeJSON(d.stdout, verdicts)
	}
	return nil
}

func verdictText(v trace.Verdict) string {
	text := fmt.Sprintf("%s  ok: %d records", tidy(v.Session), v.Records)
	if !v.OK {
		text = fmt.Sprintf("%s  CHANGED: %s (%d good records before)", tidy(v.Session), tidy(v.Damage), v.Records)
	}
	if v.Omitted > 0 {
		text += fmt.Sprintf(", %d removed after their time", v.Omitted)
	}
	switch {
	case !v.OK:
	case v.Live:
		text += "; it runs"
	case !v.Ended:
		text += "; cut short: no session.ended, as after a kill"
	}
	if v.Torn {
		text += "; the last line is not whole"
	}
	if v.OK && v.Records > 0 {
		text += "; last " + v.Hash
	}
	return text
}

const traceExportLong = `Write a session for other programs.

  jsonl   its records as they are, one a line
  json    one JSON array of them
  atif    a trajectory of the Agent Trajectory Interchange Format (ATIF v1.7), which
          caisson run --model replay/FILE plays again

Keys that the environment and the configuration name, and what has the shape of a well-known key,
are replaced once more.
`

func newTraceExportCommand(d deps, env environ) *cobra.Command {
	var format, path string
	cmd := &cobra.Command{
		Use:     "export [flags] SESSION",
		Short:   "Write a session as JSON lines, JSON or an ATIF trajectory",
		Long:    traceExportLong + ownExitHelp(map[int]string{runner.ExitFailed: "it can't be written"}, runner.ExitDone, runner.ExitFailed, runner.ExitUsage, runner.ExitInput, runner.ExitConfig),
		Example: "  caisson trace export --format atif -o trajectory.json ses_01JD",
		RunE: func(cmd *cobra.Command, args []string) error {
			write, ok := map[string]func(io.Writer, trace.Session) (trace.Overview, error){
				"jsonl": trace.Lines, "json": trace.JSON, "atif": trace.ATIF,
			}[format]
			if !ok {
				return usage("there is no format %q; there are jsonl, json and atif", format)
			}
			return exportTrace(d, env, cmd, args, path, write)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&format, "format", "jsonl", "jsonl, json or atif")
	cmd.Flags().StringVarP(&path, "output", "o", "", "file to write (default: standard output)")
	return cmd
}

const traceHTMLLong = `Write a session as one HTML page: a timeline of turns, model calls, tool calls, waits for answers and
the sandbox; what was asked, refused and changed; the whole story with inputs, results and diffs.

The page is one file that loads nothing and runs no script, and says so to the browser. What tools
and models wrote is shown as text, whatever it holds.
`

func newTraceHTMLCommand(d deps, env environ) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:     "html [flags] SESSION",
		Short:   "Write a session as one HTML page",
		Long:    traceHTMLLong + ownExitHelp(map[int]string{runner.ExitFailed: "it can't be written"}, runner.ExitDone, runner.ExitFailed, runner.ExitUsage, runner.ExitInput, runner.ExitConfig),
		Example: "  caisson trace html -o session.html ses_01JD",
		RunE: func(cmd *cobra.Command, args []string) error {
			return exportTrace(d, env, cmd, args, path, trace.HTML)
		},
	}
	cmd.Flags().StringVarP(&path, "output", "o", "", "file to write (default: standard output)")
	return cmd
}

// exportTrace writes a session to a file or standard output, without secrets.
func exportTrace(d deps, env environ, cmd *cobra.Command, args []string, path string, write func(io.Writer, trace.Session) (trace.Overview, error)) error {
	s, err := traceSession(env, cmd, args)
	if err != nil {
		return err
	}
	out := d.stdout
	if path != "" {
		f, err := createAnswer(path)
		if err != nil {
			return &runner.Error{Status: runner.ExitInput, Err: err, Problem: runner.Problem{
				Cause: fmt.Sprintf("the export can't be written to %s: %v", path, err), Mend: "Name a file that you can write with -o.",
			}}
		}
		defer func() { _ = f.Close() }() // closed below where it matters
		out = f
	}
	safe := runner.NewRedactingWriter(out, knownSecrets(d, env))
	over, err := write(safe, s)
	err = errors.Join(err, safe.Close())
	if f, ok := out.(*os.File); ok && path != "" {
		if err != nil { // half of it would be taken for the whole
			err = errors.Join(err, f.Truncate(0))
		}
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return err
	}
	if over.Damage != "" {
		err = damaged(d.stderr, over)
	}
	if safe.Changed() {
		_, told := fmt.Fprintln(d.stderr, "caisson: keys that are in these records were left out of the export; their hash chain doesn't hold in it")
		err = errors.Join(err, told)
	}
	return err
}

// knownSecrets are the keys that the environment and the configuration name. A
// configuration that can't be read has none.
func knownSecrets(d deps, env environ) []runner.Secret {
	all := secrets(env, config.SelectedModel{})
	conf, err := loadConfig(d, env, config.File{}, "", nil)
	if err != nil {
		return all
	}
	for _, m := range conf.Models {
		if m.APIKeyEnv != nil {
			all = append(all, secrets(env, config.SelectedModel{KeyEnv: *m.APIKeyEnv})...)
		}
	}
	return all
}

const tracePruneLong = `Shorten old sessions to their audit records: who was asked and answered, what was refused, which
sandbox ran, how it ended. Their lines stay as they were, in audit.jsonl. Messages, outputs, patches
and logs are removed. Each start does the same for a few sessions.

A session is old when its last record is older than keep_sessions in the configuration (90 days).
One that runs, keeps changes that were not applied, has a sandbox that is not gone, or whose records
were changed is left whole.
`

func newTracePruneCommand(d deps, env environ, status *int) *cobra.Command {
	var dry, asJSON bool
	var keep string
	cmd := &cobra.Command{
		Use:     "prune [flags]",
		Short:   "Shorten old sessions to their audit records",
		Long:    tracePruneLong + ownExitHelp(map[int]string{runner.ExitFailed: "a session could not be shortened"}, runner.ExitDone, runner.ExitFailed, runner.ExitUsage, runner.ExitConfig),
		Example: "  caisson trace prune --dry-run\n  caisson trace prune --keep 720h",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conf, err := loadConfig(d, env, config.File{}, "", nil)
			if err != nil {
				return err
			}
			time := conf.KeepSessions
			if keep != "" {
				t, err := config.ParseDuration(keep)
				if err != nil {
					return usage("--keep: %v", err)
				}
				time = &t
			}
			state, err := traceState(env)
			if err != nil {
				return err
			}
			report, err := runner.Prune(cmd.Context(), pruneOptions(state, time, dry))
			if err != nil {
				*status = runner.ExitFailed
			}
			return errors.Join(showPrunedSessions(d, report, dry, asJSON), told(d.stderr, err))
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&keep, "keep", "", "time to keep whole sessions, such as 720h (default: keep_sessions)")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would be removed, and remove nothing")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write a JSON object: pruned, left")
	return cmd
}

func pruneOptions(state string, keep *config.Duration, dry bool) runner.PruneOptions {
	return runner.PruneOptions{StateDir: filepath.Clean(state), Keep: time.Duration(*keep), DryRun: dry}
}

// told writes errors of things that went on.
func told(w io.Writer, err error) error {
	if err == nil {
		return nil
	}
	return showFailures(w, strings.Split(err.Error(), "\n"))
}

func showPrunedSessions(d deps, r runner.PruneReport, dry, asJSON bool) error {
	if asJSON {
		return writeJSON(d.stdout, r)
	}
	word := "pruned"
	if dry {
		word = "would prune"
	}
	var errs []error
	for _, p := range r.Pruned {
		_, err := fmt.Fprintf(d.stdout, "%s  %s  %d records and %s of files; %d audit records stay\n", word, p.Session, p.Removed, memoryText(max(p.Bytes, 0)), p.Audit)
		errs = append(errs, err)
	}
	for _, l := range r.Left {
		_, err := fmt.Fprintf(d.stdout, "left  %s  %s\n", l.Session, tidy(l.Why))
		errs = append(errs, err)
	}
	if len(r.Pruned)+len(r.Left) == 0 {
		_, err := fmt.Fprintln(d.stdout, "no session is old enough")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// startPruneSessions and startPruneTime bound what one start prunes: nobody
// waits for that.
const (
	startPruneSessions = 4
	startPruneTime     = time.Second
)

// pruneSessions shortens some old sessions at a start, and says what failed.
func (s *setup) pruneSessions(ctx context.Context) []string {
	o := pruneOptions(s.environ.stateDir(), s.conf.KeepSessions, false)
	o.Most = startPruneSessions
	ctx, cancel := context.WithTimeoutCause(ctx, startPruneTime, errors.New("the rest is for the next start"))
	defer cancel()
	if _, err := runner.Prune(ctx, o); err != nil && ctx.Err() == nil {
		return []string{"old sessions could not be shortened (caisson trace prune): " + err.Error()}
	}
	return nil
}
