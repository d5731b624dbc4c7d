package main

import (
	"cmp"
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/cmd/caisson/internal/resumed"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox"
)

// runFlags are the flags that only caisson run has.
type runFlags struct {
	settings  config.File
	profile   string
	workspace string
	file      string
	output    string
	patch     string
	apply     bool
	submounts []string
	json      bool
	noStream  bool
	attempts  int
	judge     string
	resume    string
	named     bool // the command line has --workspace
	project   projectOptions
	check     checkFlags
}

const runLong = `Run one agent task on a workspace, to its end.

The task is the argument, the content of -f FILE, or standard input where the only argument is "-".
Standard input beside a task, from a pipe or a file, is its context: data of at most 1 MiB. A pipe
that is silent for three seconds is left out; "-" beside the task waits for it.

Standard error shows the agent's actions. Standard output has the answer alone, or with --json the
records, one per line.

--best-of makes N attempts, one after the other, each on a layer of its own over the same
workspace. After an answer --judge runs in a fresh sandbox on the result, without caches: exit
status 0 passes, and a number on the last line of its standard output is a score. The changes of the
best are kept, as caisson diff and caisson apply find them; those of the others are removed. A table
on standard error, or with --json one object on standard output, has verdicts and costs.

--resume goes on with a session whose process was killed, interrupted or has ended, under the same
id: without TASK with its last turn if that has no answer, otherwise with TASK as another turn. Calls
that were under way are not run again. The session keeps workspace, mode, image, backend and model;
policy and limits are those of now.

After an answer --output-schema validates it, and --verify runs a command in a fresh sandbox on the
result: a failed check is not applied and has an exit status of its own. Standard output then has
JSON that is valid, or nothing. In CI the run is reported there: see docs/ci.md.

Every setting below is also an environment variable, CAISSON_ and its name in capitals with
underscores, and a key of $XDG_CONFIG_HOME/caisson/config.yaml.
`

