package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox"
)

const execLong = `Run a command in a live sandbox of another Caisson process of this user.

ID is a session of caisson sandbox ls, the beginning of one, "last" for the newest of them, or a
container's name. The process that owns the session runs the command, as the same user and with the
same limits as the agent's own commands, and records it in the session. Standard input is passed on
with -i; output comes as it is written. There is no terminal inside.

Ctrl-C cancels the command: SIGTERM to everything that it started, SIGKILL after the grace period.
A second one ends this program without waiting for that. A command ends with its session.

The exit status is the command's own, or 128 plus the signal's number if a signal ended it. Caisson's
own errors are on standard error, after "caisson:", with these statuses:
`

type execFlags struct {
	dir     string
	timeout time.Duration
	stdin   bool
}

func newSandboxExecCommand(a *app) *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] ID [--] COMMAND [ARGUMENT...]",
		Short: "Run a command in a live sandbox",
		Long: execLong + exitHelp(map[int]string{
			exitDone:   "", // the command's own
			exitFailed: "the command could not be requested, or its output not be written", exitInput: "there is no such live session or directory",
		}, usesConfig|startsSandbox|runsCommands|interruptible),
		Example: `  caisson sandbox exec ses_01J… -- ps aux
  caisson sandbox exec last -- ls -l /tmp
  caisson sandbox exec ses_01J… sh -c 'ls -l /workspace | head'
  echo data | caisson sandbox exec -i ses_01J… -- sh -c 'cat >copy'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return execInSandbox(cmd.Context(), a, f, args)
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows ID is the command's
	cmd.Flags().StringVarP(&f.dir, "dir", "C", "", "working directory in the container, at or below /workspace")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "time that the command may take (default: as the session's own commands)")
	cmd.Flags().BoolVarP(&f.stdin, "stdin", "i", false, "pass standard input on")
	return cmd
}

func execInSandbox(ctx context.Context, a *app, f execFlags, args []string) error {
	if len(args) > 1 && args[1] == "--" {
		args = slices.Delete(slices.Clone(args), 1, 2)
	}
	if len(args) < 2 {
		return newUsageError("caisson sandbox exec needs a session and a command")
	}
	if f.timeout < 0 {
		return newUsageError("--timeout %s is negative", f.timeout)
	}
	bs, err := openDefaultBackends(a)
	if err != nil {
		return err
	}
	defer bs.close()
	session, err := bs.findSession(ctx, args[0])
	if err != nil {
		return err
	}
	said := []string{"cancelling the command; once more to end without waiting", "leaving; the command is being ended"}
	say := func(string) {
		if len(said) > 0 {
			fmt.Fprintln(a.stderr, "caisson: "+said[0])
			said = said[1:]
		}
	}
	ctx, abandon, _, stop := handleInterrupts(ctx, a.takeSignals(), say, a.exit)
	defer stop()
	command := runner.UserCommand{
		Argv: args[1:], Dir: f.dir, Timeout: f.timeout, Stdout: a.stdout, Stderr: a.stderr, Abandon: abandon,
	}
	if f.stdin {
		command.Stdin = a.stdin
	}
	r, err := runner.RunUserCommand(ctx, bs.environ.stateDir(), session, command)
	if interrupted := interruption(ctx); interrupted != nil && (err != nil || r.Status.Cancelled) {
		return interrupted
	}
	if err != nil {
		return err
	}
	return exitWith(execStatus(a.stderr, r))
}

// execStatus is the command's end as an exit status; what the status can't say
// is said.
func execStatus(stderr io.Writer, r runner.UserResult) int {
	switch {
	case r.Status.TimedOut:
		fmt.Fprintln(stderr, "caisson: the command's time was over. --timeout gives it more.")
	case r.Status.OOMKilled:
		fmt.Fprintln(stderr, "caisson: the sandbox was out of memory while the command ran.")
	case r.Status.Cancelled:
		fmt.Fprintln(stderr, "caisson: the command was cancelled, because its session ends.")
	}
	if r.Left > 0 {
		fmt.Fprintf(stderr, "caisson: %d processes of the command could not be killed; the session replaces its sandbox.\n", r.Left)
	}
	if r.Status.Signal != 0 {
		return 128 + r.Status.Signal
	}
	return r.Status.Code
}

// findSession finds the one session that a user means. A whole id needs no backend
// to be asked.
func (bs *backends) findSession(ctx context.Context, id string) (string, error) {
	id = strings.TrimPrefix(id, "caisson-")
	if !strings.ContainsAny(id, "/.*?[\\") && runner.Listens(bs.environ.stateDir(), id) {
		return id, nil
	}
	found, failures := bs.listSandboxes(ctx)
	var matches []sandbox.Listing
	for _, l := range found {
		if l.Owner.State == "alive" && !l.Foreign && id != "" && (id == trace.Last || strings.HasPrefix(l.Session, id)) {
			matches = append(matches, l)
		}
	}
	if id == trace.Last && len(matches) > 1 { // ids sort by time
		matches = []sandbox.Listing{slices.MaxFunc(matches, func(a, b sandbox.Listing) int { return strings.Compare(a.Session, b.Session) })}
	}
	e := &commandError{Status: exitInput, Problem: record.Problem{Hint: "caisson sandbox ls lists them."}}
	switch len(matches) {
	case 1:
		return matches[0].Session, nil
	case 0:
		e.Cause = fmt.Sprintf("no live session begins with %q", id)
		if id == trace.Last {
			e.Cause = "no session is live"
		}
		if len(failures) > 0 {
			e.Cause += " (" + strings.Join(failures, "; ") + ")"
		}
	default:
		e.Cause = fmt.Sprintf("%d live sessions begin with %q", len(matches), id)
		e.Hint = "Name more of it: " + matches[0].Session + ", " + matches[1].Session + ", …"
	}
	return "", e
}
