package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/caisson-run/caisson/cmd/caisson/internal/batchui"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/fleet"
	"github.com/caisson-run/caisson/runner/batch/results"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/oci"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// fleetFlags are the flags of a batch that several machines run.
type fleetFlags struct {
	servers, credentials, results string
	timeout                       time.Duration // of a silent worker; zero for a worker
}

func (f *fleetFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.servers, "nats", "", "NATS servers with JetStream through which workers get trials, as URLs separated by commas")
	flags.StringVar(&f.credentials, "nats-credentials", "", "file with credentials for NATS: of a user, or the seed of a user's key")
	flags.StringVar(&f.results, "results", "", "where workers store results: a directory that all of them share, or s3://BUCKET/PREFIX")
}

// addTimeout adds the flag of the coordinator alone.
func (f *fleetFlags) addTimeout(flags *pflag.FlagSet) {
	flags.DurationVar(&f.timeout, "worker-timeout", fleet.AckWait, "time after which the trials of a worker that sends no heartbeat are given to others")
}

func (f *fleetFlags) check() error {
	if f.timeout != 0 && (f.timeout < time.Second || f.timeout > time.Hour) {
		return newUsageError("--worker-timeout %s: want 1s to 1h", f.timeout)
	}
	if f.servers != "" && f.results == "" {
		return newUsageError("--nats needs --results: only names of trials go through NATS, so name where workers store results, a directory that all of them share or s3://BUCKET/PREFIX")
	}
	if f.servers == "" && (f.results != "" || f.credentials != "") {
		return newUsageError("--results and --nats-credentials need --nats: on one machine results are in --out")
	}
	return nil
}

// open opens the store and connects to NATS; report is called when the connection is lost
// or made again.
func (f *fleetFlags) open(ctx context.Context, env environ, report func(string)) (results.Store, *fleet.Conn, error) {
	store, err := results.Open(ctx, f.results, env.lookup)
	if err != nil {
		return nil, nil, &commandError{Status: exitConfig, Err: err, Problem: record.Problem{
			Cause: err.Error(), Hint: "Keys, the region and another endpoint than Amazon's are the usual variables, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. The service must support If-None-Match.",
		}}
	}
	conn, err := fleet.Connect(f.servers, f.credentials, "caisson batch", report)
	if err != nil {
		return nil, nil, &commandError{Status: exitConfig, Err: err, Problem: record.Problem{Cause: err.Error(), Hint: "Check --nats and --nats-credentials, and that the servers run with JetStream."}}
	}
	return store, conn, nil
}

// coordinateBatch runs a batch on workers. Nothing of a trial runs here, so neither a backend
// nor a key of a model is needed.
func coordinateBatch(ctx context.Context, a *app, f *batchFlags, paths []string, tasks []task.Task, shard batch.Shard, maxCost int64) (err error) {
	if shard != (batch.Shard{}) {
		return newUsageError("a shard can't be run by workers: leave out --nats or --shard")
	}
	for i := range paths {
		if paths[i], err = filepath.Abs(paths[i]); err != nil {
			return err
		}
	}
	s, err := loadServerSettings(a, f.settings, f.profile)
	if err != nil {
		return err
	}
	b := &batchSession{app: a, flags: f, tasks: tasks}
	refuseRoot(tasks, valueOf(s.conf.Backend))
	if err := b.refuseUnsupported(); err != nil {
		return err
	}
	agents := slices.Concat(f.agents, f.models.values)
	if len(agents) == 0 {
		if agents = []string{valueOf(s.conf.Model)}; agents[0] == "" {
			return newUsageError("name --agent or --model")
		}
	}
	slices.Sort(agents)
	agents = slices.Compact(agents)
	backend := valueOf(s.conf.Backend)
	if backend == "" || backend == "auto" { // one for all workers
		backend = string(oci.GVisor)
	}
	spec := batch.Spec{
		Version: programVersion(), Backend: backend, Tasks: batch.NewSpecTasks(tasks), Agents: agents, Attempts: f.attempts,
		Settings: map[string]string{"image": valueOf(s.conf.Image)},
	}
	ledger, err := batch.LockLedger(f.out)
	if err != nil {
		return describeLedger(err)
	}
	defer func() { err = errors.Join(err, ledger.Close()) }()
	if err := ledger.Load(spec); err != nil {
		return describeLedger(err)
	}
	say := func(text string) { a.printLines("caisson: " + text) }
	for _, text := range batchui.DescribeRepairs(ledger.Repairs()) {
		say(text)
	}
	report := func(text string) { say(displayText(text)) }
	store, conn, err := f.fleet.open(ctx, a.environ, report)
	if err != nil {
		return err
	}
	defer conn.Close()
	trials := batch.Plan(tasks, agents, f.attempts, batch.Shard{})
	p := batchui.NewProgress(batchui.ProgressOptions{Out: a.stderr, Columns: b.columnsFunc(), Total: len(trials), Kept: ledger.Endings(trials), MaxCostMicroUSD: maxCost})
	totals, err := fleet.Coordinate(ctx, fleet.CoordinatorOptions{
		Conn: conn, Store: store, Ledger: ledger, Spec: spec, Paths: paths, Trials: trials, MaxCostMicroUSD: maxCost, AckWait: f.fleet.timeout,
		OnResult: func(r batch.Result) { p.Start(r.Key); p.Result(r) }, Report: func(text string) { p.Print(displayText(text)) },
	})
	p.Close()
	return finishBatch(ctx, a, ledger, totals, describeRun(err))
}

