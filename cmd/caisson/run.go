package main

import (
	"cmp"
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/sandbox"
)

type runFlags struct {
	File     string `flag:"file,f" doc:"read the task from FILE"`
	Output   string `flag:"output,o" doc:"also write the answer to FILE"`
	Apply    bool   `flag:"apply" doc:"use overlay mode, and apply the changes at the end of a run that answered"`
	Patch    string `flag:"patch-out" doc:"use overlay mode, and write the unified diff of the changes to FILE"`
	Attempts int    `flag:"best-of" doc:"use overlay or copy mode, make N attempts, and keep the changes of the best"`
	Judge    string `flag:"judge" doc:"shell COMMAND that judges an attempt of --best-of, in a fresh sandbox"`
	JSON     bool   `flag:"json" doc:"write the records to standard output, one a line"`
	NoStream bool   `flag:"no-stream" doc:"don't stream the model's answer"`
	checkFlags
	sessionFlags
}

// sessionFlags are the flags of caisson run and caisson chat.
type sessionFlags struct {
	Resume    string   `flag:"resume" doc:"resume a SESSION: its id, or last for the newest one on the workspace"`
	Submounts []string `flag:"submount" doc:"accept a mount inside the workspace (repeatable)"`
	workspaceFlags
	named bool
}

// complete uses what the values of flags don't tell.
func (f *sessionFlags) complete(cmd *cobra.Command) {
	f.named = cmd.Flags().Changed("workspace")
	if f.Submounts != nil {
		f.Settings.Submounts = f.Submounts
	}
}

const runLong = `Run one agent task on a workspace, to its end.

The task is the argument, the content of -f FILE, or standard input if the only argument is "-". With a
task, standard input from a pipe or a file is its context: data of at most 1 MiB. Caisson leaves out a
pipe that is silent for three seconds; with "-" beside the task, it waits for it.

Standard error shows the agent's actions. Standard output has only the answer, or with --json the records,
one per line.

--best-of makes N attempts, one after the other, each on its own layer over the same workspace. After an
answer, --judge runs in a fresh sandbox on the result, without caches: exit status 0 means passed, and a
number on the last line of its standard output is a score. Caisson keeps the changes of the best attempt
for caisson diff and caisson apply, and removes the others. Verdicts and costs are in a table on standard
error, or with --json in one object on standard output.

--resume continues a session whose process was killed, interrupted or has ended, under the same id. Without
TASK, it continues the last turn if that has no answer; with TASK, it starts another turn. Interrupted
calls are not run again. The session keeps its workspace, mode, image, backend and model; the policy and
the limits are the current ones.

After an answer, --output-schema validates it, and --verify runs a command in a fresh sandbox on the
result. If a check fails, the result is not applied, and the exit status says which check. Standard
output then has valid JSON, or nothing. In CI, the run is reported there: see docs/ci.md.

Every setting below is also an environment variable (CAISSON_ and its name in capitals with underscores)
and a key of $XDG_CONFIG_HOME/caisson/config.yaml.
`

func newRunCommand(a *app) *cobra.Command {
	var f runFlags
	return newCommand(&cobra.Command{
		Use: "run [flags] [TASK] [-]", Short: "Run one agent task on a workspace, to its end", Long: runLong,
		Example: `  caisson run "make the tests pass"
  git diff | caisson run "review this"
  caisson run --backend gvisor --policy ci --json - < task.txt
  caisson run --workspace ./project --model replay/script.yaml
  caisson run --resume last
  caisson run --best-of 4 --judge "make test" "fix the build"`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.complete(cmd)
			f.strictSet = cmd.Flags().Changed("replay-strict")
			return runTask(cmd.Context(), a, f, args)
		},
	}, &f, usesConfig|usesInput|startsSandbox|runsCommands|decidesCalls|asksModel|appliesChanges|interruptible,
		statuses{exitUnverified: "the result was not verified (--verify)", exitFormat: "the answer is not valid (--output-schema)"})
}

