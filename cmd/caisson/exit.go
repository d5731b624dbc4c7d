package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner"
)

// exitError ends the program with a status. What there is to tell was told.
type exitError struct{ status int }

func (e *exitError) Error() string { return fmt.Sprintf("exit status %d", e.status) }

// exitWith returns the error that ends the program with a status, nil for 0.
func exitWith(status int) error {
	if status == runner.ExitDone {
		return nil
	}
	return &exitError{status}
}

// interruption returns the error that ends an interrupted command as its signal
// would, nil where ctx was not interrupted.
func interruption(ctx context.Context) error {
	if i, ok := errors.AsType[*runner.Interrupted](context.Cause(ctx)); ok {
		return exitWith(128 + i.Signal)
	}
	return nil
}

// exitMeanings are the exit statuses as help describes them.
var exitMeanings = map[int]string{
	runner.ExitDone: "done", runner.ExitFailed: "the agent or the model failed, or something was left behind", runner.ExitUsage: "usage",
	runner.ExitAuth: "authentication", runner.ExitInput: "the workspace, the task or a file can't be used",
	runner.ExitSandboxStart: "the sandbox could not start", runner.ExitSandboxLost: "the sandbox was lost",
	runner.ExitConfig: "configuration", runner.ExitLimit: "a limit was reached",
	runner.ExitFatal:       "a record could not be written",
	runner.ExitConflict:    "nothing was applied: the workspace changed meanwhile",
	runner.ExitUnvouched:   "the workspace could not be vouched for: read the notices before you use git or hg there",
	runner.ExitUntrusted:   "the workspace is not trusted (--require-trust)",
	runner.ExitNoApprover:  "something needed an approval that it didn't get",
	runner.ExitInterrupted: "interrupted (129: hang-up, 143: terminated)",
	exitPipe:               "the reader of standard output went away",
}

// exitHelp returns the end of a command's help: success, usage, the statuses with
// a meaning of the command's own, and others. An empty meaning leaves one out.
func exitHelp(own map[int]string, others ...int) string {
	all := append(slices.Collect(maps.Keys(own)), others...)
	all = append(all, runner.ExitDone, runner.ExitUsage)
	slices.Sort(all)
	var b strings.Builder
	b.WriteString("\nExit status:\n")
	for _, status := range slices.Compact(all) {
		meaning, ok := own[status]
		if !ok {
			meaning = exitMeanings[status]
		}
		if meaning != "" {
			fmt.Fprintf(&b, "  %-5d%s\n", status, meaning)
		}
	}
	return b.String()
}
