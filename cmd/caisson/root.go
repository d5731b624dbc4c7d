package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ci"
	"github.com/caisson-run/caisson/runner"
)

// run is the whole program: it does what the arguments say and returns the
// exit status.
func run(ctx context.Context, args, env []string, d deps) int {
	d, guard := guardOutput(d, env)
	d, stop := handleSignals(d)
	defer stop()
	status := execute(ctx, d, guard, args, env)
	if guard != nil {
		closeGuard(d, guard) // not where the program panics: commands stay stopped then
	}
	return status
}

// execute runs the command that the arguments name, and returns the exit status.
func execute(ctx context.Context, d deps, guard *ci.Guard, args, env []string) int {
	status := runner.ExitDone
	root := newRoot(d, env, &status)
	if guard != nil {
		root.PersistentPreRun = func(cmd *cobra.Command, _ []string) { configureGuard(guard, cmd) }
	}
	root.SetArgs(args)
	root.SetIn(d.stdin)
	root.SetOut(d.stdout)
	root.SetErr(d.stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		e := failure(err)
		report(d, e)
		return e.Status
	}
	return status
}

// newRoot makes the command tree. A command that ends without an error, but
// not well, sets status.
func newRoot(d deps, env []string, status *int) *cobra.Command {
	root := &cobra.Command{
		Use:   "caisson",
		Short: "Run an agent's tool calls where they can do no harm",
		Long: "Caisson runs an LLM agent on a workspace. What only reads runs in this process; what writes or\n" +
			"executes runs in one container a session, without network, and nothing is left of it afterwards.",
		SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return noCommand(cmd, args[0])
			}
			return cmd.Help()
		},
	}
	root.Version = programVersion()
	root.SetVersionTemplate(versionLine() + "\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &usageError{suggestFlag(cmd, err)} })
	root.AddCommand(newRunCommand(d, env, status), newDiffCommand(d, env), newApplyCommand(d, env, status), newSandboxCommand(d, env, status), newImagesCommand(d, env, status), newServeCommand(d, env, status), newApprovalsCommand(d, env), newTrustCommand(d, env), newUntrustCommand(d, env), newConfigCommand(d, env), newTraceCommand(d, env, status), newToolsCommand(d, env, status), newDoctorCommand(d, env, status), newVersionCommand(d))
	setHelp(root)
	addCompletion(root, environ(env))
	return root
}

// noCommand returns the error for an unknown subcommand, which lists those of cmd.
func noCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if like := nearestWord(name, names); like != "" {
		return usage("there is no command %q (did you mean %s %s?); there are %s", cmd.CommandPath()+" "+name, cmd.CommandPath(), like, strings.Join(names, ", "))
	}
	return usage("there is no command %q; there are %s", cmd.CommandPath()+" "+name, strings.Join(names, ", "))
}

// suggestFlag adds to the error about an unknown flag the one that it is like.
func suggestFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if like := nearestWord(unknown.GetSpecifiedName(), names); like != "" {
		return fmt.Errorf("%w (did you mean --%s?)", err, like)
	}
	return err
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// exitHelp is the end of a command's help: its exit statuses.
func exitHelp(statuses ...int) string { return ownExitHelp(nil, statuses...) }

// ownExitHelp is exitHelp where a status means something of the command's own.
func ownExitHelp(own map[int]string, statuses ...int) string {
	meaning := map[int]string{
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
	maps.Copy(meaning, own)
	var b strings.Builder
	b.WriteString("\nExit status:\n")
	for _, s := range statuses {
		b.WriteString("  " + pad(s) + meaning[s] + "\n")
	}
	return b.String()
}
