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

	"github.com/caisson-run/caisson/cmd/caisson/internal/batchui"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/fleet"
	"github.com/caisson-run/caisson/runner/batch/results"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/sandbox/oci"
	"github.com/caisson-run/caisson/tools/safeurl"
	"github.com/caisson-run/caisson/tools/workspace"
)

// fleetFlags are the flags of a batch that several machines run.
type fleetFlags struct {
	Servers     string `flag:"nats" doc:"NATS servers with JetStream through which workers get trials, as URLs separated by commas"`
	Credentials string `flag:"nats-credentials" doc:"file with credentials for NATS: of a user, or the seed of a user's key"`
	Results     string `flag:"results" doc:"where workers store results: a directory that all of them share, or s3://BUCKET/PREFIX"`
}

func (f *fleetFlags) check() error {
	if f.Servers != "" && f.Results == "" {
		return newUsageError("--nats needs --results: only names of trials go through NATS, so name where workers store results, a directory that all of them share or s3://BUCKET/PREFIX")
	}
	if f.Servers == "" && (f.Results != "" || f.Credentials != "") {
		return newUsageError("--results and --nats-credentials need --nats: on one machine results are in --out")
	}
	return nil
}

// idleText is the message of a coordinator that has no workers.
func (f *fleetFlags) idleText() string {
	return "no worker takes trials: start workers with caisson batch worker --nats " + safeurl.List(f.Servers) + " --results " + f.Results
}

// open opens the store and connects to NATS. It calls report when the connection is
// lost or restored.
func (f *fleetFlags) open(ctx context.Context, env environ, report func(string)) (results.Store, *fleet.Conn, error) {
	store, err := results.Open(ctx, f.Results, env.lookup)
	if err != nil {
		return nil, nil, newFailure(exitConfig, err, err.Error(),
			"Keys, the region and another endpoint than Amazon's are the usual variables, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL. The service must support If-None-Match.")
	}
	conn, err := fleet.Connect(f.Servers, f.Credentials, "caisson batch", report)
	if err != nil {
		return nil, nil, newFailure(exitConfig, err, "", "Check --nats and --nats-credentials, and that the servers run with JetStream.")
	}
	return store, conn, nil
}

// coordinateBatch runs a batch on workers. No part of a trial runs here, so it needs no
// backend and no model key.
func coordinateBatch(ctx context.Context, a *app, f *batchFlags, paths []string, tasks []task.Task, shard batch.Shard, maxCost int64) (err error) {
	if shard != (batch.Shard{}) {
		return newUsageError("a shard can't be run by workers: leave out --nats or --shard")
	}
	for i := range paths {
		if paths[i], err = filepath.Abs(paths[i]); err != nil {
			return err
		}
	}
	s, err := loadServerSettings(a, f.Settings, f.Profile)
	if err == nil {
		err = f.checkVariables(s.conf.Requirements)
	}
	if err != nil {
		return err
	}
	b := &batchSession{app: a, flags: f, tasks: tasks, say: a.warn}
	refuseRoot(tasks, valueOf(s.conf.Backend))
	if err := b.refuseUnsupported(); err != nil {
		return err
	}
	agents := f.agents()
	if len(agents) == 0 {
		if agents = []string{valueOf(s.conf.Model)}; agents[0] == "" {
			return newUsageError("name --agent or --model")
		}
	}
	backend := valueOf(s.conf.Backend)
	if backend == "" || backend == "auto" { // one for all workers
		backend = string(oci.GVisor)
	}
	if err := s.checkAgents(f.Agents); err != nil {
		return err
	}
	spec := batch.Spec{
		Version: programVersion(), Backend: backend, Tasks: batch.NewSpecTasks(tasks), Agents: agents, Attempts: f.Attempts,
		Settings: map[string]string{"image": valueOf(s.conf.Image)},
	}
	if err := s.identifyPrograms(agents, spec.Settings); err != nil {
		return err
	}
	if b.ledger, err = batch.LockLedger(f.Out); err != nil {
		return explain(err, ledgerFaults)
	}
	defer func() { err = errors.Join(err, b.ledger.Close()) }()
	if err := b.loadLedger(spec); err != nil {
		return err
	}
	store, conn, err := f.fleetFlags.open(ctx, a.environ, a.warn)
	if err != nil {
		return err
	}
	defer conn.Close()
	trials := batch.Plan(tasks, agents, f.Attempts, batch.Shard{})
	p := batchui.NewProgress(batchui.ProgressOptions{Out: a.stderr, Columns: b.columnsFunc(), Total: len(trials), Kept: b.ledger.Endings(trials), MaxCostMicroUSD: maxCost})
	totals, err := fleet.Coordinate(ctx, fleet.CoordinatorOptions{
		Conn: conn, Store: store, Ledger: b.ledger, Spec: spec, Paths: paths, Trials: trials, MaxCostMicroUSD: maxCost, AckWait: f.WorkerTimeout,
		OnResult: func(r batch.Result) { p.Start(r.Key); p.Result(r) }, Report: func(text string) { p.Print(makeSafe(text)) },
		OnIdle: func() { p.Print(makeSafe(f.idleText())) },
	})
	p.Close()
	return finishBatch(ctx, a, b.ledger, totals, describeEnd(explain(err, fleetFaults)))
}

