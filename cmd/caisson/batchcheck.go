package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/batchui"
	"github.com/caisson-run/caisson/runner/batch"
)

func newBatchCheckCommand(a *app) *cobra.Command {
	f := batchFlags{agents: []string{batch.Oracle, batch.Nop}, attempts: 1, retries: 2, check: true}
	cmd := &cobra.Command{
		Use: "check [flags] PATH...", Short: "Check that tasks can be solved, and aren't solved already",
		Example: `  caisson batch check ./tasks/hello
  caisson batch check --backend runc --out checked ./tasks`,
		Long: `Run each task twice: oracle runs the task's own solution and must pass, and nop does nothing and must
fail. Other tasks are listed with the reason and the file to look at. No model is asked.

A PATH is as for caisson batch. Tasks that are lines of JSON have no solution, so oracle can't pass.
Without --out, the results are in a temporary directory, which is removed if all tasks are sound.
` + exitHelp(map[int]string{
			exitDone: "oracle passed and nop failed on every task", exitUnverified: "a task is unsound", exitInput: "a task can't be read or is unsupported, or --out has results of another batch",
			exitFailed: "no task is unsound, but the infrastructure failed trials or trials are suspect",
		}, usesConfig|usesInput|startsSandbox|interruptible),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 0 {
				return newUsageError("name the tasks: directories or .jsonl files")
			}
			if f.out == "" {
				if f.out, err = os.MkdirTemp("", "caisson-check-"); err != nil {
					return err
				}
				defer func() {
					if !errors.As(err, new(*exitError)) {
						err = errors.Join(err, os.RemoveAll(f.out))
					}
				}()
			}
			return runBatch(cmd.Context(), a, f, args)
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.out, "out", "o", "", "directory of the results (default: a temporary one)")
	f.addParallel(flags)
	f.addTaskEnv(flags)
	addSettings(cmd, &f.settings, "Sandbox")
	return cmd
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
