package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ui"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// Exit statuses, which docs/exit-status.md lists.
const (
	exitDone         = runner.OutcomeDone
	exitFailed       = runner.OutcomeFailed
	exitUsage        = 2
	exitAuth         = runner.OutcomeAuth
	exitInput        = runner.OutcomeInput
	exitSandboxStart = runner.OutcomeSandboxStart
	exitSandboxLost  = runner.OutcomeSandboxLost
	exitConfig       = 52
	exitLimit        = runner.OutcomeLimit
	exitFatal        = runner.OutcomeFatal // a tool failed fatally, or the trace can't be written
	exitUntrusted    = 55
	exitNoApprover   = runner.OutcomeNoApprover
	exitConflict     = runner.OutcomeConflict  // changes were not applied: their originals have changed
	exitUnvouched    = runner.OutcomeUnvouched // something in the workspace was not renamed or not checked
	exitUnverified   = runner.OutcomeUnverified
	exitFormat       = runner.OutcomeFormat
	exitInterrupted  = runner.OutcomeInterrupted // SIGINT; 128 plus the number for other signals
)

// exitError ends the program with a status, silently.
type exitError struct{ status int }

func (e *exitError) Error() string { return fmt.Sprintf("exit status %d", e.status) }

// exitWith returns the error that ends the program with a status, or nil for 0.
func exitWith(status int) error {
	if status == exitDone {
		return nil
	}
	return &exitError{status}
}

// interruption returns the error for an interrupted ctx, or nil for any other. It ends
// the program with the signal's status.
func interruption(ctx context.Context) error {
	if i, ok := errors.AsType[*runner.Interrupted](context.Cause(ctx)); ok {
		return exitWith(128 + i.Signal)
	}
	return nil
}

// commandTraits are kinds of work that have their own exit statuses.
type commandTraits uint

const (
	usesConfig     commandTraits = 1 << iota // reads the configuration or the state directory
	usesInput                                // reads what the user names: a workspace, a task, a file
	startsSandbox                            // starts a sandbox
	runsCommands                             // runs commands in a sandbox, with records
	decidesCalls                             // runs calls of tools under the policy and the limits
	asksModel                                // has a model, and sends its records to a reader
	appliesChanges                           // brings changes into a workspace
	interruptible                            // has something to end when it is interrupted
)

// exitMeanings describe the exit statuses in help, and say which commands have them.
// All commands have the ones without traits.
var exitMeanings = map[int]struct {
	text   string
	traits commandTraits
}{
	exitDone:         {text: "done"},
	exitFailed:       {"the agent or the model failed, or something was left behind", decidesCalls},
	exitUsage:        {text: "usage"},
	exitAuth:         {"authentication", asksModel},
	exitInput:        {"the workspace, the task or a file can't be used", usesInput},
	exitSandboxStart: {"the sandbox could not start", startsSandbox},
	exitSandboxLost:  {"the sandbox was lost", runsCommands},
	exitConfig:       {"configuration", usesConfig},
	exitLimit:        {"a limit was reached", decidesCalls},
	exitFatal:        {"a record could not be written", runsCommands},
	exitConflict:     {"nothing was applied: the workspace changed meanwhile", appliesChanges},
	exitUnvouched:    {"the workspace could not be vouched for: read the notices before you use git or hg there", decidesCalls},
	exitUntrusted:    {"the workspace is not trusted (--require-trust)", decidesCalls},
	exitNoApprover:   {"something needed an approval that it didn't get", decidesCalls},
	exitInterrupted:  {"interrupted (129: hang-up, 143: terminated)", interruptible},
	exitPipe:         {"the reader of standard output went away", asksModel},
}

// statuses are exit statuses with their meaning for one command. "" removes one.
type statuses map[int]string

// exitHelp returns the exit statuses for the end of a command's help.
func exitHelp(own statuses, traits commandTraits) string {
	meanings := statuses{}
	for status, m := range exitMeanings {
		if m.traits == 0 || m.traits&traits != 0 {
			meanings[status] = m.text
		}
	}
	maps.Copy(meanings, own)
	var b strings.Builder
	b.WriteString("\nExit status:\n")
	for _, status := range slices.Sorted(maps.Keys(meanings)) {
		if meanings[status] != "" {
			fmt.Fprintf(&b, "  %-5d%s\n", status, meanings[status])
		}
	}
	return b.String()
}

// reportError prints a failure on standard error, as one paragraph.
func reportError(a *app, p record.Problem) {
	cause, hint := makeSafe(safeurl.InText(oneParagraph(p.Cause))), makeSafe(safeurl.InText(p.Hint))
	a.printLines(strings.TrimRight(fmt.Sprintf("caisson: %s. %s", strings.TrimRight(cause, ".\n "), hint), " "))
}

// oneParagraph returns the text of an error, such as joined errors, as one line.
func oneParagraph(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' }), "; ")
}

// printLines prints lines, which must be safe, on standard error. It wraps them on a
// terminal.
func (a *app) printLines(lines ...string) {
	if a.terminal(a.stderr) {
		columns, _ := a.size()
		lines = ui.Wrap(lines, columns)
	}
	for _, l := range lines {
		fmt.Fprintln(a.stderr, l)
	}
}

// handleSignals passes signals to a command that has called takeSignals. Until it does,
// the first signal ends the program.
func handleSignals(a *app) (stop func()) {
	in, out, done := a.signals, make(chan os.Signal, 4), make(chan struct{})
	var handled atomic.Bool
	a.signals, a.handled = out, &handled
	go func() {
		for {
			select {
			case sig := <-in:
				if !handled.Load() {
					a.exit(128 + signalNumber(sig))
					return
				}
				select {
				case out <- sig:
				default: // nobody needs more than four
				}
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

// takeSignals returns the signals, which the caller must handle from now on.
func (a *app) takeSignals() <-chan os.Signal {
	if a.handled != nil {
		a.handled.Store(true)
	}
	return a.signals
}

// handleInterrupts cancels the context at the first signal and closes force at the
// second: a user who asks twice doesn't wait for commands to end. The third signal ends
// the program at once. The sandbox's guest ends with it, and the next start removes the
// rest. say must return at once: nothing here may wait for a writer. stop ends the
// handling.
func (a *app) handleInterrupts(parent context.Context, say func(string)) (ctx context.Context, force <-chan struct{}, cancel context.CancelCauseFunc, stop func()) {
	ctx, cancel = context.WithCancelCause(parent)
	signals, forced, ended, done := a.takeSignals(), make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; {
			select {
			case sig := <-signals:
				switch n++; n {
				case 1:
					cancel(&runner.Interrupted{Signal: signalNumber(sig)})
					say("stopping: what runs is being ended; once more to kill it at once")
				case 2:
					close(forced)
					say("killing the sandbox; once more to end without waiting")
				default:
					a.exit(128 + signalNumber(sig))
				}
			case <-ended:
				return
			}
		}
	}()
	return ctx, forced, cancel, func() {
		close(ended)
		<-done
		cancel(nil)
	}
}

func signalNumber(sig os.Signal) int {
	if s, ok := sig.(syscall.Signal); ok {
		return int(s)
	}
	return int(syscall.SIGINT)
}
