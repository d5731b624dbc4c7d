package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/cmd/caisson/internal/batchui"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/oci"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
)

// Directories of a batch while it runs: the state of its sandboxes, and the workspaces of its
// tasks.
const (
	stateDir = "state"
	workDir  = "work"
)

// gradesDir has a directory for each time that trials of a batch were verified again.
const gradesDir = "grades"

const batchLong = `Run many trials of tasks, and keep their results.

A PATH is a Harbor task directory (schema 1.0 to 1.4), a directory of them, or a file of JSON lines. A
trial is one attempt of one agent at one task: it works in a fresh sandbox. The verifier runs in another
fresh one, on the agent's files but with tests and a reward file that the agent never reached.

The directory of --out is the state: results.jsonl and a directory for each trial. The same command
again runs what has no result, whatever ended the one before, and keeps the rest.

Failures of the machine, of sandboxes and of providers are tried again (--retries) and never counted as
the agent's. What a task asks for and can't get is found before the first trial: it ends the batch with
status 42, or with --skip-unsupported is listed in every report and in no denominator.

The settings below apply to each trial, except for --max-cost-usd and --model: the first bounds all
trials together, and the second may be given several times. Network, working directory, root and user
are those of the task. Docker has no root inside, so auto takes gvisor for Harbor tasks.
`

// batchFlags are the flags of caisson batch.
type batchFlags struct {
	settings config.File
	profile  string
	out      string
	agents   []string
	attempts int
	parallel int
	retries  int
	shard    string
	skip     bool
	maxCost  string
	models   repeatedFlag
	taskEnv  []string
	fleet    fleetFlags
}

// repeatedFlag is a flag of one value that may be given several times.
type repeatedFlag struct {
	settingFlag
	values []string
}

// Set implements pflag.Value.
func (f *repeatedFlag) Set(v string) error {
	if !slices.Contains(f.values, v) {
		f.values = append(f.values, v)
	}
	return f.settingFlag.Set(v)
}

func newBatchCommand(a *app) *cobra.Command {
	var f batchFlags
	cmd := newGroup(&cobra.Command{
		Use:   "batch [flags] PATH...",
		Short: "Run many trials of tasks, and keep their results",
		Long: batchLong + exitHelp(map[int]string{
			exitDone: "every trial passed", exitFailed: "the infrastructure failed trials, or a result could not be kept", exitInput: "a task can't be read or is unsupported, or the results in --out are of another batch",
			exitLimit: "--max-cost-usd kept trials from starting", exitUnverified: "trials did not pass", exitFatal: "", exitConflict: "", exitUnvouched: "", exitUntrusted: "", exitNoApprover: "",
		}, usesConfig|usesInput|startsSandbox|asksModel|interruptible),
		Example: `  caisson batch --agent oracle --agent nop ./tasks
  caisson batch --model openai/gpt-5 --attempts 4 --out results ./tasks
  caisson batch --shard 1/3 --out shard1 ./tasks
  caisson batch --nats nats://queue:4222 --results s3://bucket/run1 /tasks
  caisson batch show results`,
	}, newBatchListCommand(a), newBatchShowCommand(a), newBatchMergeCommand(a), newBatchGradeCommand(a), newBatchCompareCommand(a), newBatchReportCommand(a), newBatchViewCommand(a), newBatchWorkerCommand(a))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return newUsageError("name the tasks: directories or .jsonl files")
		}
		return runBatch(cmd.Context(), a, f, args)
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&f.out, "out", "o", "caisson-batch", "directory of the results")
	flags.StringArrayVar(&f.agents, "agent", nil, "oracle (the task's own solution) or nop (nothing) in place of a model (repeatable)")
	flags.IntVar(&f.attempts, "attempts", 1, "attempts of each agent at each task")
	flags.IntVar(&f.parallel, "parallel", 0, "trials at a time at most (default: the number of processors); memory, processors and disk must suffice too")
	flags.IntVar(&f.retries, "retries", 2, "how often a trial is tried again after a failure of the infrastructure")
	flags.StringVar(&f.shard, "shard", "", "run part I of N alone, as I/N (default: from SLURM_ARRAY_TASK_ID or JOB_COMPLETION_INDEX with their counts)")
	f.fleet.addFlags(flags)
	f.fleet.addTimeout(flags)
	f.addTaskEnv(flags)
	flags.BoolVar(&f.skip, "skip-unsupported", false, "leave out tasks that can't be run here")
	flags.StringVar(&f.profile, "profile", "", "settings of profiles.NAME in the configuration")
	addSettings(cmd, &f.settings, "Model", "Policy", "Sandbox", "Limits")
	model := cmd.Flags().Lookup("model")
	f.models.settingFlag = *model.Value.(*settingFlag)
	model.Value, model.Usage = &f.models, model.Usage+" (repeatable)"
	maxCost := cmd.Flags().Lookup("max-cost-usd")
	maxCost.Value, maxCost.Usage = &textFlag{text: &f.maxCost, kind: "USD"}, "US dollars that all trials may cost together; none starts when they are used up"
	return cmd
}

