package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/trace"
)

const traceVerifyLong = `Verify that a session's records are as they were written: seq without gaps, each record's hash in
the next one, and the long values that are kept in files as their records say.

The chain can't tell that records are missing at the end: a session without session.ended is said
to be cut short, which a kill does too. Nor can it tell a chain that somebody has made anew from
the start: note the hash of the last record elsewhere, and compare.
`

func newTraceVerifyCommand(a *app) *cobra.Command {
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:     "verify [flags] SESSION | --all",
		Short:   "Verify that records were not changed",
		Long:    traceVerifyLong + exitHelp(map[int]string{runner.ExitFailed: "records were changed, are missing or can't be read"}, runner.ExitInput, runner.ExitConfig),
		Example: "  caisson trace verify ses_01JD\n  caisson trace verify --all --json | jq '.[] | select(.ok|not)'",
		RunE: func(cmd *cobra.Command, args []string) error {
			var list []trace.Session
			if all && len(args) > 0 {
				return usage("a session or --all, not both")
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
	status := runner.ExitDone
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
			status = runner.ExitFailed
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
