package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/caisson-run/caisson/cmd/caisson/internal/batchui"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/tools/workspace"
)

// trialFlags are the flags of all commands that run or verify trials.
type trialFlags struct {
	Parallel int      `flag:"parallel" doc:"run at most this many at a time (default: the number of processors); memory, processors and disk must suffice too"`
	TaskEnv  []string `flag:"task-env" doc:"variable of this machine that tasks get if they refer to it as ${NAME} (repeatable)"`
}

type batchFlags struct {
	Out      string   `flag:"out,o" default:"caisson-batch" doc:"directory of the results"`
	Agents   []string `flag:"agent" doc:"oracle (the task's own solution), nop (nothing), or an agent of caisson agents ls, such as claude or claude@MODEL, instead of a model (repeatable)"`
	Attempts int      `flag:"attempts" default:"1" doc:"attempts of each agent at each task"`
	Retries  int      `flag:"retries" default:"2" doc:"how often a trial is tried again after a failure of the infrastructure"`
	Shard    string   `flag:"shard" doc:"run only part I of N, as I/N (default: from SLURM_ARRAY_TASK_ID or JOB_COMPLETION_INDEX with their counts)"`
	Skip     bool     `flag:"skip-unsupported" doc:"leave out tasks that can't be run here"`
	trialFlags
	fleetFlags
	WorkerTimeout time.Duration `flag:"worker-timeout" default:"60s" doc:"time after which the trials of a worker that sends no heartbeat are given to others"`
	profileFlag
	Settings config.File     `groups:"Model,Policy,Sandbox,Limits"`
	maxCost  *config.Dollars // of all trials together
	models   repeatedFlag
	check    bool // caisson batch check
}

func newBatchCommand(a *app) *cobra.Command {
	var f batchFlags
	cmd := newCommand(newGroup(&cobra.Command{
		Use: "batch [flags] PATH...", Short: "Run many trials of tasks, and keep their results",
		Long: `Run many trials of tasks, and keep their results.

A PATH is a Harbor task directory (schema 1.0 to 1.4) or a file of JSON lines, or a directory of these. A
trial is one attempt of one agent at one task, in a fresh sandbox. The verifier runs in another fresh
sandbox, on the agent's files but with tests and a reward file that the agent never reached.

The directory of --out is the state: results.jsonl and a directory for each trial. Run the same command
again to run the trials that have no result; it keeps the other results.

Failures of the machine, of sandboxes and of providers are tried again (--retries) and never counted as
the agent's. If a task asks for something that is not available here, the batch ends with status 42 before
the first trial; with --skip-unsupported, every report lists the task, and no rate includes it.

The settings below apply to each trial, with two exceptions: --max-cost-usd limits all trials together,
and --model can be given several times. The task decides about network, working directory, root and user.
Docker has no root inside, so auto uses gvisor for Harbor tasks.
`,
		Example: `  caisson batch --agent oracle --agent nop ./tasks
  caisson batch --model openai/gpt-5 --attempts 4 --out results ./tasks
  caisson batch --shard 1/3 --out shard1 ./tasks
  caisson batch --nats nats://queue:4222 --results s3://bucket/run1 /tasks
  caisson batch check ./tasks
  caisson batch show results`,
	}, newBatchCheckCommand(a), newBatchListCommand(a), newBatchShowCommand(a), newBatchMergeCommand(a), newBatchGradeCommand(a), newBatchCompareCommand(a), newBatchReportCommand(a), newBatchViewCommand(a), newBatchWorkerCommand(a)),
		&f, usesConfig|usesInput|startsSandbox|asksModel|interruptible, statuses{
			exitDone: "every trial passed", exitFailed: "the infrastructure failed trials, or trials are suspect, or a result could not be kept", exitInput: "a task can't be read or is unsupported, or the results in --out are of another batch",
			exitAuth: "a provider refused the key", exitLimit: "--max-cost-usd or a ceiling kept trials from running", exitUnverified: "trials did not pass", exitFatal: "", exitConflict: "", exitUnvouched: "", exitUntrusted: "", exitNoApprover: "",
		})
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return runBatch(cmd.Context(), a, f, args) }
	cmd.Args = needTasks
	model, maxCost := cmd.Flags().Lookup("model"), cmd.Flags().Lookup("max-cost-usd")
	f.models.settingFlag = *model.Value.(*settingFlag)
	model.Value, model.Usage = &f.models, model.Usage+" (repeatable)"
	maxCost.Usage = "US dollars that all trials may cost together; none starts when they are used up"
	return cmd
}

