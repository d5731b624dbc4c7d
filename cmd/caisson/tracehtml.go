package main

import (
	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/trace"
)

const traceHTMLLong = `Write a session as one HTML page: a timeline of turns, model calls, tool calls, waits for answers and
the sandbox; what was asked, refused and changed; the whole story with inputs, results and diffs.

The page is one file that loads nothing and runs no script, and says so to the browser. What tools
and models wrote is shown as text, whatever it holds.
`

func newTraceHTMLCommand(a *app) *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:     "html [flags] SESSION",
		Short:   "Write a session as one HTML page",
		Long:    traceHTMLLong + exitHelp(map[int]string{runner.ExitFailed: "it can't be written"}, runner.ExitInput, runner.ExitConfig),
		Example: "  caisson trace html -o session.html ses_01JD",
		RunE: func(cmd *cobra.Command, args []string) error {
			return exportTrace(a, cmd, args, path, trace.HTML)
		},
	}
	cmd.Flags().StringVarP(&path, "output", "o", "", "file to write (default: standard output)")
	return cmd
}
