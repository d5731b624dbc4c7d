package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/trace"
)

const traceExportLong = `Write a session for other programs.

  jsonl   its records as they are, one per line
  json    one JSON array of them
  atif    a trajectory of the Agent Trajectory Interchange Format (ATIF v1.7), which
          caisson run --model replay/FILE plays again

Keys that the environment and the configuration name, and text with the shape of a well-known key,
are replaced once more.
`

func newTraceExportCommand(a *app) *cobra.Command {
	var format, path string
	cmd := &cobra.Command{
		Use:     "export [flags] SESSION",
		Short:   "Write a session as JSON lines, JSON or an ATIF trajectory",
		Long:    traceExportLong + exitHelp(map[int]string{exitFailed: "it can't be written"}, usesConfig|usesInput),
		Example: "  caisson trace export --format atif -o trajectory.json ses_01JD",
		RunE: func(cmd *cobra.Command, args []string) error {
			write, ok := map[string]func(io.Writer, trace.Session) (trace.Overview, error){
				"jsonl": trace.Lines, "json": trace.JSON, "atif": trace.ATIF,
			}[format]
			if !ok {
				return newUsageError("there is no format %q; there are jsonl, json and atif", format)
			}
			return exportTrace(a, cmd, args, path, write)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&format, "format", "jsonl", "jsonl, json or atif")
	cmd.Flags().StringVarP(&path, "output", "o", "", "file to write (default: standard output)")
	return cmd
}

// exportTrace writes a session to a file or standard output, without secrets.
func exportTrace(a *app, cmd *cobra.Command, args []string, path string, write func(io.Writer, trace.Session) (trace.Overview, error)) error {
	s, err := traceSession(a.environ, cmd, args)
	if err != nil {
		return err
	}
	f, err := openOutput(path, "-o", "export")
	if err != nil {
		return err
	}
	var out io.Writer = f
	if path == "" {
		out = a.stdout
	}
	safe := redact.New(knownSecrets(a)).NewWriter(out)
	over, err := write(safe, s)
	if err = errors.Join(err, safe.Close()); err != nil { // half of it would be taken for the whole
		err = errors.Join(err, f.Empty())
	}
	err = errors.Join(err, f.Close())
	if err != nil {
		return err
	}
	if over.Damage != "" {
		err = reportDamage(a.stderr, over)
	}
	if safe.Changed() {
		_, told := fmt.Fprintln(a.stderr, "caisson: keys that are in these records were left out of the export; their hash chain doesn't hold in it")
		err = errors.Join(err, told)
	}
	return err
}

// knownSecrets are the keys that the environment and the configuration name. A
// configuration that can't be read has none.
func knownSecrets(a *app) []redact.Secret {
	all := environSecrets(a.environ)
	conf, err := loadConfig(a, "")
	if err != nil {
		return append(all, urlSecrets(a.environ, &config.Config{})...)
	}
	all = append(environSecrets(a.environ, conf.EnvFrom...), urlSecrets(a.environ, &conf)...)
	for _, m := range conf.Models {
		if m.APIKeyEnv != nil {
			all = append(all, environSecrets(a.environ, *m.APIKeyEnv)...)
		}
	}
	return all
}

const traceHTMLLong = `Write a session as one HTML page: a timeline of turns, model calls, tool calls, waits for answers and
the sandbox; questions, refusals and changes; all messages with inputs, results and diffs.

The page is one file that loads nothing and runs no script, and its policy forbids both. The output of
tools and models is shown as text, whatever it holds.
`

func newTraceHTMLCommand(a *app) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:     "html [flags] SESSION",
		Short:   "Write a session as one HTML page",
		Long:    traceHTMLLong + exitHelp(map[int]string{exitFailed: "it can't be written"}, usesConfig|usesInput),
		Example: "  caisson trace html -o session.html ses_01JD",
		RunE: func(cmd *cobra.Command, args []string) error {
			return exportTrace(a, cmd, args, path, trace.HTML)
		},
	}
	cmd.Flags().StringVarP(&path, "output", "o", "", "file to write (default: standard output)")
	return cmd
}

const traceVerifyLong = `Verify that a session's records are as they were written: seq without gaps, and each record's hash in
the next one. The long values in files must have the hashes that their records name, and so must the
requests of commands in egress.jsonl, whose hash is in session.ended.

The chain can't show that records are missing at the end: a session without session.ended is reported
as cut short, which a kill causes too. Nor can it show that a whole chain was forged: keep the hash of
the last record elsewhere, and compare.
`

func newTraceVerifyCommand(a *app) *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:     "verify [flags] SESSION | --all",
		Short:   "Verify that records were not changed",
		Long:    traceVerifyLong + exitHelp(map[int]string{exitFailed: "records were changed, are missing or can't be read"}, usesConfig|usesInput),
		Example: "  caisson trace verify ses_01JD\n  caisson trace verify --all --json | jq '.[] | select(.ok|not)'",
		RunE: func(cmd *cobra.Command, args []string) error {
			var list []trace.Session
			if all && len(args) > 0 {
				return newUsageError("a session or --all, not both")
			}
			if all {
				state, err := traceState(a.environ)
				if err != nil {
					return err
				}
				if list, err = trace.All(state); err != nil {
					return err
				}
			} else {
				s, err := traceSession(a.environ, cmd, args)
				if err != nil {
					return err
				}
				list = []trace.Session{s}
			}
			return verifySessions(a, list, asJSON)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&all, "all", false, "every session of this user")
	cmd.Flags().BoolVar(&asJSON, "json", false, "write a JSON array")
	return cmd
}

// verifySessions verifies sessions and goes on after a damaged one.
func verifySessions(a *app, list []trace.Session, asJSON bool) error {
	status := exitDone
	verdicts := []trace.Verdict{}
	for _, s := range list {
		v, err := trace.Verify(s)
		if err != nil && len(list) == 1 {
			return err
		}
		if err != nil {
			v.Damage = describeError(err).Cause
		}
		if !v.OK {
			status = exitFailed
		}
		if asJSON {
			verdicts = append(verdicts, v)
			continue
		}
		if _, err := fmt.Fprintln(a.stdout, verdictText(v)); err != nil {
			return err
		}
	}
	if asJSON {
		err := writeJSON(a.stdout, verdicts)
		return cmp.Or(err, exitWith(status))
	}
	return exitWith(status)
}

func verdictText(v trace.Verdict) string {
	text := fmt.Sprintf("%s  ok: %d records", makeSafeLine(v.Session), v.Records)
	if !v.OK {
		text = fmt.Sprintf("%s  CHANGED: %s (%d good records before)", makeSafeLine(v.Session), makeSafeLine(v.Damage), v.Records)
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
