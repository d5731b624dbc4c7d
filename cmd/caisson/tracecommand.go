package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools"
)

func newTraceCommand(a *app) *cobra.Command {
	return newGroup(&cobra.Command{
		Use: "trace", Short: "Sessions and their records: list, show, verify, export, page, prune",
		Long: "Sessions and their records. SESSION is an id, the beginning of one, last, or the path of a\n" +
			"session's folder or trace.jsonl (with a slash in it, or .jsonl at its end).",
	}, newTraceListCommand(a), newTraceShowCommand(a), newTraceVerifyCommand(a),
		newTraceExportCommand(a), newTraceHTMLCommand(a), newTracePruneCommand(a))
}

// traceState is the state folder, which need not exist.
func traceState(env environ) (string, error) {
	state := env.stateDir()
	if state == "" {
		return "", &runner.Error{Status: runner.ExitConfig, Problem: record.Problem{
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