// textFlag is a flag whose text is read later.
type textFlag struct {
	text *string
	kind string
}

func (f *textFlag) Set(v string) error { *f.text = v; return nil }
func (f *textFlag) String() string     { return *f.text }
func (f *textFlag) Type() string       { return f.kind }

// readFlags reads the flags that are not settings.
func (f *batchFlags) readFlags(env environ) (s batch.Shard, maxCost int64, err error) {
	for _, agent := range f.agents {
		if agent != batch.Oracle && agent != batch.Nop {
			return s, 0, newUsageError("--agent %q: want oracle or nop; --model names a model", agent)
		}
	}
	if f.attempts < 1 || f.parallel < 0 || f.retries < 0 {
		return s, 0, newUsageError("--attempts must be positive, and --parallel and --retries not negative")
	}
	if f.maxCost != "" {
		d, err := config.ParseDollars(f.maxCost)
		if err != nil || d <= 0 {
			return s, 0, newUsageError("--max-cost-usd %q: want a positive amount, such as 0.50", f.maxCost)
		}
		maxCost = int64(d)
	}
	s, err = batchui.ParseShard(f.shard, env.get)
	if err != nil {
		err = &usageError{err}
	}
	return s, maxCost, err
}

// batchSession is a batch that is put together.
type batchSession struct {
	*backends
	app    *app
	flags  *batchFlags
	user   environ // with the user's own state directory, where ceilings are counted
	out    string
	ledger *batch.Ledger
	tasks  []task.Task
	agents []string
	shard  batch.Shard
	trials *batch.Trials
	// resources are those of a trial whose task names none.
	resources limits.Resources
	choice    record.BackendChoice
	say       func(text string)
}

// runBatch runs a batch to its end.
func runBatch(ctx context.Context, a *app, f batchFlags, paths []string) (err error) {
	shard, maxCost, err := f.readFlags(a.environ)
	if err != nil {
		return err
	}
	if err := f.fleet.check(); err != nil {
		return err
	}
	tasks, err := loadTasks(a.environ, paths, f.taskEnv)
	if err != nil {
		return err
	}
	ctx, force, _, stop := handleInterrupts(ctx, a.takeSignals(), func(text string) { a.printLines("caisson: " + text) }, a.exit)
	defer stop()
	if f.fleet.servers != "" {
		return coordinateBatch(ctx, a, &f, paths, tasks, shard, maxCost)
	}
	b, err := openBatch(ctx, a, force, &f, tasks, f.out)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	b.shard = shard
	defer func() { err = errors.Join(err, b.closeBatch()) }()
	if b.agents, err = b.findAgents(f); err != nil {
		return err
	}
	b.prepareTasks(ctx)
	if err := b.refuseUnsupported(); err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	return b.runTrials(ctx, maxCost)
}

// addTaskEnv adds the flag that names the variables of tasks.
func (f *batchFlags) addTaskEnv(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.taskEnv, "task-env", nil, "variable of this machine that tasks get where they refer to it as ${NAME} (repeatable)")
}

// loadTasks reads tasks. They get no variables of the machine but the named ones: who wrote
// a task may want the user's keys.
func loadTasks(env environ, paths, variables []string) ([]task.Task, error) {
	tasks, err := task.Load(paths, task.Options{Lookup: func(name string) (string, bool) {
		if !slices.Contains(variables, name) {
			return "", false
		}
		return env.lookup(name)
	}})
	if err != nil {
		return nil, &commandError{Status: exitInput, Err: err, Problem: record.Problem{Cause: err.Error(), Hint: "caisson batch --help and docs/batch.md describe tasks."}}
	}
	return tasks, nil
}

