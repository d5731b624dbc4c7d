package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/cmd/caisson/internal/batchui"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/runner/closers"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/oci"
	"github.com/caisson-run/caisson/tools/workspace"
)

// workDir is the subdirectory with the workspaces of a batch's tasks while it runs.
const workDir = "work"

type batchSession struct {
	*backends
	app    *app
	flags  *batchFlags
	user   environ // with the user's own state directory, which counts ceilings
	out    string
	ledger *batch.Ledger
	tasks  []task.Task
	agents []string
	shard  batch.Shard
	trials *batch.Trials
	// resources are for trials whose task names none.
	resources limits.Resources
	choice    record.BackendChoice
	say       func(text string)
}

// openBatch makes everything that trials need. The state of their sandboxes is in the
// batch's directory, so that the next command finds what a killed batch left there, and
// touches nothing else. When force is closed, sandboxes are killed at once.
func openBatch(ctx context.Context, a *app, force <-chan struct{}, f *batchFlags, tasks []task.Task, out string) (_ *batchSession, err error) {
	out, err = filepath.Abs(out)
	if err != nil {
		return nil, err
	}
	s, err := loadBatchSettings(a, f.Settings, f.Profile, out)
	if err == nil {
		err = f.checkVariables(s.conf.Requirements)
	}
	if err != nil {
		return nil, err
	}
	ledger, err := batch.LockLedger(out)
	if err != nil {
		return nil, explain(err, ledgerFaults)
	}
	var undo closers.Stack
	defer undo.CloseOnError(&err)
	undo.PushFunc(func() { _ = ledger.Close() }) // nothing is in it
	user, state := s.environ, filepath.Join(out, stateDir)
	a.warnOfState(state)
	made, err := user.claimState(state)
	if made {
		undo.Push(func() error { return workspace.RemoveTree(state) }) // it is empty too
	}
	if err != nil {
		return nil, fmt.Errorf("make the state directory of the batch: %w", err)
	}
	s.environ = append(slices.Clip(slices.Clone(user)), "XDG_STATE_HOME="+state)
	bs, err := openBackends(s, nil)
	if err != nil {
		return nil, err
	}
	undo.PushFunc(bs.close)
	b := &batchSession{backends: bs, ledger: ledger, app: a, flags: f, user: user, out: out, tasks: tasks, say: a.warn}
	b.host.SetLogger(zap.NewNop())
	if b.trials, err = b.newTrials(ctx, force); err != nil {
		return nil, err
	}
	return b, nil
}

// chooseBackend chooses one backend for all trials.
func (b *batchSession) chooseBackend(ctx context.Context) (sandbox.Creator, error) {
	name := *b.conf.Backend
	if (name == "" || name == "auto") && slices.ContainsFunc(b.tasks, func(t task.Task) bool { return t.Environment.Root }) {
		name = string(oci.GVisor)
	}
	backend, choice, err := b.host.Choose(ctx, name, b.say)
	b.choice = choice
	return backend, err
}

func (b *batchSession) newTrials(ctx context.Context, force <-chan struct{}) (*batch.Trials, error) {
	image, err := b.parseImage()
	if err != nil {
		return nil, err
	}
	session, err := b.commonOptions(image, "ci", "")
	if err != nil {
		return nil, err
	}
	session.Root, session.Setup.User, session.Service = "", "", nil // the task decides
	// A task's author may want what the user's own sessions get, so the variables that trials
	// get, and what their models fetch, are named for this batch.
	named := slices.Concat(b.flags.Settings.EnvFrom, b.flags.Settings.MoreEnvFrom)
	session.Env = slices.DeleteFunc(session.Env, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(b.conf.EnvFrom, name) && !slices.Contains(named, name)
	})
	if b.flags.Settings.Fetch.Allow == nil {
		session.Fetch = runner.FetchOptions{}
	}
	b.resources = session.Resources
	if session.Egress, err = b.conf.TaskEgress(); err != nil {
		return nil, err
	}
	store, err := b.openImages(ctx)
	if err != nil {
		return nil, err
	}
	if session.Backend, err = b.chooseBackend(ctx); err != nil {
		return nil, err
	}
	session.Choice = b.choice
	session.Secrets = slices.Concat(b.knownSecrets(), environSecrets(b.user, b.flags.TaskEnv...))
	session.Force = force
	return batch.NewTrials(batch.TrialOptions{
		Session: session, StateDir: b.environ.stateDir(), WorkDir: filepath.Join(b.out, workDir), Images: store, DefaultImage: image, NewModel: b.newModel, GitEnv: gitEnviron(b.environ),
	}), nil
}

// checkVariables checks that tasks may get the variables of this machine that --task-env names.
func (f *batchFlags) checkVariables(r config.Requirements) error {
	for _, name := range f.TaskEnv {
		if !r.AllowsVariable(name) {
			return &config.Error{Where: "requirements", Message: "--task-env " + name + " is not allowed on this machine", Hint: "choose what the administrator's file allows (env_from)"}
		}
	}
	return nil
}

// refusal returns why the administrator's requirements refuse a task for some of the
// agents, or "".
func (b *batchSession) refusal(t *task.Task, agents []string) string {
	r := b.conf.Requirements
	for _, e := range t.Environments() {
		if reason := environmentRefusal(r, e); reason != "" {
			return reason
		}
	}
	isCommand := func(agent string) bool {
		_, _, isProgram := b.parseAgent(agent)
		return isProgram || agent == batch.Oracle
	}
	// A verifier or agent that has less time than its task says would be blamed for it.
	most, longest := r.Resources.CommandTime, t.LongestCommand(slices.ContainsFunc(agents, isCommand))
	if most != nil && longest > time.Duration(*most) {
		return fmt.Sprintf("its command time of %s is more than this machine allows (requirements)", longest)
	}
	return ""
}

