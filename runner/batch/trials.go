package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/runner/ledger"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Paths in the sandboxes of tasks with their own image.
const (
	logsDir     = "/logs"
	testsDir    = "/tests"
	solutionDir = "/solution"
)

// Files and directories in a trial's directory.
const (
	AgentDir     = "agent"     // the agent's /logs/agent, with TrajectoryFile
	VerifierDir  = "verifier"  // the verifier's /logs/verifier, with its output
	ArtifactsDir = "artifacts" // /logs/artifacts, and the task's artifacts
	// SessionDir has the records of the agent's session, VerifierSessionDir the
	// verifier's.
	SessionDir         = "session"
	VerifierSessionDir = "verifier-session"
	// ControlDir has VerifierDir and VerifierSessionDir of a run without the agent's
	// files.
	ControlDir      = "control"
	TrajectoryFile  = "trajectory.json" // ATIF
	PatchFile       = "workspace.patch" // unified diff of the working directory
	StateFile       = "state.tar"       // the agent's changes, for the verifier
	OutputFile      = "test-stdout.txt"
	AgentOutputFile = "output.txt" // the oracle's solution's
	// StepsDir has a directory for each step, with its VerifierDir and StateFile.
	StepsDir = "steps"
)

// TrialOptions configures [NewTrials]. StateDir, WorkDir, Session, Images and
// DefaultImage are required.
type TrialOptions struct {
	// StateDir is the backend's state directory. Sessions are in it until their trial
	// has ended. WorkDir is for tasks' workspaces, which no trial changes.
	StateDir, WorkDir string
	// Session has what all sessions share: the backend and its choice, default
	// resources, bounds on the network, policy, tools, instructions, each trial's
	// budget, version and secrets. Other fields are set for each session. Tasks decide
	// what may be reached.
	Session runner.Options
	Images  ImageStore
	// DefaultImage is for tasks that name none.
	DefaultImage images.Reference
	// GitEnv is the environment, as NAME=value, for fetching workspaces with git.
	GitEnv []string
	// NewModel makes an agent's model for one trial. It may be nil.
	NewModel func(ctx context.Context, agent string) (Model, error)
}

// Model is the model for one trial, or another agent with its models.
type Model struct {
	Profiles []loop.Profile
	// Program is an agent that runs in the sandbox, instead of Caisson's own with
	// Profiles; nil for none.
	Program *Program
	// Ledger has daily and monthly ceilings; it may be nil.
	Ledger *ledger.Ledger
	// Close closes both after the trial.
	Close func()
}

// Trials runs trials in sandboxes. It is safe for concurrent use.
type Trials struct {
	o        TrialOptions
	places   places
	redactor *redact.Redactor
}

// NewTrials returns a Trials. It starts nothing.
func NewTrials(o TrialOptions) *Trials {
	return &Trials{o: o, redactor: redact.New(o.Session.Secrets), places: places{images: o.Images, def: o.DefaultImage, dir: o.WorkDir, gitEnv: o.GitEnv, made: map[string]*preparation{}}}
}

// Prepare makes a task's environments unless they exist. It returns a reason if the
// task can't run on what it finds, such as an image with a user other than root, and an
// error if an environment can't be made now.
func (t *Trials) Prepare(ctx context.Context, definition *task.Task) (reason string, err error) {
	for _, e := range definition.Environments() {
		p, err := t.places.preparePlace(ctx, e)
		if err != nil {
			return "", err
		}
		if !e.Root || p.image.Scheme == images.SchemeHost {
			continue
		}
		im, err := t.o.Images.Resolve(ctx, p.image)
		if err != nil {
			return "", err
		}
		if user, _, _ := strings.Cut(im.Config.User, ":"); user != "" && user != "root" && user != "0" {
			return fmt.Sprintf("its image runs as user %q", im.Config.User), nil
		}
	}
	return "", nil
}

// Run implements [RunTrial].
func (t *Trials) Run(ctx context.Context, trial Trial, dir string, budget *int64) Result {
	r := &trialRun{Trials: t, trial: trial, dir: dir, budget: budget, result: Result{Times: map[string]int64{}}}
	err := r.runSteps(ctx)
	if ctx.Err() != nil {
		r.result.Outcome = Cancelled
		return r.result
	}
	r.setOutcome(err)
	r.redactCauses()
	return r.result
}

// redactCauses removes secrets from causes, which can contain output of a task's
// commands.
func (r *trialRun) redactCauses() {
	clean := func(cause *string) { *cause = string(r.redactor.Bytes([]byte(*cause))) }
	clean(&r.result.Cause)
	for i := range r.result.Steps {
		clean(&r.result.Steps[i].Cause)
	}
}

type trialRun struct {
	*Trials
	trial Trial
	dir   string
	// budget is what all trials together may still cost. It is nil if there is no
	// bound, or if the trial's own is lower.
	budget *int64
	result Result

	place place
	// since is a time before the agent's first command, and layer one before its
	// sandbox was made.
	since, layer time.Time
	// acted reports whether a command of the agent has run.
	acted   bool
	session *runner.Session
	agent   *runner.Options
	model   Model
	steps   []StepResult
}