func displayText(text string) string {
	text, _ = tools.Display(text)
	return text
}

// describeRun returns the error of a run that does not fit this machine.
func describeRun(err error) error {
	if errors.As(err, new(*batch.MismatchError)) {
		return &commandError{Status: exitInput, Err: err, Problem: record.Problem{Cause: err.Error(), Hint: "Choose another place with --results."}}
	}
	if errors.As(err, new(*fleet.DamagedError)) {
		return &commandError{Status: exitFailed, Err: err, Problem: record.Problem{Cause: err.Error(), Hint: "Remove these objects from --results and run the same command again, which runs their trials again."}}
	}
	if errors.As(err, new(*fleet.TaskError)) {
		return &commandError{Status: exitInput, Err: err, Problem: record.Problem{Cause: err.Error(), Hint: "Workers need the tasks of the coordinator: share its directory, or name a copy of it as PATH."}}
	}
	return describeEnd(err)
}

const workerLong = `Run trials of a batch that caisson batch --nats coordinates.

A worker takes trials out of a queue in NATS JetStream, runs each as caisson batch would, stores its
result in --results, and acknowledges it then. A worker may start before the coordinator, join later and
be killed at any moment: its trials are delivered to others. It ends when the batch has ended.

Tasks are read at the paths that the coordinator has them at, such as on a shared file system, or at
each PATH, such as in an image. A task that differs from the coordinator's ends the worker with status
42. Models, backends and keys are those of the worker; the backend and the default image must be the
coordinator's.
`

func newBatchWorkerCommand(a *app) *cobra.Command {
	var f batchFlags
	cmd := &cobra.Command{
		Use: "worker [flags] --nats URL --results LOCATION [PATH...]", Short: "Run trials of a batch that another machine coordinates",
		Example: `  caisson batch worker --nats nats://queue:4222 --results s3://bucket/run1
  caisson batch worker --nats nats://queue:4222 --results /shared/run1 --parallel 8 /tasks`,
		Long: workerLong + exitHelp(map[int]string{
			exitDone: "the batch has ended", exitInput: "a task can't be read, or differs from the coordinator's",
		}, usesConfig|usesInput|startsSandbox|asksModel|interruptible),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.fleet.servers == "" {
				return newUsageError("name the servers with --nats")
			}
			if err := f.fleet.check(); err != nil {
				return err
			}
			if f.parallel < 0 || f.retries < 0 {
				return newUsageError("--parallel and --retries must not be negative")
			}
			return runBatchWorker(cmd.Context(), a, &f, args)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	f.fleet.addFlags(flags)
	flags.StringVarP(&f.out, "out", "o", "caisson-worker", "directory of this worker alone, on a local disk, for trials that run")
	f.addParallel(flags)
	flags.IntVar(&f.retries, "retries", 2, "how often a trial is tried again after a failure of the infrastructure")
	f.addTaskEnv(flags)
	flags.StringVar(&f.profile, "profile", "", "settings of profiles.NAME in the configuration")
	addSettings(cmd, &f.settings, "Policy", "Sandbox", "Limits")
	return cmd
}

// runBatchWorker runs trials until the batch has ended.
func runBatchWorker(ctx context.Context, a *app, f *batchFlags, paths []string) error {
	ctx, force, _, stop := handleInterrupts(ctx, a.takeSignals(), func(text string) { a.printLines("caisson: " + text) }, a.exit)
	defer stop()
	report := func(text string) { a.printLines("caisson: " + displayText(text)) }
	store, conn, err := f.fleet.open(ctx, a.environ, report)
	if err != nil {
		return cmp.Or(interruption(ctx), err)
	}
	defer conn.Close()
	for waits := false; ; {
		run, ended, err := fleet.LatestRun(ctx, store)
		switch {
		case ctx.Err() != nil:
			return interruption(ctx)
		case errors.Is(err, fleet.ErrNoRun):
			if !waits {
				report("no coordinator has begun yet; waiting")
			}
			waits = true
		case errors.As(err, new(*fleet.RunError)):
			return &commandError{Status: exitConfig, Err: err, Problem: record.Problem{Cause: err.Error(), Hint: "Start the same version on all machines."}}
		case err != nil:
			report(fmt.Sprintf("the run can't be read, which is tried again: %v", err))
		case ended:
			report("the batch has ended")
			return nil
		default:
			if err := workOnRun(ctx, a, force, f, paths, store, conn, run); err != nil {
				return cmp.Or(interruption(ctx), describeRun(err))
			}
			continue
		}
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
		}
	}
}