func newBatchWorkerCommand(a *app) *cobra.Command {
	var f struct {
		fleetFlags
		Out     string `flag:"out,o" default:"caisson-worker" doc:"directory of this worker alone, on a local disk, for trials that run"`
		Retries int    `flag:"retries" default:"2" doc:"how often a trial is tried again after a failure of the infrastructure"`
		trialFlags
		profileFlag
		Settings config.File `groups:"Policy,Sandbox,Limits"`
	}
	return newCommand(&cobra.Command{
		Use: "worker [flags] --nats URL --results LOCATION [PATH...]", Short: "Run trials of a batch that another machine coordinates",
		Long: `Run trials of a batch that caisson batch --nats coordinates.

A worker takes trials from a queue in NATS JetStream, runs each as caisson batch would, stores its result
in --results, and then acknowledges it. A worker may start before the coordinator, join later and be
killed at any moment: its trials are delivered to others. It ends when the batch has ended.

A worker reads the tasks at the coordinator's paths, such as on a shared file system, or at each PATH, such
as in an image. A task that differs from the coordinator's ends the worker with status 42. The worker uses
its own models, backends and keys; the backend and the default image must be the coordinator's.
`,
		Example: `  caisson batch worker --nats nats://queue:4222 --results s3://bucket/run1
  caisson batch worker --nats nats://queue:4222 --results /shared/run1 --parallel 8 /tasks`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.Servers == "" {
				return newUsageError("name the servers with --nats")
			}
			if err := f.check(); err != nil {
				return err
			}
			if f.Parallel < 0 || f.Retries < 0 {
				return newUsageError("--parallel and --retries must not be negative")
			}
			return runBatchWorker(cmd.Context(), a, &batchFlags{
				Out: f.Out, Retries: f.Retries, trialFlags: f.trialFlags, fleetFlags: f.fleetFlags, profileFlag: f.profileFlag, Settings: f.Settings,
			}, args)
		},
	}, &f, usesConfig|usesInput|startsSandbox|asksModel|interruptible, statuses{exitDone: "the batch has ended", exitInput: "a task can't be read, or differs from the coordinator's"})
}

func runBatchWorker(ctx context.Context, a *app, f *batchFlags, paths []string) error {
	ctx, force, _, stop := a.handleInterrupts(ctx, a.warn)
	defer stop()
	store, conn, err := f.fleetFlags.open(ctx, a.environ, a.warn)
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
				a.warn("no coordinator has begun yet; waiting")
			}
			waits = true
		case errors.As(err, new(*fleet.RunError)):
			return newFailure(exitConfig, err, "", "Start the same version on all machines.")
		case err != nil:
			a.warn(fmt.Sprintf("the run can't be read, which is tried again: %v", err))
		case ended:
			a.warn("the batch has ended")
			return nil
		default:
			if err := workOnRun(ctx, a, force, f, paths, store, conn, run); err != nil {
				return cmp.Or(interruption(ctx), describeEnd(explain(err, fleetFaults)))
			}
			continue
		}
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
		}
	}
}