// openBatch makes what trials need. The state of their sandboxes is in the directory of
// the batch, so that what a killed batch left is found there, and nothing else is
// touched. When force is closed, sandboxes are killed at once.
func openBatch(ctx context.Context, a *app, force <-chan struct{}, f *batchFlags, tasks []task.Task, out string) (_ *batchSession, err error) {
	out, err = filepath.Abs(out)
	if err != nil {
		return nil, err
	}
	s, err := loadBatchSettings(a, f.settings, f.profile, out)
	if err != nil {
		return nil, err
	}
	ledger, err := batch.LockLedger(out)
	if err != nil {
		return nil, describeLedger(err)
	}
	defer func() {
		if err != nil {
			_ = ledger.Close() // nothing is in it
		}
	}()
	user := s.environ
	s.environ = append(slices.Clip(slices.Clone(user)), "XDG_STATE_HOME="+filepath.Join(out, stateDir))
	bs, err := openBackends(s, nil)
	if err != nil {
		return nil, err
	}
	b := &batchSession{backends: bs, ledger: ledger, app: a, flags: f, user: user, out: out, tasks: tasks, say: func(text string) { a.printLines("caisson: " + text) }}
	defer func() {
		if err != nil {
			bs.close()
		}
	}()
	b.setLogger(zap.NewNop())
	if b.trials, err = b.newTrials(ctx, force); err != nil {
		return nil, err
	}
	return b, nil
}

// chooseBackend chooses the backend of all trials.
func (b *batchSession) chooseBackend(ctx context.Context) (batch.TrialOptions, error) {
	name := *b.conf.Backend
	if (name == "" || name == "auto") && slices.ContainsFunc(b.tasks, func(t task.Task) bool { return t.Environment.Root }) {
		name = string(oci.GVisor)
	}
	backend, choice, err := b.host.Choose(ctx, name, b.say)
	if err != nil {
		return batch.TrialOptions{}, err
	}
	b.choice = choice
	return batch.TrialOptions{Session: runner.Options{SandboxOptions: runner.SandboxOptions{Backend: backend, Choice: choice}}}, nil
}

// newTrials makes what runs trials, from the settings.
func (b *batchSession) newTrials(ctx context.Context, force <-chan struct{}) (*batch.Trials, error) {
	image, err := images.ParseLocalReference(*b.conf.Image)
	if err != nil {
		return nil, &commandError{Status: exitConfig, Err: err, Problem: record.Problem{Cause: "the image can't be used: " + err.Error(), Hint: "Change --image, or image in the configuration."}}
	}
	resources, err := b.conf.SandboxResources()
	if err != nil {
		return nil, err
	}
	b.resources = resources
	variables, err := b.conf.Variables(b.environ.lookup)
	if err != nil {
		return nil, err
	}
	policy, err := b.conf.ToolPolicy("ci")
	if err != nil {
		return nil, err
	}
	fetching, err := b.conf.FetchOptions()
	if err != nil {
		return nil, err
	}
	instructions, err := b.conf.OperatorInstructions(b.environ.configDir())
	if err != nil {
		return nil, err
	}
	egress, err := config.TaskEgress(&b.conf)
	if err != nil {
		return nil, err
	}
	store, err := b.openImages(ctx)
	if err != nil {
		return nil, err
	}
	o, err := b.chooseBackend(ctx)
	if err != nil {
		return nil, err
	}
	o.StateDir, o.WorkDir, o.Images, o.DefaultImage, o.NewModel = b.environ.stateDir(), filepath.Join(b.out, workDir), store, image, b.newModel
	o.GitEnv = gitEnviron(b.user)
	session := &o.Session
	session.User, session.Secrets, session.Version = localUser(&b.conf), slices.Concat(b.knownSecrets(), environSecrets(b.user, b.flags.taskEnv...)), programVersion()
	session.Resources, session.Env, session.Egress, session.Force = resources, variables, egress, force
	session.ModelOptions = runner.ModelOptions{Budget: b.conf.Limits.Budget(), Canary: *b.conf.Canary, InstructionTexts: instructionTexts(instructions)}
	session.PolicyOptions = runner.PolicyOptions{Policy: policy, OnPrompt: dispatch.OnPrompt(*b.conf.OnPrompt), Concurrency: int(*b.conf.Concurrency)}
	session.ToolOptions = runner.ToolOptions{Fetch: fetching, Declared: b.conf.Tools.Declared()}
	return batch.NewTrials(o), nil
}