// workOnRun runs trials of one run of the coordinator.
func workOnRun(ctx context.Context, a *app, force <-chan struct{}, f *batchFlags, paths []string, store results.Store, conn *fleet.Conn, run fleet.Run) (err error) {
	if len(paths) == 0 {
		paths = run.Paths
	}
	tasks, err := loadTasks(a.environ, paths, f.taskEnv)
	if err != nil {
		return err
	}
	if f.settings.Backend == nil {
		f.settings.Backend = &run.Spec.Backend
	}
	b, err := openBatch(ctx, a, force, f, tasks, f.out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.closeBatch()) }()
	if err := b.checkRun(run); err != nil {
		return err
	}
	if _, err := b.findAgents(batchFlags{agents: run.Spec.Agents}); err != nil { // before a trial could fail for it
		return err
	}
	if err := b.sweepDead(ctx); err != nil {
		return err
	}
	for i := range b.tasks {
		b.setNeeds(&b.tasks[i])
	}
	dir := filepath.Join(b.out, workDir, "trials")
	if err := errors.Join(workspace.RemoveTree(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "worker"
	}
	report := func(text string) { a.printLines("caisson: " + displayText(text)) }
	return fleet.Work(ctx, fleet.WorkerOptions{
		Conn: conn, Store: store, Run: run, Tasks: b.tasks, RunTrial: b.runPrepared, Name: host + "-" + rand.Text()[:8], Dir: dir, Capacity: b.findCapacity(), Retries: f.retries,
		OnResult: func(r batch.Result) { report(fmt.Sprintf("%s: %s", r.Key.Describe(), r.Outcome)) }, Report: report,
	})
}

// checkRun returns an error if this machine's results would not be comparable to others' of
// the run.
func (b *batchSession) checkRun(run fleet.Run) error {
	if version := programVersion(); version != run.Spec.Version {
		return &commandError{Status: exitConfig, Problem: record.Problem{Cause: fmt.Sprintf("this is caisson %s, and the coordinator is caisson %s", version, run.Spec.Version), Hint: "Start the same version on all machines."}}
	}
	for _, c := range []struct{ what, want, have string }{{"backend", run.Spec.Backend, b.choice.Chosen}, {"image", run.Spec.Settings["image"], valueOf(b.conf.Image)}} {
		if c.want != c.have {
			return &commandError{Status: exitConfig, Problem: record.Problem{Cause: fmt.Sprintf("the %s is %q here, and %q for the coordinator", c.what, c.have, c.want), Hint: fmt.Sprintf("Set --%s.", c.what)}}
		}
	}
	return nil
}

// runPrepared makes the environments of a trial's task, once, and runs the trial.
func (b *batchSession) runPrepared(ctx context.Context, t batch.Trial, dir string, budget *int64) batch.Result {
	reason, err := b.trials.Prepare(ctx, t.Definition)
	if err == nil && reason != "" {
		return batch.Result{Outcome: batch.Infrastructure, Class: batch.Environment, Cause: reason}
	}
	return b.trials.Run(ctx, t, dir, budget) // which tries again what is not ready
}