type infraError struct {
	class Class
	err   error
}

func (e *infraError) Error() string { return e.err.Error() }
func (e *infraError) Unwrap() error { return e.err }

// quotaError means that a limit on all trials together ended the trial. It says nothing
// about the agent.
type quotaError struct{ limit string }

func (e *quotaError) Error() string { return e.limit }

// failure is a reason for a failed trial that is the agent's or the task's. If it is
// suspect, it says nothing about the agent.
type failure struct {
	class   Class
	err     error
	suspect bool
}

func (e *failure) Error() string { return e.err.Error() }
func (e *failure) Unwrap() error { return e.err }

// blame classifies an error in a sandbox. Once a command of the agent has run, the
// agent may have caused the error, so it is the agent's failure. Before that it is the
// infrastructure's. Errors of records and of this machine's disks are always the
// infrastructure's.
func blame(acted bool, class Class, err error) error {
	if err == nil || errors.As(err, new(*infraError)) || errors.As(err, new(*failure)) {
		return err
	}
	of := classOf(err)
	switch {
	case isDiskFault(err):
		return &infraError{Machine, err}
	case of == Machine && !acted:
		return &infraError{Environment, err}
	case of == RecordsUnwritable, !acted:
		return &infraError{of, err}
	case of != Machine:
		class = of
	}
	return &failure{class: class, err: err}
}

func (r *trialRun) setOutcome(err error) {
	out := &r.result
	var infra *infraError
	var failed *failure
	var quota *quotaError
	switch {
	case errors.As(err, &quota):
		out.Outcome, out.Cause = NotRun, quota.limit
		return
	case errors.As(err, &infra):
		out.Outcome = Infrastructure
		out.Class = infra.class
		out.Cause = infra.Error()
		out.fault = err
		return
	case errors.As(err, &failed) && failed.suspect: // its step has the class, unless an earlier one failed
	case failed != nil:
		out.Class, out.Cause = failed.class, failed.Error()
		if limit, ok := errors.AsType[*limits.ExceededError](err); ok {
			out.Limit = string(limit.Kind)
		}
	case err != nil:
		out.Outcome = Infrastructure
		out.Class = classOf(err)
		out.Cause = err.Error()
		out.fault = err
		return
	}
	definition := r.trial.Definition
	if definition.MultiStep {
		out.Steps, out.Rewards = r.steps, combineRewards(definition.Strategy, r.steps, len(definition.Steps))
	} else if len(r.steps) > 0 {
		out.Rewards = r.steps[0].Rewards
	}
	for _, s := range r.steps {
		if !definition.MultiStep {
			out.LeftOut = s.LeftOut
		}
		out.Limit = cmp.Or(out.Limit, s.Limit)
		if out.Class == "" && s.Class != "" {
			out.Class, out.Cause = s.Class, s.Cause
		}
	}
	if failed != nil && failed.suspect && out.Class == "" { // as when grading again: the agent never reached the next step
		out.Class, out.Cause = failed.class, failed.Error()
	}
	if out.Rewards != nil {
		out.Reward = new(mainReward(out.Rewards))
	}
	switch {
	case failed != nil && failed.suspect && out.Class == failed.class:
		out.Outcome = Suspect
	case isPass(out.Rewards) && out.Class == "":
		out.Outcome = Passed
	case out.Limit != "":
		out.Outcome = Limit
	default:
		out.Outcome = Failed
	}
}

func classOf(err error) Class {
	command, _ := errors.AsType[*runner.UserCommandError](err)
	switch {
	case command != nil && command.Kind == runner.FaultSandboxStart:
		return SandboxStart
	case errors.Is(err, sandbox.ErrLost), command != nil && slices.Contains([]runner.FaultKind{runner.FaultCommandLost, runner.FaultReplaced, runner.FaultSandboxLost}, command.Kind):
		return SandboxLost
	case errors.As(err, new(*state.DirError)), command != nil && command.Kind == runner.FaultRecords:
		return RecordsUnwritable
	}
	return Machine
}

func (r *trialRun) runSteps(ctx context.Context) error {
	definition := r.trial.Definition
	r.result.Backend = r.o.Session.Choice.Chosen
	began := time.Now()
	var err error
	if r.place, err = r.places.preparePlace(ctx, definition.Environment); err != nil {
		return &infraError{ImageUnavailable, err}
	}
	r.result.Image = r.place.id
	err = r.openAgent(ctx, began)
	more := true
	for i := range definition.Steps {
		if err != nil || !more {
			break
		}
		more, err = r.runStep(ctx, i)
	}
	return errors.Join(err, r.closeAgent())
}

func (r *trialRun) stepDir(i int) string {
	if !r.trial.Definition.MultiStep {
		return r.dir
	}
	return filepath.Join(r.dir, StepsDir, fmt.Sprintf("%d-%s", i+1, safeName(r.trial.Definition.Steps[i].Name, 100)))
}

