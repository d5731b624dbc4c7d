package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/trace"
)

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
