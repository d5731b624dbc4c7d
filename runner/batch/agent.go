package batch

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools/skill"
	"github.com/caisson-run/caisson/tools/workspace"
)

// maxAgentTime bounds a solution that sets no limit.
const maxAgentTime = 24 * time.Hour

// Bounds of a health check, whatever the task says. healthTime is a variable for tests.
var healthTime = 10 * time.Minute

const minHealthInterval = 100 * time.Millisecond

// sinceSlack is subtracted from the time before the first command, because the kernel
// takes the change times of files from its last tick.
const sinceSlack = 20 * time.Millisecond

func (r *trialRun) openAgent(ctx context.Context, began time.Time) error {
	definition := r.trial.Definition
	r.layer = time.Now().Add(-sinceSlack)
	r.since = r.layer
	model, err := r.newModel(ctx)
	if err != nil {
		return &infraError{Provider, err}
	}
	var mountErr error
	s, o, err := r.openSession(ctx, r.place, definition.Environment, definition.Steps[0].Agent.Network, func(o *runner.Options) {
		o.Task = definition.Steps[0].Instruction
		o.Profiles = model.Profiles
		o.Ledger = model.Ledger
		if r.place.skills != "" {
			o.Skills.Untrusted = []skill.Dir{{Path: r.place.skills, Shown: definition.Environment.SkillsDir}}
		}
		if r.trial.Agent == Oracle {
			o.Resources.CommandTime = maxAgentTime
		}
		if model.Program != nil {
			mountErr = model.Program.configure(o)
			o.Budget = limits.LowerBudget(o.Budget, definition.Steps[0].Agent.Budget)
		}
		if len(model.Profiles) > 0 || model.Program != nil {
			if own := limits.Lower(o.Budget.CostMicroUSD, o.SessionBudget.CostMicroUSD); limits.Lower(own, r.budget) == own {
				r.budget = nil
			}
			o.Budget = limits.LowerBudget(o.Budget, limits.Budget{CostMicroUSD: r.budget})
			o.SessionBudget = limits.LowerBudget(o.SessionBudget, limits.Budget{CostMicroUSD: o.Budget.CostMicroUSD})
		}
	})
	if err = errors.Join(err, mountErr); err != nil {
		if s != nil {
			s.Close()
		}
		model.Close()
		return &infraError{classOf(err), err}
	}
	r.session = s
	r.agent = o
	r.model = model
	switch {
	case len(o.Profiles) > 0:
		r.result.Model = o.Profiles[0].Model.Info().String()
	case o.Bridge != nil:
		r.result.Model = o.Bridge.Profiles[0].Model
	}
	r.result.Sessions = append(r.result.Sessions, o.Dir.Session)
	if r.place.root {
		err = uploadAll(ctx, s, uploads(upload{to: logsDir + "/agent"}, upload{to: logsDir + "/verifier"}, upload{to: logsDir + "/artifacts"}))
		// The sandbox is running. Its root may have been made since the session began,
		// and would count as changed as a whole.
		r.since = time.Now().Add(-sinceSlack)
	}
	if err == nil {
		err = r.awaitHealth(ctx, definition.Environment.HealthCheck)
	}
	r.result.Times["environment"] += time.Since(began).Milliseconds()
	return blame(r.acted, Environment, err)
}

// newModel makes the trial's model. It is empty for agents that are no models.
func (r *trialRun) newModel(ctx context.Context) (Model, error) {
	switch {
	case r.trial.Agent == Nop, r.trial.Agent == Oracle:
		return Model{Close: func() {}}, nil
	case r.o.NewModel == nil:
		return Model{}, fmt.Errorf("%w: %s", loop.ErrNoModel, r.trial.Agent)
	}
	return r.o.NewModel(ctx, r.trial.Agent)
}