// workOnRun runs trials of one of the coordinator's runs.
func workOnRun(ctx context.Context, a *app, force <-chan struct{}, f *batchFlags, paths []string, store results.Store, conn *fleet.Conn, run fleet.Run) (err error) {
	if len(paths) == 0 {
		paths = run.Paths
	}
	tasks, err := loadTasks(a.environ, paths, f.TaskEnv)
	if err != nil {
		return err
	}
	if f.Settings.Backend == nil {
		f.Settings.Backend = &run.Spec.Backend
	}
	b, err := openBatch(ctx, a, force, f, tasks, f.Out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.closeBatch()) }()
	if err := cmp.Or(b.checkRun(run), b.checkTasks(run)); err != nil {
		return err
	}
	if _, err := b.findAgents(run.Spec.Agents); err != nil { // fail before a trial would
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
	return fleet.Work(ctx, fleet.WorkerOptions{
		Conn: conn, Store: store, Run: run, Tasks: b.tasks, RunTrial: b.runPrepared, Name: host + "-" + rand.Text()[:8], Dir: dir, Capacity: b.findCapacity(), Retries: f.Retries,
		OnResult: func(r batch.Result) { a.warn(fmt.Sprintf("%s: %s", r.Key.Describe(), r.Outcome)) }, Report: a.warn,
	})
}

// checkRun returns an error if this machine's results could not be compared with others
// of the run.
func (b *batchSession) checkRun(run fleet.Run) error {
	if version := programVersion(); version != run.Spec.Version {
		return newFailure(exitConfig, nil, fmt.Sprintf("this is caisson %s, and the coordinator is caisson %s", version, run.Spec.Version), "Start the same version on all machines.")
	}
	for _, c := range []struct{ what, want, have string }{{"backend", run.Spec.Backend, b.choice.Chosen}, {"image", run.Spec.Settings["image"], valueOf(b.conf.Image)}} {
		if c.want != c.have {
			return newFailure(exitConfig, nil, fmt.Sprintf("the %s is %q here, and %q for the coordinator", c.what, c.have, c.want), fmt.Sprintf("Set --%s.", c.what))
		}
	}
	own := map[string]string{"image": run.Spec.Settings["image"]}
	if err := b.identifyPrograms(run.Spec.Agents, own); err != nil {
		return err
	}
	for what, want := range run.Spec.Settings {
		if own[what] != want {
			return newFailure(exitConfig, nil, fmt.Sprintf("the %s is %q here, and %q for the coordinator", what, own[what], want), "Install the same version on all machines, with caisson agents install.")
		}
	}
	return nil
}

// checkTasks returns an error if this machine's requirements refuse a task of the run.
func (b *batchSession) checkTasks(run fleet.Run) error {
	for _, want := range run.Spec.Tasks {
		i := slices.IndexFunc(b.tasks, func(t task.Task) bool { return t.ID == want.ID })
		if i < 0 || len(want.Unsupported) > 0 {
			continue
		}
		if reason := b.refusal(&b.tasks[i], run.Spec.Agents); reason != "" {
			return newFailure(exitConfig, nil, want.ID+": "+reason, "Run workers where all tasks of the batch are allowed.")
		}
	}
	return nil
}

// runPrepared makes the environments of a trial's task, once, and runs the trial.
func (b *batchSession) runPrepared(ctx context.Context, t batch.Trial, dir string, budget *int64) batch.Result {
	if reason, _ := b.trials.Prepare(ctx, t.Definition); reason != "" { // Run retries what isn't ready
		return batch.Result{Outcome: batch.Infrastructure, Class: batch.Environment, Cause: reason}
	}
	return b.trials.Run(ctx, t, dir, budget)
}
