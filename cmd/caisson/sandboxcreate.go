package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/detach"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox"
)

// holdWord is the name of the command that owns a sandbox in a process of its own.
const holdWord = "hold"

// defaultTTL is how long a sandbox stays without a command.
const defaultTTL = time.Hour

const createLong = `Create a sandbox, without an agent, that stays until it is removed, and print its id.

A process of its own owns it and runs the commands of caisson sandbox exec and cp. The sandbox and
that process end by caisson sandbox rm, after the time of --ttl without a command, or if the process
is killed. Then nothing is left but the records, and in overlay mode the changes (caisson diff,
caisson apply).

The settings of caisson run that concern the sandbox are flags here too.
`

type createFlags struct {
	workspaceFlags
	ttl time.Duration
}

func newSandboxCreateCommand(a *app) *cobra.Command {
	cmd := newCreateCommand("create", func(ctx context.Context, f *createFlags) error { return createSandbox(ctx, a, f) })
	cmd.Short = "Create a sandbox that stays, without an agent"
	cmd.Long = createLong + exitHelp(map[int]string{exitFailed: "the sandbox could not be created"}, usesConfig|usesInput|startsSandbox|runsCommands|interruptible)
	cmd.Example = `  id=$(caisson sandbox create --image oci-archive:python.tar --workspace project)
  caisson sandbox exec $id -- python3 -m pytest
  caisson sandbox cp results.json $id:/workspace/
  caisson sandbox rm $id`
	return cmd
}

// newSandboxHoldCommand returns the command of the process that owns a sandbox. It has
// the flags of create, which starts it.
func newSandboxHoldCommand(a *app) *cobra.Command {
	cmd := newCreateCommand(holdWord, func(ctx context.Context, f *createFlags) error { return holdSandbox(ctx, a, f) })
	cmd.Short, cmd.Hidden = "Own the sandbox of caisson sandbox create", true
	return cmd
}

// newCreateCommand returns a command with the flags of a sandbox without an agent.
func newCreateCommand(use string, run func(ctx context.Context, f *createFlags) error) *cobra.Command {
	f := &createFlags{}
	cmd := &cobra.Command{
		Use:  use + " [flags]",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), f) },
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().DurationVar(&f.ttl, "ttl", defaultTTL, "end the sandbox after this time without a command")
	f.addTo(cmd, "Sandbox")
	return cmd
}

// isHolder reports whether the arguments are those of a process that owns a sandbox.
func isHolder(args []string) bool {
	return len(args) > 1 && args[0] == "sandbox" && args[1] == holdWord
}

// createSandbox starts the process that owns a sandbox and waits until it runs.
func createSandbox(ctx context.Context, a *app, f *createFlags) error {
	if f.ttl <= 0 {
		return newUsageError("--ttl %s: want a time above zero", f.ttl)
	}
	program, err := a.executable()
	if err != nil {
		return fmt.Errorf("find the program: %w", err)
	}
	args := slices.Clone(a.args)
	args[slices.Index(args, "create")] = holdWord
	say := func(text string) { a.printLines("caisson: " + text) }
	ctx, force, _, stop := handleInterrupts(ctx, a.takeSignals(), say, a.exit)
	defer stop()
	id, err := detach.Start(ctx, program, args, a.stderr, force)
	if e, ok := errors.AsType[*detach.EndedError](err); ok { // it has printed why
		return cmp.Or(interruption(ctx), exitWith(max(e.Status, exitFailed)))
	}
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	_, err = fmt.Fprintln(a.stdout, id)
	return err
}