func environmentRefusal(r config.Requirements, e task.Environment) string {
	ref, err := images.ParseReference(e.Image)
	switch {
	case e.Image != "" && !(r.AllowsImage(e.Image) && (err != nil || r.AllowsImage(ref.String()))):
		return "image " + e.Image + " is not allowed on this machine (requirements)"
	case e.Root && (r.RefuseWritableRoot || r.User != nil && *r.User != string(sandbox.UserRoot)):
		return "root on a writable root is not allowed on this machine (requirements)"
	case r.Resources.Memory != nil && e.MemoryBytes > int64(*r.Resources.Memory):
		return fmt.Sprintf("its memory of %s is more than this machine allows (requirements)", limits.FormatSize(e.MemoryBytes))
	case r.Resources.CPUs != nil && e.MilliCPUs > int64(*r.Resources.CPUs):
		return fmt.Sprintf("%g processors are more than this machine allows (requirements)", float64(e.MilliCPUs)/1000)
	}
	return ""
}

// findAgents returns the batch's agents, or the configuration's model if there are none.
// It fails if a model can't be made.
func (b *batchSession) findAgents(agents []string) ([]string, error) {
	if len(agents) == 0 {
		selected, err := b.conf.SelectModels(b.user)
		if err != nil {
			return nil, noModel(err)
		}
		agents = []string{cmp.Or(valueOf(b.conf.Model), selected[0].Profile)}
	}
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

// findCapacity returns what all trials may use together: nine tenths of the memory and
// of the free disk.
func (b *batchSession) findCapacity() batch.Capacity {
	c := batch.Capacity{Trials: cmp.Or(b.flags.Parallel, runtime.GOMAXPROCS(0)), MilliCPUs: int64(runtime.GOMAXPROCS(0)) * 1000, MemoryBytes: machineMemory() / 10 * 9}
	if free := freeDisk(b.out); free > 0 {
		c.StorageBytes = free / 10 * 9
	}
	return c
}

// prepareTasks makes the environments of tasks that have trials in this shard, and
// marks those that can't run here. If an environment can't be made now, its trials
// fail.
func (b *batchSession) prepareTasks(ctx context.Context) {
	capacity := b.findCapacity()
	for i := range b.tasks {
		t := &b.tasks[i]
		if ctx.Err() != nil {
			return
		}
		if len(t.Unsupported) > 0 {
			continue
		}
		if reason := b.refusal(t, b.agents); reason != "" {
			t.Unsupported = append(t.Unsupported, reason)
			continue
		}
		if len(batch.Plan(b.tasks[i:i+1], []string{batch.Nop}, b.flags.Attempts, b.shard)) == 0 {
			continue
		}
		b.setNeeds(t)
		if err := capacity.Check(t.Environment); err != nil {
			t.Unsupported = append(t.Unsupported, err.Error())
			continue
		}
		reason, err := b.trials.Prepare(ctx, t)
		if err != nil {
			b.say(makeSafe(fmt.Sprintf("%s: the environment is not ready: %v", t.ID, err)))
		}
		if reason != "" {
			t.Unsupported = append(t.Unsupported, reason)
		}
	}
}

// setNeeds sets a trial's needs that its task doesn't name.
func (b *batchSession) setNeeds(t *task.Task) {
	if t.Environment.MemoryBytes == 0 {
		t.Environment.MemoryBytes = b.resources.MemoryBytes
	}
	if t.Environment.MilliCPUs == 0 {
		t.Environment.MilliCPUs = min(b.resources.MilliCPUs, 1000)
	}
}

// load loads the ledger, reports repairs, and removes what a killed batch left.
func (b *batchSession) load(ctx context.Context, spec batch.Spec) error {
	if err := b.loadLedger(spec); err != nil {
		return err
	}
	return b.sweepDead(ctx)
}

func (b *batchSession) loadLedger(spec batch.Spec) error {
	if err := b.ledger.Load(spec); err != nil {
		return explain(err, ledgerFaults)
	}
	for _, text := range batchui.DescribeRepairs(b.ledger.Repairs()) {
		b.say(text)
	}
	return nil
}

// columnsFunc returns the terminal's width, or nil if standard error is no terminal.
func (b *batchSession) columnsFunc() func() int {
	if !b.app.terminal(b.app.stderr) {
		return nil
	}
	return func() int {
		columns, _ := b.app.size()
		return columns
	}
}

// sweepDead removes the sandboxes and sessions that a killed batch left. No other
// process uses the directory.
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
		if err := workspace.RemoveTree(filepath.Join(state, name)); err != nil {
			return fmt.Errorf("remove what a killed batch left: %w", err)
		}
	}
	return nil
}

// closeBatch removes what no later command needs, closes the backends and unlocks the
// directory. It keeps the state directory if a sandbox could not be removed entirely.
func (b *batchSession) closeBatch() error {
	err := workspace.RemoveTree(filepath.Join(b.out, workDir))
	ctx := context.Background() // also after an interruption
	if _, left := b.host.Sweep(ctx); left == nil {
		err = errors.Join(err, workspace.RemoveTree(filepath.Join(b.out, stateDir)))
	}
	b.backends.close()
	return errors.Join(err, b.ledger.Close())
}

// freeDisk returns the free bytes on the disk of a directory that may not exist yet, 0
// if unknown.
func freeDisk(dir string) int64 {
	for ; ; dir = filepath.Dir(dir) {
		var fs syscall.Statfs_t
		if err := syscall.Statfs(dir, &fs); err == nil {
			return int64(fs.Bavail) * int64(fs.Bsize) //nolint:unconvert // their types differ between systems
		}
		if dir == filepath.Dir(dir) {
			return 0
		}
	}
}