// findAgents returns the agents of the batch: those that are named, or the model of the
// configuration. A model that can't be made is an error now.
func (b *batchSession) findAgents(f batchFlags) ([]string, error) {
	agents := slices.Concat(f.agents, f.models.values)
	if len(agents) == 0 {
		selected, err := b.conf.SelectModels(b.user)
		if err != nil {
			return nil, noModel(err)
		}
		agents = []string{cmp.Or(valueOf(b.conf.Model), selected[0].Profile)}
	}
	slices.Sort(agents)
	agents = slices.Compact(agents)
	for _, agent := range agents {
		if agent == batch.Oracle || agent == batch.Nop {
			continue
		}
		m, err := b.newModel(context.Background(), agent)
		if err != nil {
			return nil, err
		}
		m.Close()
	}
	return agents, nil
}

// findCapacity returns what all trials may use together: nine tenths of the memory, and of the
// disk that is free.
func (b *batchSession) findCapacity() batch.Capacity {
	c := batch.Capacity{Trials: cmp.Or(b.flags.parallel, runtime.GOMAXPROCS(0)), MilliCPUs: int64(runtime.GOMAXPROCS(0)) * 1000, MemoryBytes: machineMemory() / 10 * 9}
	if free := batchui.FreeDisk(b.out); free > 0 {
		c.StorageBytes = free / 10 * 9
	}
	return c
}

// prepareTasks makes the environments of tasks that have trials in this shard, and finds what
// can't be run here. An environment that can't be made now fails its trials.
func (b *batchSession) prepareTasks(ctx context.Context) {
	capacity := b.findCapacity()
	for i := range b.tasks {
		t := &b.tasks[i]
		if ctx.Err() != nil {
			return
		}
		if len(t.Unsupported) > 0 || len(batch.Plan(b.tasks[i:i+1], []string{batch.Nop}, b.flags.attempts, b.shard)) == 0 {
			continue
		}
		b.setNeeds(t)
		if err := capacity.Check(t.Environment); err != nil {
			t.Unsupported = append(t.Unsupported, err.Error())
			continue
		}
		reason, err := b.trials.Prepare(ctx, t)
		if err != nil {
			text, _ := tools.Display(fmt.Sprintf("%s: the environment is not ready: %v", t.ID, err))
			b.say(text)
		}
		if reason != "" {
			t.Unsupported = append(t.Unsupported, reason)
		}
	}
}

// setNeeds sets what trials of a task need where the task does not name it.
func (b *batchSession) setNeeds(t *task.Task) {
	if t.Environment.MemoryBytes == 0 {
		t.Environment.MemoryBytes = b.resources.MemoryBytes
	}
	if t.Environment.MilliCPUs == 0 {
		t.Environment.MilliCPUs = min(b.resources.MilliCPUs, 1000)
	}
}

// refuseUnsupported lists the tasks that can't be run, and returns an error unless they may be
// left out.
func (b *batchSession) refuseUnsupported() error {
	n, hint := 0, ""
	for _, t := range b.tasks {
		if len(t.Unsupported) > 0 {
			n++
			if slices.ContainsFunc(t.Unsupported, func(why string) bool { return strings.Contains(why, task.NotGiven) }) {
				hint = "Give them variables with --task-env NAME, or "
			}
			text, _ := tools.Display(fmt.Sprintf("unsupported: %s: %s", t.ID, strings.Join(t.Unsupported, "; ")))
			b.app.printLines(text)
		}
	}
	if n == 0 || b.flags.skip {
		return nil
	}
	return &commandError{Status: exitInput, Problem: record.Problem{
		Cause: fmt.Sprintf("%d of %s can't be run here", n, formatCount(len(b.tasks), "task", "tasks")), Hint: cmp.Or(hint, "Fix what is invalid, or ") + "leave them out with --skip-unsupported: they stand in every report, and in no rate.",
	}}
}