func newRunCommand(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [TASK] [-]",
		Short: "Run one agent task on a workspace, to its end",
		Long:  runLong + exitHelp(map[int]string{exitUnverified: "the result was not verified (--verify)", exitFormat: "the answer is not valid (--output-schema)"}, usesConfig|usesInput|startsSandbox|runsCommands|decidesCalls|asksModel|appliesChanges|interruptible),
		Example: `  caisson run "make the tests pass"
  git diff | caisson run "review this"
  caisson run --backend gvisor --policy ci --json - < task.txt
  caisson run --workspace ./project --model replay/script.yaml
  caisson run --resume last
  caisson run --best-of 4 --judge "make test" "fix the build"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.named = cmd.Flags().Changed("workspace")
			return runTask(cmd.Context(), a, f, args)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.workspace, "workspace", ".", "directory that the agent works on")
	flags.StringVarP(&f.file, "file", "f", "", "read the task from FILE")
	flags.StringVar(&f.resume, "resume", "", "go on with a SESSION: its id, or last for the newest one on the workspace")
	flags.StringVarP(&f.output, "output", "o", "", "also write the answer to FILE")
	flags.BoolVar(&f.apply, "apply", false, "overlay mode, and bring the changes in at the end of a run that answered")
	flags.StringVar(&f.patch, "patch-out", "", "overlay mode, and write the unified diff of the changes to FILE")
	flags.IntVar(&f.attempts, "best-of", 0, "overlay or copy mode, N attempts, and keep the changes of the best")
	flags.StringVar(&f.judge, "judge", "", "shell COMMAND that judges an attempt of --best-of, in a fresh sandbox")
	flags.BoolVar(&f.json, "json", false, "write the records to standard output, one a line")
	flags.StringVar(&f.profile, "profile", "", "settings of profiles.NAME in the configuration")
	flags.BoolVar(&f.project.require, "require-trust", false, "end with status 55 where the workspace is not trusted (caisson trust)")
	flags.BoolVar(&f.project.ignore, "ignore-project-config", false, "leave out the workspace's own settings, though it is trusted")
	flags.StringArrayVar(&f.submounts, "submount", nil, "accept a mount inside the workspace (repeatable)")
	flags.BoolVar(&f.noStream, "no-stream", false, "don't stream the model's answer")
	f.check.addTo(cmd)
	addSettings(cmd, &f.settings)
	return cmd
}

// runTask runs one task to its end.
func runTask(ctx context.Context, a *app, f runFlags, args []string) (err error) {
	if f.noStream {
		f.settings.Stream = new(false)
	}
	if f.submounts != nil {
		f.settings.Submounts = f.submounts
	}
	if err := errors.Join(f.impliesOverlay(), f.checkBestOf(), f.check.validateFlags(a, f.attempts)); err != nil {
		return err
	}
	report, err := f.check.openReport(a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, report.closeFiles(ctx, err)) }()
	format, err := f.check.readFormat()
	if err != nil {
		return err
	}
	text, err := readTask(a, args, f.file)
	if err != nil {
		return err
	}
	session, err := f.findResumed(a)
	if err != nil {
		return err
	}
	s, err := openSessionBuilder(a, f.settings, f.profile, f.workspace, f.project)
	if err != nil {
		return err
	}
	defer s.close()
	s.resume = session
	s.apply, s.verifies = f.apply, f.check.verify != ""
	if f.attempts > 0 {
		ctx, force, _, stop := handleInterrupts(ctx, a.takeSignals(), func(text string) { a.printLines("caisson: " + text) }, a.exit)
		defer stop()
		return runBestOf(ctx, a, s, f, text, force)
	}
	u := newInterface(a, f.json)
	ctx, force, cancel, stop := handleInterrupts(ctx, a.takeSignals(), u.printNotice, a.exit)
	defer stop()
	defer u.close(ctx)
	u.broken = func() { cancel(&runner.Interrupted{Signal: sigpipe}) }

	o, done, err := s.sessionOptions(ctx, text, u)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	defer done()
	o.Apply = f.apply
	report.setChecks(&o, u, format)
	o.Broker, o.Mirror, o.Live = u.newBroker(), u.showRecord, u.showDelta
	o.Force, o.Warner = force, func(warn func(string)) { u.warn.Store(&warn) }
	answer, err := openOutput(f.output, "-o", "answer")
	if err != nil {
		return err
	}
	patch, err := openOutput(f.patch, "--patch-out", "patch")
	if err != nil {
		return errors.Join(err, answer.Close())
	}
	r, err := runner.Run(ctx, o)
	if err != nil {
		return errors.Join(err, answer.Close(), patch.Close())
	}
	if err := errors.Join(writeResult(patch, "patch", r.Patch), patch.Close()); err != nil {
		u.reportProblem(record.Problem{Cause: "the patch can't be written: " + err.Error(), Hint: "It is in " + r.Dir + "/workspace.patch."})
		r.ExitStatus = max(r.ExitStatus, exitFailed)
	}
	if err := report.reportRun(r, f.patch); err != nil {
		u.reportProblem(record.Problem{Cause: "the report can't be written: " + err.Error(), Hint: "It is in " + r.Dir + "/report.json."})
		r.ExitStatus = max(r.ExitStatus, exitFailed)
	}
	return exitWith(u.finishRun(ctx, r, answer))
}

// findResumed returns the id of the session to go on with, "" for none, and sets the
// settings that it keeps.
func (f *runFlags) findResumed(a *app) (string, error) {
	if f.resume == "" {
		return "", nil
	}
	if f.attempts > 0 {
		return "", newUsageError("--best-of starts sessions of its own, and can't go on with one")
	}
	s, err := resumed.Find(a.environ.stateDir(), f.resume, f.workspace)
	if err != nil {
		return "", err
	}
	s.Fill(&f.settings)
	if f.resume != trace.Last && !f.named {
		f.workspace = s.Created.Workspace
	}
	if !s.Exists() {
		return "", &commandError{Status: exitInput, Problem: record.Problem{
			Cause: "the workspace of session " + s.ID + " is gone: " + s.Created.Workspace, Hint: "Put the directory back, or start a new session.",
		}}
	}
	return s.ID, nil
}

// impliesOverlay sets the mode that --apply and --patch-out need.
func (f *runFlags) impliesOverlay() error {
	if !f.apply && f.patch == "" {
		return nil
	}
	if f.settings.Mode == nil {
		f.settings.Mode = new(string(sandbox.ModeOverlay))
	}
	if !sandbox.WorkspaceMode(*f.settings.Mode).KeepsChanges() {
		return newUsageError("--apply and --patch-out need overlay or copy mode, not --mode %s", *f.settings.Mode)
	}
	return nil
}