func runTask(ctx context.Context, a *app, f runFlags, args []string) (err error) {
	if f.NoStream {
		f.Settings.Stream = new(false)
	}
	if err := errors.Join(f.impliesOverlay(), f.checkBestOf(), f.validateFlags(a, f.Attempts)); err != nil {
		return err
	}
	report, err := f.openReport(a)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, report.closeFiles(ctx, err)) }()
	format, err := f.readFormat()
	if err != nil {
		return err
	}
	text, err := readTask(a, args, f.File)
	if err != nil {
		return err
	}
	if f.Resume != "" && f.Attempts > 0 {
		return newUsageError("--best-of starts sessions of its own, and can't resume one")
	}
	session, err := f.findResumed(a)
	if err != nil {
		return err
	}
	s, err := openSessionBuilder(a, f.workspaceFlags)
	if err != nil {
		return err
	}
	defer s.close()
	s.resume = session
	s.apply, s.verifies = f.Apply, f.Verify != ""
	if f.Attempts > 0 {
		ctx, force, _, stop := a.handleInterrupts(ctx, a.warn)
		defer stop()
		return runBestOf(ctx, a, s, f, text, force)
	}
	u := newInterface(a, f.JSON)
	ctx, force, cancel, stop := a.handleInterrupts(ctx, u.printNotice)
	defer stop()
	defer u.close(ctx)
	u.broken = func() { cancel(&runner.Interrupted{Signal: sigpipe}) }

	o, err := s.sessionOptions(ctx, text, u)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	o.Apply = f.Apply
	report.setChecks(&o, u, format)
	u.attach(&o, force)
	answer, patch, err := f.openOutputs()
	if err != nil {
		return err
	}
	r, err := runner.Run(ctx, o)
	if err != nil {
		return errors.Join(err, answer.Close(), patch.Close())
	}
	if err := errors.Join(writeResult(patch, "patch", r.Patch), patch.Close()); err != nil {
		u.reportProblem(record.Problem{Cause: "the patch can't be written: " + err.Error(), Hint: "It is in " + r.Dir + "/workspace.patch."})
		r.ExitStatus = max(r.ExitStatus, exitFailed)
	}
	if err := report.reportRun(r, f.Patch); err != nil {
		u.reportProblem(record.Problem{Cause: "the report can't be written: " + err.Error(), Hint: "It is in " + r.Dir + "/report.json."})
		r.ExitStatus = max(r.ExitStatus, exitFailed)
	}
	return exitWith(u.finishRun(ctx, r, answer))
}

// findResumed returns the id of the session to resume, or "". It sets the settings that
// the session keeps.
func (f *sessionFlags) findResumed(a *app) (string, error) {
	if f.Resume == "" {
		return "", nil
	}
	s, err := findResumable(a.environ.stateDir(), f.Resume, f.Workspace)
	if err != nil {
		return "", err
	}
	s.fill(&f.Settings)
	if f.Resume != trace.Last && !f.named {
		f.Workspace = s.Created.Workspace
	}
	if info, err := os.Stat(s.Created.Workspace); err != nil || !info.IsDir() {
		return "", newFailure(exitInput, nil, "the workspace of session "+s.ID+" is gone: "+s.Created.Workspace, "Put the directory back, or start a new session.")
	}
	return s.ID, nil
}

// impliesOverlay sets the mode that --apply and --patch-out need.
func (f *runFlags) impliesOverlay() error {
	if !f.Apply && f.Patch == "" {
		return nil
	}
	return f.keepChanges("--apply and --patch-out need")
}

// keepChanges sets overlay mode if none is set. It refuses a mode that keeps no changes.
func (f *runFlags) keepChanges(need string) error {
	if f.Settings.Mode == nil {
		f.Settings.Mode = new(string(sandbox.ModeOverlay))
	}
	if !sandbox.WorkspaceMode(*f.Settings.Mode).KeepsChanges() {
		return newUsageError("%s overlay or copy mode, not --mode %s", need, *f.Settings.Mode)
	}
	return nil
}

// openOutputs opens the files of -o and --patch-out. Each is nil without its flag.
func (f *runFlags) openOutputs() (answer, patch *outputFile, err error) {
	if answer, err = openOutput(f.Output, "-o", "answer"); err != nil {
		return nil, nil, err
	}
	if patch, err = openOutput(f.Patch, "--patch-out", "patch"); err != nil {
		return nil, nil, errors.Join(err, answer.Close())
	}
	return answer, patch, nil
}