// runStep runs a step's agent and verifier, and reports whether the next step begins.
func (r *trialRun) runStep(ctx context.Context, i int) (more bool, err error) {
	definition := r.trial.Definition
	step, last := &definition.Steps[i], i+1 == len(definition.Steps)
	result := StepResult{Name: step.Name}
	dir := r.stepDir(i)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, &infraError{Machine, err}
	}
	err = r.runAgent(ctx, step, &result, dir)
	var left leftOut
	if err == nil {
		err = r.collectState(ctx, step, dir, &left)
	}
	result.LeftOut = left.names
	if err != nil {
		_ = result.note(err) // it ends the trial
		r.steps = append(r.steps, result)
		return false, err
	}
	began := time.Now()
	v := verification{Trials: r.Trials, trial: r.trial, step: step, dir: dir, place: r.place, acted: r.acted}
	if last { // its sandbox ends while the verifier's starts
		closed := make(chan error, 1)
		v.agentClosed = sync.OnceValue(func() error { return <-closed })
		go func() { closed <- r.closeAgent() }()
	}
	err = v.verifyStep(ctx)
	if last {
		if closeErr := v.agentClosed(); closeErr != nil {
			err = closeErr
		}
	}
	r.result.Times["verifier"] += time.Since(began).Milliseconds()
	r.result.Sessions = append(r.result.Sessions, v.sessions...)
	result.LeftOut = append(left.names, v.left.names...)
	result.Rewards = v.rewards
	if isPass(v.rewards) {
		result.Class, result.Cause = "", "" // the verifier decides how the agent did
	}
	err = result.note(err)
	if err == nil && len(step.MinReward) > 0 && !last && !meetsMinimum(v.rewards, step.MinReward) {
		result.Class = MinRewardNotMet
		result.Cause = fmt.Sprintf("step %s stayed below its least reward", step.Name)
		last = true
	}
	r.steps = append(r.steps, result)
	return err == nil && !last, err
}

// note notes why a step failed. It returns the error if that ends the trial.
func (s *StepResult) note(err error) error {
	failed, ok := errors.AsType[*failure](err)
	if !ok {
		return err
	}
	s.Class, s.Cause = failed.class, failed.Error()
	if failed.suspect {
		return err
	}
	return nil
}

func (t *Trials) openSession(ctx context.Context, p place, e task.Environment, n task.Network, change func(o *runner.Options)) (*runner.Session, *runner.Options, error) {
	o := t.o.Session
	dir, err := sessiondir.Create(t.o.StateDir, o.Secrets)
	if err != nil {
		return nil, nil, err
	}
	work, err := runner.OpenWorkspace(p.workspace, runner.Protected{AcceptSystem: true})
	if err != nil {
		return nil, nil, errors.Join(err, dir.Close())
	}
	o.Dir = dir
	o.Workspace = work
	o.Image = p.image
	o.ImageName = p.name
	o.Target = p.target
	o.Mode = sandbox.ModeOverlay
	o.Apply = false
	o.Env = slices.Concat(o.Env, e.Env)
	o.Egress = egressOptions(o.Egress, n)
	if p.root {
		o.Root, o.Setup.User = sandbox.RootEphemeral, sandbox.UserRoot
	}
	if e.MemoryBytes > 0 {
		o.Resources.MemoryBytes = max(e.MemoryBytes, limits.MinMemoryBytes)
	}
	if e.MilliCPUs > 0 {
		o.Resources.MilliCPUs = e.MilliCPUs
	}
	change(&o)
	s, err := runner.Open(ctx, o)
	if err != nil {
		return nil, nil, errors.Join(err, work.Close(), dir.Close())
	}
	return s, &o, nil
}

// closeSession ends a session and moves its records to a directory. Once a command of
// the agent has run, class is the class for what can't be ended or removed.
func closeSession(s *runner.Session, o *runner.Options, to string, acted bool, class Class) (runner.Report, error) {
	report := s.Close()
	err := errors.Join(o.Workspace.Close(), sessiondir.DiscardChanges(report.Dir, ""), o.Dir.Close())
	if err == nil {
		if err := errors.Join(workspace.RemoveTree(to), os.Rename(report.Dir, to)); err != nil {
			return report, &infraError{Machine, fmt.Errorf("keep the records of a session: %w", err)}
		}
		if report.Problem != nil && len(report.Left) > 0 {
			err = errors.New(report.Problem.Cause)
		}
	}
	if err != nil && !acted {
		return report, &infraError{Machine, fmt.Errorf("end a session: %w", err)}
	}
	return report, blame(acted, class, err)
}

// egressOptions returns the options for what the task's network and the common options
// both allow.
func egressOptions(o runner.EgressOptions, n task.Network) runner.EgressOptions {
	if n.Mode != task.Public && n.Mode != task.AllowList {
		return runner.EgressOptions{}
	}
	if o.Policy == nil {
		o = runner.EgressOptions{Policy: &rule.Policy{}, Capture: true}
	}
	p := *o.Policy
	p.Allow = n.Rules
	if n.Mode == task.Public {
		public, err := rule.ParseEgress("public")
		if err != nil {
			panic(err) // the rule has no parts
		}
		p.Allow = []rule.Rule{public}
	}
	o.Policy = &p
	return o
}

// fileExists reports whether anything has this path, even a dangling symlink.
func fileExists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