// repeatedFlag is a flag of one value that may be repeated.
type repeatedFlag struct {
	settingFlag
	values []string
}

func (f *repeatedFlag) Set(v string) error {
	if !slices.Contains(f.values, v) {
		f.values = append(f.values, v)
	}
	return f.settingFlag.Set(v)
}

// agents returns the agents of the command line, each once.
func (f *batchFlags) agents() []string {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(f.Agents, f.models.values))))
}

// needTasks and oneBatch check the arguments of batch commands.
var (
	needTasks = wantArgs(1, -1, "tasks: directories or .jsonl files")
	oneBatch  = wantArgs(1, 1, "one directory of results")
)

// readFlags reads the flags that are not settings.
func (f *batchFlags) readFlags(env environ) (s batch.Shard, maxCost int64, err error) {
	for flag, values := range map[string][]string{"agent": f.Agents, "model": f.models.values} {
		for _, value := range values {
			if !utf8.ValidString(value) { // it can't be stored in JSON: results would name another agent
				return s, 0, newUsageError("--%s %q: not UTF-8", flag, value)
			}
		}
	}
	if f.Attempts < 1 || f.Parallel < 0 || f.Retries < 0 {
		return s, 0, newUsageError("--attempts must be positive, and --parallel and --retries not negative")
	}
	if f.maxCost = f.Settings.Limits.Cost; f.maxCost != nil {
		maxCost, f.Settings.Limits.Cost = int64(*f.maxCost), nil // not a limit of each trial
	}
	s, err = batchui.ParseShard(f.Shard, env.get)
	if err != nil {
		err = &usageError{err}
	}
	return s, maxCost, err
}

func runBatch(ctx context.Context, a *app, f batchFlags, paths []string) (err error) {
	shard, maxCost, err := f.readFlags(a.environ)
	if err != nil {
		return err
	}
	if err := f.fleetFlags.check(); err != nil {
		return err
	}
	if f.WorkerTimeout != 0 && (f.WorkerTimeout < time.Second || f.WorkerTimeout > time.Hour) {
		return newUsageError("--worker-timeout %s: want 1s to 1h", f.WorkerTimeout)
	}
	tasks, err := loadTasks(a.environ, paths, f.TaskEnv)
	if err != nil {
		return err
	}
	ctx, force, _, stop := a.handleInterrupts(ctx, a.warn)
	defer stop()
	if f.Servers != "" {
		return coordinateBatch(ctx, a, &f, paths, tasks, shard, maxCost)
	}
	b, err := openBatch(ctx, a, force, &f, tasks, f.Out)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	b.shard = shard
	defer func() { err = errors.Join(err, b.closeBatch()) }()
	if err := b.checkAgents(f.Agents); err != nil {
		return err
	}
	if b.agents, err = b.findAgents(f.agents()); err != nil {
		return err
	}
	refuseRoot(b.tasks, b.choice.Chosen)
	b.prepareTasks(ctx)
	if err := b.refuseUnsupported(); err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	return b.runTrials(ctx, maxCost)
}

// checkAgents refuses names that are no agents.
func (s *settings) checkAgents(list []string) error {
	for _, agent := range list {
		_, _, ok := s.parseAgent(agent)
		if agent == batch.Oracle || agent == batch.Nop || ok {
			continue
		}
		return newUsageError("--agent %q: want oracle, nop or one of %s, perhaps with @MODEL; --model names a model", agent, strings.Join(s.conf.AgentNames(), ", "))
	}
	return nil
}

// loadTasks reads tasks. They can refer only to the named variables of this machine: a
// task's author may want the user's keys.
func loadTasks(env environ, paths, variables []string) ([]task.Task, error) {
	tasks, err := task.Load(paths, task.Options{Lookup: func(name string) (string, bool) {
		if !slices.Contains(variables, name) {
			return "", false
		}
		return env.lookup(name)
	}})
	if err != nil {
		return nil, newFailure(exitInput, err, "", "caisson batch --help and docs/batch.md describe tasks.")
	}
	return tasks, nil
}

