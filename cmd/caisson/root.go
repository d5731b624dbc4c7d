package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caisson-run/caisson/cmd/caisson/internal/ci"
	"github.com/caisson-run/caisson/runner"
)

// run executes the whole program and returns the exit status.
func run(ctx context.Context, args, env []string, a app) int {
	a.environ = env
	guard := guardOutput(&a)
	stop := handleSignals(&a)
	defer stop()
	status := execute(ctx, &a, guard, args)
	if guard != nil {
		closeGuard(&a, guard) // not where the program panics: commands stay stopped then
	}
	return status
}

// execute runs the command that the arguments name, and returns the exit status.
func execute(ctx context.Context, a *app, guard *ci.Guard, args []string) int {
	root := newRoot(a)
	if guard != nil {
		root.PersistentPreRun = func(cmd *cobra.Command, _ []string) { configureGuard(guard, cmd) }
	}
	root.SetArgs(args)
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	err := root.ExecuteContext(ctx)
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.status
	}
	if err != nil {
		e := failure(err)
		report(a, e)
		return e.Status
	}
	return runner.ExitDone
}

// newRoot makes the command tree.
func newRoot(a *app) *cobra.Command {
	root := newGroup(&cobra.Command{
		Use:   "caisson",
		Short: "Run an agent's tool calls where they can do no harm",
		Long: "Caisson runs an LLM agent on a workspace. What only reads runs in this process; what writes or\n" +
			"executes runs in one container a session, without network, and nothing is left of it afterwards.",
		SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}, newRunCommand(a), newDiffCommand(a), newApplyCommand(a), newSandboxCommand(a), newImagesCommand(a), newServeCommand(a), newApprovalsCommand(a),
		newTrustCommand(a), newUntrustCommand(a), newConfigCommand(a), newTraceCommand(a), newToolsCommand(a), newDoctorCommand(a), newVersionCommand(a))
	root.Version = programVersion()
	root.SetVersionTemplate(versionLine() + "\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &usageError{suggestFlag(cmd, err)} })
	setHelp(root)
	addCompletion(root, a.environ)
	return root
}

// newGroup completes a command that only has subcommands.
func newGroup(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return noCommand(cmd, args[0])
		}
		return cmd.Help()
	}
	cmd.AddCommand(commands...)
	return cmd
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
