package batch

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/runner/bridge"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
)

// Program is an agent that is a program in the sandbox and asks its model through the
// bridge. The verifier has neither.
type Program struct {
	// Bridge is as in [runner.ModelOptions], Mounts has the program's directory, and
	// Secrets are the keys of its models.
	Bridge  *bridge.Options
	Mounts  []runner.UserMount
	Secrets []redact.Secret
	// Commands returns the commands that have it follow an instruction in a directory of
	// the sandbox, with another one as its home. The last one is the agent.
	Commands func(instruction, dir, home string) ([]runner.UserCommand, error)
}

// configure adds the program to a session's options.
func (p *Program) configure(o *runner.Options) (err error) {
	o.Bridge = p.Bridge
	o.Secrets = append(slices.Clip(o.Secrets), p.Secrets...)
	o.Mounts, err = runner.OpenMounts(p.Mounts, o.Workspace, o.Target, o.Mode, runner.Protected{})
	return err
}

// runProgram has the agent's program follow a step's instruction. Its exit status is no
// failure: the verifier judges what it has done.
func (r *trialRun) runProgram(ctx context.Context, step *task.Step, result *StepResult, dir string) error {
	commands, err := r.model.Program.Commands(step.Instruction, r.place.dirOf(), r.place.home())
	if err != nil {
		return &infraError{Machine, err}
	}
	output, err := r.createOutput(filepath.Join(dir, AgentOutputFile))
	if err != nil {
		return &infraError{Machine, err}
	}
	defer func() { _ = output.Close() }() // results need none of it
	last := len(commands) - 1
	var ended runner.UserResult
	for i, c := range commands {
		if i == last {
			c.Argv = r.place.newCommand(c.Argv...).Argv
			c.Timeout = cmp.Or(step.Agent.Time, c.Timeout)
			r.acted = true
		}
		c.Stdout, c.Stderr = output, output
		ended, err = r.session.Exec(ctx, c)
		if err != nil {
			return blame(r.acted, AgentFailed, err)
		}
		if i < last && !ended.Status.Success() {
			return blame(r.acted, Environment, errors.New("the files of the agent can't be written: "+ended.Status.String()))
		}
	}
	asked := r.session.BridgeState()
	switch {
	case asked.Limit != nil && !asked.Exhausted: // a request was too large for what is left
		result.Limit = string(asked.Limit.Kind)
	case asked.Limit != nil:
		return r.noteLimit(result, (*record.Limit)(asked.Limit), step.Agent.Budget.CostMicroUSD)
	case ended.Status.TimedOut:
		result.Limit = string(limits.KindWallTime)
	// Once a model has been used, or by a request that is refused, the agent can make its
	// provider fail.
	case !ended.Status.Success() && asked.Usage.Tokens() == 0 && asked.Answered == 0 && asked.Failed > 0 && isOutage(asked.LastStatus):
		class := Provider
		if asked.LastStatus == http.StatusUnauthorized {
			class = ProviderAuth
		}
		return &infraError{class, errors.New("the provider answered none of the agent's requests: " + asked.LastFailure)}
	}
	return nil
}

// isOutage reports whether a provider's last failure can't be because of the request.
func isOutage(status int) bool {
	return status == 0 || status == http.StatusUnauthorized || status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
}
