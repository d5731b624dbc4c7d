package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/terminal"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
)

const traceShowLong = `Show what happened in a session: turns, model calls, tool calls with class, rule, answers, duration
and outcome. Long texts are shown by their ends; --full shows what the records have. For a
running session, the records so far are shown; --follow goes on until its end.

--kind shows records of some kinds instead, one a line; --json writes their own lines.
`

func newTraceShowCommand(a *app) *cobra.Command {
	var o trace.ShowOptions
	var kinds []string
	var follow bool
	cmd := &cobra.Command{
		Use:     "show [flags] SESSION",
		Short:   "Show what happened in a session",
		Long:    traceShowLong + exitHelp(map[int]string{runner.ExitFailed: "the records are damaged"}, runner.ExitInput, runner.ExitConfig),
		Example: "  caisson trace show ses_01JD\n  caisson trace show --kind tool.confirmation_resolved --kind tool.confirmation_attempted ses_01JD\n  caisson trace show --json ses_01JD | jq -r .kind\n  caisson trace show --follow last",
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, k := range kinds {
				if !slices.ContainsFunc(record.Payloads(), func(p record.Payload) bool { return string(p.Kind()) == k }) {
					return usage("there is no kind %q; docs/records.md lists them", k)
				}
				o.Kinds = append(o.Kinds, record.Kind(k))
			}
			s, err := traceSession(a.environ, cmd, args)
			if err != nil {
				return err
			}
			o.Colour = colours(a, a.stdout)
			if a.terminal(a.stdout) {
				columns, _ := a.size()
				o.Wrap = func(line, indent string) []string { return terminal.WrapWords(line, columns-1, indent) }
			}
			ctx := cmd.Context()
			if follow {
				var stop func()
				ctx, _, _, stop = interruptible(ctx, a.listen(), func(string) {}, a.exit)
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
				return cmp.Or(damaged(a.stderr, over), exitWith(runner.ExitFailed))
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