func (r *trialRun) closeAgent() error {
	if r.session == nil {
		return nil
	}
	to := filepath.Join(r.dir, SessionDir)
	report, err := closeSession(r.session, r.agent, to, r.acted, StateUnreadable)
	r.session = nil
	err = errors.Join(err, runner.CloseMounts(r.agent.Mounts))
	r.model.Close()
	if r.result.Model != "" {
		r.result.setUsage(report.Usage)
	}
	if err != nil {
		return err
	}
	if patch := filepath.Join(to, PatchFile); fileExists(patch) {
		err = os.Link(patch, filepath.Join(r.dir, PatchFile))
	}
	return errors.Join(err, blame(r.acted, StateUnreadable, writeTrajectory(to, filepath.Join(r.dir, AgentDir))))
}

func writeTrajectory(session, to string) (err error) {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	s, err := trace.Find("", session+string(filepath.Separator))
	if err != nil {
		return &infraError{RecordsUnwritable, err}
	}
	name := filepath.Join(to, TrajectoryFile)
	if err := workspace.RemoveTree(name); err != nil { // the agent can have made one, even a symlink
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := trace.ATIF(f, s); err != nil {
		return &infraError{RecordsUnwritable, err}
	}
	return nil
}

// newCommand returns a command that runs in the task's working directory.
func (p place) newCommand(argv ...string) runner.UserCommand {
	if p.workdir != "" {
		argv = append([]string{"/bin/sh", "-c", `cd "$0" && exec "$@"`, p.workdir}, argv...)
	}
	return runner.UserCommand{Argv: argv}
}

// dirOf returns the task's working directory in the sandbox.
func (p place) dirOf() string {
	if p.workdir != "" {
		return p.workdir
	}
	return p.target
}

// awaitHealth runs a health check until it succeeds. h may be nil.
func (r *trialRun) awaitHealth(ctx context.Context, h *task.HealthCheck) error {
	if h == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, healthTime, fmt.Errorf("the health check %q did not succeed within %s", h.Command, healthTime))
	defer cancel()
	began, failed := time.Now(), 0
	for {
		output := limits.Tail{Size: maxTail}
		c := r.place.newCommand("/bin/sh", "-c", h.Command)
		c.Timeout = h.Timeout
		c.Stdout = &output
		c.Stderr = &output
		result, err := r.session.Exec(ctx, c)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case result.Status.Success():
			return nil
		}
		interval := h.Interval
		if time.Since(began) < h.StartPeriod {
			interval = h.StartInterval
		} else {
			failed++
		}
		if failed > h.Retries {
			return fmt.Errorf("the health check %q failed %d times: %s: %s", h.Command, failed, result.Status, strings.ToValidUTF8(output.String(), "�"))
		}
		select {
		case <-time.After(max(interval, minHealthInterval)):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *trialRun) runAgent(ctx context.Context, step *task.Step, result *StepResult, dir string) error {
	if err := r.beginStep(ctx, step); err != nil {
		return blame(r.acted, Environment, err)
	}
	began := time.Now()
	defer func() { r.result.Times["agent"] += time.Since(began).Milliseconds() }()
	switch r.trial.Agent {
	case Nop:
		return nil
	case Oracle:
		return r.runSolution(ctx, step, result, dir)
	}
	if r.model.Program != nil {
		return r.runProgram(ctx, step, result, dir)
	}
	return r.runModel(ctx, step, result)
}

// beginStep uploads a step's files and waits until the environment is healthy.
func (r *trialRun) beginStep(ctx context.Context, step *task.Step) error {
	if step.Files != "" {
		if err := uploadAll(ctx, r.session, uploads(upload{to: r.place.dirOf(), from: step.Files, executable: "setup.sh"})); err != nil {
			return err
		}
		if fileExists(filepath.Join(step.Files, "setup.sh")) {
			if err := executeCommand(ctx, r.session, "setup.sh", r.place.newCommand("./setup.sh")); err != nil {
				return err
			}
		}
	}
	return r.awaitHealth(ctx, step.HealthCheck)
}

func (r *trialRun) runSolution(ctx context.Context, step *task.Step, result *StepResult, dir string) error {
	definition := r.trial.Definition
	solution := cmp.Or(step.Solution, definition.Solution)
	if !fileExists(filepath.Join(solution, "solve.sh")) || !r.place.root {
		return &failure{class: SolutionFailed, err: errors.New("the task has no solution")}
	}
	if err := uploadAll(ctx, r.session, uploads(upload{to: solutionDir, from: solution, executable: "solve.sh"})); err != nil {
		return blame(r.acted, Environment, err)
	}
	output, err := r.createOutput(filepath.Join(dir, AgentOutputFile))
	if err != nil {
		return &infraError{Machine, err}
	}
	defer func() { _ = output.Close() }() // results need none of it
	c := r.place.newCommand("/bin/sh", "-c", "exec "+solutionDir+"/solve.sh 2>&1")
	c.Stdout = output
	c.Stderr = output
	c.Env = definition.SolutionEnv
	c.Timeout = cmp.Or(step.Agent.Time, maxAgentTime)
	r.acted = true
	ended, err := r.session.Exec(ctx, c)
	switch {
	case err != nil:
		return blame(r.acted, AgentFailed, err)
	case ended.Status.TimedOut:
		result.Limit = string(limits.KindWallTime)
	case !ended.Status.Success():
		result.Class, result.Cause = SolutionFailed, "solve.sh: "+ended.Status.String()
	}
	return nil
}

func (r *trialRun) runModel(ctx context.Context, step *task.Step, result *StepResult) error {
	budget := limits.LowerBudget(r.agent.Budget, step.Agent.Budget)
	if step.Agent.Time > 0 {
		budget = limits.LowerBudget(budget, limits.Budget{WallTime: &step.Agent.Time})
	}
	t, err := r.session.StartFor(r.agent.User, step.Instruction, runner.TurnOptions{Budget: budget})
	if limit, ok := errors.AsType[*limits.ExceededError](err); ok { // earlier steps used up what all steps may use
		return r.noteLimit(result, (*record.Limit)(limit), nil)
	}
	if fault, ok := errors.AsType[runner.Fault](err); ok && fault.Kind == runner.FaultInvalidLimits { // the task's
		return &infraError{Machine, err}
	}
	if err != nil {
		return r.blameTurn(Machine, err)
	}
	report, _ := t.Wait(ctx) // the report's reason is more exact than the error
	r.acted = r.acted || report.Usage.ToolCalls > 0 && r.session.Status().Attestation != nil
	switch report.Reason {
	case loop.StopAnswered:
		return nil
	case loop.StopLimit:
		// The first prompt alone can be above a rate limit. What an agent has read or said, also in
		// earlier steps, is its own doing.
		if e, ok := errors.AsType[*loop.ModelError](report.Err); ok && e.Status == http.StatusTooManyRequests && len(r.steps) == 0 && report.Usage.ToolCalls == 0 {
			return &infraError{Provider, report.Err}
		}
		return r.noteLimit(result, report.Limit, step.Agent.Budget.CostMicroUSD)
	case loop.StopStuck, loop.StopNoApprover:
		result.Class, result.Cause = AgentFailed, string(report.Reason)
		return nil
	}
	if report.Err == nil {
		report.Err = errors.New(string(report.Reason))
	}
	if r.isOwnFault(report.Err) { // otherwise a model could provoke another attempt by what it says
		result.Class, result.Cause = AgentFailed, report.Err.Error()
		return nil
	}
	switch report.Reason {
	case loop.StopProviderFailed:
		if errors.As(report.Err, new(*loop.ModelError)) {
			return &infraError{Provider, report.Err}
		}
		return r.blameTurn(Provider, report.Err) // perhaps a call failed, not the provider
	case loop.StopAuth:
		return &infraError{ProviderAuth, report.Err}
	case loop.StopSandboxStart:
		return blame(r.acted, SandboxStart, report.Err)
	case loop.StopSandboxLost:
		return blame(r.acted, SandboxLost, report.Err)
	case loop.StopTraceUnwritable:
		return &infraError{RecordsUnwritable, report.Err}
	}
	return r.blameTurn(Machine, report.Err)
}

// blameTurn returns a turn's error. Once one of the agent's commands has run, the agent
// may have caused it. Before that, it is the infrastructure's, with the given class.
func (r *trialRun) blameTurn(class Class, err error) error {
	if !r.acted {
		return &infraError{class, err}
	}
	return blame(true, AgentFailed, err)
}

// isOwnFault reports whether a turn failed because of what the agent said: an answer
// that its provider could not parse, even before its first command, or, after a command
// has run, a conversation that the provider refuses as malformed or for its content
// (403). Before that, the request is entirely the harness's.
func (r *trialRun) isOwnFault(err error) bool {
	if errors.As(err, new(loop.AnswerError)) {
		return true
	}
	refused, ok := errors.AsType[*loop.ModelError](err)
	switch {
	case !ok || !r.acted:
		return false
	case refused.Class == loop.ModelAuth:
		return refused.Status == http.StatusForbidden
	}
	return refused.Class == loop.ModelInvalidRequest &&
		slices.Contains([]int{0, http.StatusBadRequest, http.StatusUnprocessableEntity}, refused.Status) // 0: it can't be encoded
}

// noteLimit notes the limit that ended the agent's turn. It returns an error if the
// limit is not the trial's own. bound is the task's cost limit for the turn, or nil.
func (r *trialRun) noteLimit(result *StepResult, l *record.Limit, bound *int64) error {
	switch {
	case l == nil:
		result.Limit = "unknown"
	case l.Period != "":
		return &infraError{Ceiling, errors.New(l.String())}
	case l.Kind == limits.KindCost && r.budget != nil && (bound == nil || l.Limit != *bound):
		return &quotaError{"too little was left of what all trials together may cost: " + l.String()}
	default:
		result.Limit = string(l.Kind)
	}
	return nil
}

// clockSetBack returns how much a clock that advanced by wall in the elapsed time was
// set back, or 0. Files that changed after that would have change times before the
// session, if it is more than sinceSlack.
func clockSetBack(wall, elapsed time.Duration) time.Duration {
	if elapsed-wall < sinceSlack {
		return 0
	}
	return (elapsed - wall).Round(time.Millisecond)
}

// collectState saves what the agent left: the state that the verifier starts from, logs
// and artifacts. If the agent may have caused an error, it is the agent's failure.
func (r *trialRun) collectState(ctx context.Context, step *task.Step, dir string, left *leftOut) error {
	for _, c := range step.Verifier.Collect {
		run := r.place.newCommand("/bin/sh", "-c", c.Command)
		run.Timeout = c.Time
		if _, err := r.session.Exec(ctx, run); err != nil {
			return blame(r.acted, StateUnreadable, err)
		}
	}
	r.session.EndBackground() // background commands could change files while they are read
	now := time.Now()
	if back := clockSetBack(now.Round(0).Sub(r.since.Round(0)), now.Sub(r.since)); back > 0 {
		return &infraError{Machine, fmt.Errorf("the machine's clock was set back by %s while the agent worked, so that what it changed can't be found", back)}
	}
	state := filepath.Join(dir, StateFile)
	err := saveState(ctx, r.session, r.since, r.layer, r.place.changedDirs(), state)
	if err == nil && r.place.root {
		isDeclared := func(h *tar.Header) bool { return isOfArtifact(step.Artifacts, r.place.dirOf(), h) }
		err = errors.Join(
			extractState(ctx, state, logsDir+"/agent", filepath.Join(dir, AgentDir), nil, left),
			extractState(ctx, state, logsDir+"/artifacts", filepath.Join(dir, ArtifactsDir), isDeclared, left),
		)
	}
	for _, a := range step.Artifacts {
		if err != nil {
			break
		}
		err = downloadPath(ctx, r.session, a.Path(r.place.dirOf()), a.Name(), filepath.Join(dir, ArtifactsDir), a.Exclude, left)
	}
	if err == nil && r.trial.Definition.MultiStep { // the session continues
		err = writeTrajectory(r.agent.Dir.Path, filepath.Join(dir, AgentDir))
	}
	return blame(r.acted, StateUnreadable, err)
}