// refuseRoot marks tasks that need root as unsupported if the backend has no root.
func refuseRoot(tasks []task.Task, backend string) {
	for i := range tasks {
		if t := &tasks[i]; t.Environment.Root && backend == "docker" {
			t.Unsupported = append(t.Unsupported, "its commands are root, which the backend docker does not offer: use --backend gvisor or runc")
		}
	}
}

// refuseUnsupported lists the unsupported tasks. It returns an error if there are any,
// unless --skip-unsupported is given.
func (b *batchSession) refuseUnsupported() error {
	n, hint := 0, ""
	for _, t := range b.tasks {
		if len(t.Unsupported) > 0 {
			n++
			if len(t.Variables) > 0 {
				hint = "Give them variables with --task-env NAME, or "
			}
			b.app.printLines(makeSafe(fmt.Sprintf("unsupported: %s: %s", t.ID, strings.Join(t.Unsupported, "; "))))
		}
	}
	if n == 0 || b.flags.Skip {
		return nil
	}
	return newFailure(exitInput, nil, fmt.Sprintf("%d of %s can't be run here", n, formatCount(len(b.tasks), "task", "tasks")),
		cmp.Or(hint, "Fix what is invalid, or ")+"leave them out with --skip-unsupported; reports list them.")
}

func (b *batchSession) runTrials(ctx context.Context, maxCost int64) error {
	spec := batch.Spec{
		Version: programVersion(), Backend: b.choice.Chosen, Tasks: batch.NewSpecTasks(b.tasks), Agents: b.agents, Attempts: b.flags.Attempts, Shard: b.shard,
		Settings: map[string]string{"image": *b.conf.Image},
	}
	if err := b.identifyPrograms(b.agents, spec.Settings); err != nil {
		return err
	}
	if err := b.load(ctx, spec); err != nil {
		return err
	}
	trials := batch.Plan(b.tasks, b.agents, b.flags.Attempts, b.shard)
	p := batchui.NewProgress(batchui.ProgressOptions{Out: b.app.stderr, Columns: b.columnsFunc(), Total: len(trials), Kept: b.ledger.Endings(trials), MaxCostMicroUSD: maxCost})
	b.say = p.Print
	totals, err := batch.Run(ctx, batch.Options{
		Ledger: b.ledger, Trials: trials, Run: b.trials.Run, Capacity: b.findCapacity(), MaxCostMicroUSD: maxCost, Retries: b.flags.Retries, OnStart: p.Start, OnResult: p.Result,
	})
	p.Close()
	if b.flags.check {
		return finishCheck(ctx, b.app, b.ledger, trials, err)
	}
	return finishBatch(ctx, b.app, b.ledger, totals, err)
}

// writeReports writes a batch's reports after its trials ended with err, which may be
// nil. It returns that error, or the interruption.
func writeReports(ctx context.Context, ledger *batch.Ledger, err error) (batch.Summary, error) {
	summary, writeErr := batchui.WriteReports(ledger.Dir())
	return summary, cmp.Or(errors.Join(describeEnd(err), writeErr), interruption(ctx))
}

// finishBatch writes a batch's reports and summary after its trials ended with err,
// which may be nil.
func finishBatch(ctx context.Context, a *app, ledger *batch.Ledger, totals batch.Totals, err error) error {
	summary, err := writeReports(ctx, ledger, err)
	if err != nil {
		return err
	}
	if err := batchui.WriteSummary(a.stdout, summary); err != nil {
		return err
	}
	dir := ledger.Dir()
	if here, err := os.Getwd(); err == nil {
		if near, err := filepath.Rel(here, dir); err == nil && filepath.IsLocal(near) {
			dir = near
		}
	}
	a.warn(fmt.Sprintf("the report is %s; caisson batch ls %s lists the trials", filepath.Join(dir, "report.html"), dir))
	if totals.Reached != "" {
		a.warn(fmt.Sprintf("%s not run: %s; the same command with a higher --max-cost-usd runs them", formatCount(len(totals.NotRun), "trial was", "trials were"), totals.Reached))
	}
	return exitWith(batchStatus(totals, summary))
}

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

// finishCheck lists the unsound tasks after the trials of a check ended with err, which
// may be nil.
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