// runTrials runs the trials.
func (b *batchSession) runTrials(ctx context.Context, maxCost int64) error {
	spec := batch.Spec{
		Version: programVersion(), Backend: b.choice.Chosen, Tasks: batch.NewSpecTasks(b.tasks), Agents: b.agents, Attempts: b.flags.attempts, Shard: b.shard,
		Settings: map[string]string{"image": *b.conf.Image},
	}
	ledger := b.ledger
	if err := b.load(ctx, spec); err != nil {
		return err
	}
	trials := batch.Plan(b.tasks, b.agents, b.flags.attempts, b.shard)
	p := batchui.NewProgress(batchui.ProgressOptions{Out: b.app.stderr, Columns: b.columnsFunc(), Total: len(trials), Kept: endings(ledger, trials), MaxCostMicroUSD: maxCost})
	b.say = p.Print
	totals, err := batch.Run(ctx, batch.Options{
		Ledger: ledger, Trials: trials, Run: b.trials.Run, Capacity: b.findCapacity(), MaxCostMicroUSD: maxCost, Retries: b.flags.retries, OnStart: p.Start, OnResult: p.Result,
	})
	p.Close()
	return finishBatch(ctx, b.app, ledger, totals, err)
}

// load loads the ledger, reports what had to be repaired, and removes what a batch that was
// killed left.
func (b *batchSession) load(ctx context.Context, spec batch.Spec) error {
	if err := b.ledger.Load(spec); err != nil {
		return describeLedger(err)
	}
	reportRepairs(b.ledger, b.say)
	return b.sweepDead(ctx)
}

// reportRepairs reports what was wrong in the directory of a ledger.
func reportRepairs(ledger *batch.Ledger, say func(text string)) {
	r := ledger.Repairs()
	if r.Damaged > 0 {
		say(fmt.Sprintf("%s had %d damaged lines: it is written again from the directories of trials", batch.ResultsFile, r.Damaged))
	}
	for _, k := range r.Missing {
		say(displayText(fmt.Sprintf("%s runs again: its directory %s is gone", k.Describe(), filepath.Join(batch.TrialsDir, k.Name()))))
	}
}

// endings returns how those of the trials ended that have a result.
func endings(ledger *batch.Ledger, trials []batch.Trial) []batch.Ending {
	var list []batch.Ending
	for _, t := range trials {
		if e, ok := ledger.Ending(t.Key); ok {
			list = append(list, e)
		}
	}
	return list
}

// finishBatch writes the reports of a batch after its trials have ended with an error or nil.
func finishBatch(ctx context.Context, a *app, ledger *batch.Ledger, totals batch.Totals, err error) error {
	summary, writeErr := batchui.WriteReports(ledger.Dir())
	if err := errors.Join(err, writeErr); err != nil {
		return err
	}
	if err := interruption(ctx); err != nil {
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
	text, _ := tools.Display(fmt.Sprintf("caisson: the report is %s; caisson batch ls %s lists the trials", filepath.Join(dir, "report.html"), dir))
	a.printLines(text)
	return exitWith(batchStatus(totals, summary))
}

// columnsFunc returns the width of the terminal, nil if the progress goes elsewhere.
func (b *batchSession) columnsFunc() func() int {
	if !b.app.terminal(b.app.stderr) {
		return nil
	}
	return func() int {
		columns, _ := b.app.size()
		return columns
	}
}

// sweepDead removes what a batch that was killed left: its sandboxes and their sessions. No
// other process uses the directory.
func (b *batchSession) sweepDead(ctx context.Context) error {
	removed, err := b.host.Sweep(ctx)
	if err != nil {
		return fmt.Errorf("remove what a killed batch left: %w", err)
	}
	if len(removed) > 0 {
		b.say(fmt.Sprintf("removed what killed processes left of their sandboxes (%d)", len(removed)))
	}
	state := b.environ.stateDir()
	for _, name := range []string{"sessions", "layers"} {
		if err := os.RemoveAll(filepath.Join(state, name)); err != nil {
			return fmt.Errorf("remove what a killed batch left: %w", err)
		}
	}
	return nil
}

// closeBatch removes what no later command needs, closes the backends, and ends the use of
// the directory. The state directory stays if something of a sandbox could not be removed.
func (b *batchSession) closeBatch() error {
	err := os.RemoveAll(filepath.Join(b.out, workDir))
	ctx := context.Background() // also after an interruption
	if _, left := b.host.Sweep(ctx); left == nil {
		err = errors.Join(err, os.RemoveAll(filepath.Join(b.out, stateDir)))
	}
	b.backends.close()
	return errors.Join(err, b.ledger.Close())
}
