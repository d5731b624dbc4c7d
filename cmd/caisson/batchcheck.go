package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/batchui"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/tools/workspace"
)

func newBatchCheckCommand(a *app) *cobra.Command {
	var f struct {
		Out string `flag:"out,o" doc:"directory of the results (default: a temporary one)"`
		trialFlags
		Settings config.File `groups:"Sandbox"`
	}
	return newCommand(&cobra.Command{
		Use: "check [flags] PATH...", Short: "Check that tasks can be solved, and aren't solved already", Args: needTasks,
		Long: `Run each task twice: oracle runs the task's own solution and must pass, and nop does nothing and must fail.
The command lists the other tasks with the reason and the file to look at. It asks no model.

A PATH is as for caisson batch. Tasks that are lines of JSON have no solution, so oracle can't pass.
Without --out, the results are in a temporary directory, which is removed if all tasks are sound.
`,
		Example: `  caisson batch check ./tasks/hello
  caisson batch check --backend runc --out checked ./tasks`,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if f.Out == "" {
				if f.Out, err = os.MkdirTemp("", "caisson-check-"); err != nil {
					return err
				}
				defer func() {
					if !errors.As(err, new(*exitError)) {
						err = errors.Join(err, workspace.RemoveTree(f.Out))
					}
				}()
			}
			return runBatch(cmd.Context(), a, batchFlags{
				Agents: []string{batch.Oracle, batch.Nop}, Attempts: 1, Retries: 2, Out: f.Out, trialFlags: f.trialFlags, Settings: f.Settings, check: true,
			}, args)
		},
	}, &f, usesConfig|usesInput|startsSandbox|interruptible, statuses{
		exitDone: "oracle passed and nop failed on every task", exitUnverified: "a task is unsound", exitInput: "a task can't be read or is unsupported, or --out has results of another batch",
		exitFailed: "no task is unsound, but the infrastructure failed trials or trials are suspect",
	})
}

// finishCheck writes which tasks are unsound after the trials of a check have ended with an error
// or nil.
func finishCheck(ctx context.Context, a *app, ledger *batch.Ledger, trials []batch.Trial, err error) error {
	if _, err := writeReports(ctx, ledger, err); err != nil {
		return err
	}
	results, err := batch.ReadResults(ledger.Dir())
	if err != nil {
		return err
	}
	unsound, undecided, err := batchui.WriteCheck(a.stdout, ledger.Dir(), trials, results)
	switch {
	case err != nil:
		return err
	case unsound > 0:
		return exitWith(exitUnverified)
	case undecided > 0:
		return exitWith(exitFailed)
	}
	return nil
}