// holdSandbox owns a sandbox until it is removed, unused for long, or lost.
func holdSandbox(ctx context.Context, a *app, f *createFlags) error {
	parent, err := detach.FindParent()
	if err != nil {
		return newUsageError("caisson sandbox hold is not for people: %v", err)
	}
	s, err := openSessionBuilder(a, f.settings, f.profile, f.workspace, f.project)
	if err != nil {
		return err
	}
	defer s.close()
	s.orders = true
	u := newInterface(a, false)
	ctx, force, cancel, stop := handleInterrupts(ctx, a.takeSignals(), u.printNotice, a.exit)
	defer stop()
	defer u.close(ctx)
	watch := runner.NewCommandWatch()
	var id string
	session, done, err := s.openWithoutModel(ctx, u, force, "caisson sandbox create", func(o *runner.Options) {
		id, o.EndRequested = o.Dir.Session, func() { cancel(nil) }
		show := o.Mirror
		o.Mirror = func(r record.Record, line []byte) {
			watch.Observe(r.Kind)
			show(r, line)
		}
	})
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	defer done()
	// The first command starts the sandbox, and shows that it runs commands.
	if _, err = session.Exec(ctx, runner.UserCommand{Argv: []string{sandbox.GuestPath, "version"}}); err == nil {
		_ = u.out.Drain(ctx)
		err = parent.Ready(id)
	}
	if err == nil {
		watch.Wait(ctx, session, f.ttl)
	}
	r := session.Close()
	u.showEnd(ctx, r)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	return exitWith(r.ExitStatus)
}

const removeLong = `End sandboxes of caisson sandbox create, and wait until nothing is left of them. Running commands get
SIGTERM, and SIGKILL after the grace period. Each id is printed once its sandbox is gone.

ID is a session of caisson sandbox ls, or the beginning of one. A sandbox that belongs to caisson run
or caisson serve is refused: it ends there.
`

func newSandboxRemoveCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rm ID...",
		Short: "End sandboxes of caisson sandbox create",
		Long: removeLong + exitHelp(map[int]string{
			exitFailed: "a part of a sandbox could not be removed", exitInput: "there is no such sandbox, or it belongs to a run or a server",
			exitSandboxLost: "the end of a sandbox is not known",
		}, usesConfig|interruptible),
		Example: "  caisson sandbox rm ses_01J…",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return newUsageError("caisson sandbox rm needs a session")
			}
			return removeSandboxes(cmd.Context(), a, args)
		},
	}
}

// removeSandboxes ends sandboxes, and goes on after an error.
func removeSandboxes(ctx context.Context, a *app, ids []string) error {
	bs, err := openDefaultBackends(a)
	if err != nil {
		return err
	}
	defer bs.close()
	ctx, _, _, stop := handleInterrupts(ctx, a.takeSignals(), func(string) {}, a.exit)
	defer stop()
	var first error
	for _, id := range ids {
		session, err := bs.findSession(ctx, id)
		if err == nil {
			err = runner.EndSession(ctx, bs.environ.stateDir(), session)
		}
		if err == nil {
			fmt.Fprintln(a.stdout, session)
			err = reportLeft(a, session)
		}
		if err = cmp.Or(interruption(ctx), err); err != nil && first == nil {
			first = err
		} else if err != nil {
			reportError(a, describeError(err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return first
}

// reportLeft returns an error if a part of an ended sandbox could not be removed.
func reportLeft(a *app, session string) error {
	found, err := trace.Find(a.environ.stateDir(), session)
	if err != nil {
		return err
	}
	o, err := trace.Read(found, func(record.Record) {})
	switch {
	case err != nil:
		return err
	case o.Ended == nil:
		return &commandError{Status: exitSandboxLost, Problem: record.Problem{
			Cause: "the process of sandbox " + session + " died before its end", Hint: "caisson sandbox gc removes what is left.",
		}}
	case len(o.Ended.Left) > 0:
		return &commandError{Status: exitFailed, Problem: record.Problem{
			Cause: fmt.Sprintf("a part of sandbox %s could not be removed: %s", session, strings.Join(o.Ended.Left, ", ")), Hint: "caisson sandbox gc tries again.",
		}}
	}
	return nil
}
