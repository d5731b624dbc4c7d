package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/agents"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/bridge"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
)

// agentTime bounds a run of an agent whose definition has no timeout.
const agentTime = time.Hour

// agentRun is an agent with its program and its models.
type agentRun struct {
	agents.Agent
	program agents.Program
	models  map[string]config.SelectedModel
}

// findProgram returns an agent without its models. conf are its settings. Commands in the
// sandbox can write to workspace, if it isn't "".
func (s *settings) findProgram(conf *config.Config, name, workspace string) (*agentRun, error) {
	agent, err := agents.New(conf, name)
	if err != nil {
		return nil, err
	}
	r := &agentRun{Agent: agent}
	if r.program, err = s.agentFinder(workspace).Find(agent); err != nil {
		return nil, missingAgent(agent, err)
	}
	return r, nil
}

// findAgent is findProgram with the agent's models and their keys.
func (s *settings) findAgent(ctx context.Context, conf *config.Config, name, workspace string) (*agentRun, error) {
	r, err := s.findProgram(conf, name, workspace)
	if err != nil {
		return nil, err
	}
	if r.models, err = conf.SelectAgentModels(name, s.environ); err != nil {
		return nil, noModel(err)
	}
	selected := r.selected()
	if err := s.readKeys(ctx, selected, workspace); err != nil {
		return nil, err
	}
	for asked, m := range r.models {
		m.APIKey = selected[slices.IndexFunc(selected, func(o config.SelectedModel) bool { return o.Profile == m.Profile })].APIKey
		if m.APIKey == "" && m.KeyNeeded {
			return nil, noKey(m)
		}
		r.models[asked] = m
	}
	return r, nil
}

// mounts returns the directory of an agent's program, if it isn't in the image.
func (r *agentRun) mounts() []runner.UserMount {
	if r.program.Mount == nil {
		return nil
	}
	return []runner.UserMount{*r.program.Mount}
}

// selected returns the models of an agent, each once.
func (r *agentRun) selected() []config.SelectedModel {
	var out []config.SelectedModel
	for _, m := range r.models {
		if !slices.ContainsFunc(out, func(o config.SelectedModel) bool { return o.Profile == m.Profile }) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b config.SelectedModel) int { return strings.Compare(a.Profile, b.Profile) })
	return out
}

// bridge returns the options of the bridge through which an agent asks its models.
func (r *agentRun) bridge() (*bridge.Options, error) {
	o := &bridge.Options{Models: map[string]string{}, WebSearch: valueOf(r.WebSearch)}
	for asked, m := range r.models {
		o.Models[asked] = m.Profile
	}
	for _, m := range r.selected() {
		p, err := bridgeProfile(m, bridge.Protocol(*r.Protocol))
		if err != nil {
			return nil, newFailure(exitConfig, err, fmt.Sprintf("the model %s can't be used: %v", m.Profile, err), "Check its base_url under models.")
		}
		o.Profiles = append(o.Profiles, p)
	}
	return o, nil
}

func bridgeProfile(m config.SelectedModel, protocol bridge.Protocol) (bridge.Profile, error) {
	address := strings.TrimSuffix(m.Address(), "/")
	switch protocol { // as each provider's own clients take it
	case bridge.Anthropic:
		address = strings.TrimSuffix(address, "/v1")
	case bridge.Gemini:
		address = strings.TrimSuffix(address, "/v1beta") + "/v1beta"
	}
	base, err := url.Parse(address)
	if err != nil {
		return bridge.Profile{}, err
	}
	p := bridge.Profile{
		Name: m.Profile, Protocol: protocol, BaseURL: base, Model: m.Model, Header: http.Header{}, Price: m.Price, MaxOutputTokens: m.MaxOutputTokens, ContextWindow: m.ContextWindow,
		HeaderTimeout: m.HeaderTimeout, IdleTimeout: m.IdleTimeout, AnswerTimeout: m.AnswerTimeout,
	}
	if m.APIKey != "" {
		p.Secrets = append(p.Secrets, m.APIKey)
		switch protocol {
		case bridge.Anthropic:
			p.Header.Set("X-Api-Key", m.APIKey)
		case bridge.Gemini:
			p.Header.Set("X-Goog-Api-Key", m.APIKey)
		default:
			p.Header.Set("Authorization", "Bearer "+m.APIKey)
		}
	}
	for name, value := range m.Headers {
		p.Header.Set(name, value)
		p.Secrets = append(p.Secrets, value)
		if _, key, ok := strings.Cut(value, " "); ok { // such as Bearer KEY
			p.Secrets = append(p.Secrets, key)
		}
	}
	return p, nil
}

// addAgent adds an agent's program and caches to the session's.
func (s *sessionBuilder) addAgent(r *agentRun) {
	s.moreMounts = append(s.moreMounts, r.mounts()...)
	s.conf.Caches = append(s.conf.Caches, r.Caches...)
}

// agentOptions makes the options of a session in which an agent runs.
func (s *sessionBuilder) agentOptions(ctx context.Context, r *agentRun, task string, u reporter) (runner.Options, error) {
	selected := r.selected()
	s.addAgent(r)
	if err := s.openDir(ctx, selected...); err != nil {
		return runner.Options{}, err
	}
	counts, err := s.openLedger(ctx, selected, &s.ends)
	if err != nil {
		return runner.Options{}, err
	}
	o, err := s.sandboxOptions(ctx, u)
	if err != nil {
		return o, err
	}
	o.Task, o.InstructionFiles, o.InstructionTexts, o.Ledger = task, false, nil, counts
	o.Bridge, err = r.bridge()
	return o, err
}

// commands returns the command that starts the agent, after one that writes its files, if
// it has any. run has an instruction, or is interactive, and has the directories in the
// sandbox. Without a home in run, the agent's home is [sandbox.HomeDir], even if its user
// has another one.
func (r *agentRun) commands(run agents.Run) ([]runner.UserCommand, error) {
	run.Model, run.BaseURL, run.Home = r.models[config.AnyModel].Model, "http://"+bridge.Host, cmp.Or(run.Home, sandbox.HomeDir)
	launch, err := r.Launch(r.program, run)
	if err != nil {
		return nil, newUsageError("%v", err)
	}
	var list []runner.UserCommand
	if len(launch.Files) > 0 {
		text, err := agents.Archive(launch.Files)
		if err != nil {
			return nil, err
		}
		list = append(list, runner.UnpackCommand(run.Home, bytes.NewReader(text)))
	}
	limit := agentTime
	if r.Timeout != nil {
		limit = time.Duration(*r.Timeout)
	}
	c := runner.UserCommand{Argv: launch.Argv, Env: append(launch.Env, "HOME="+run.Home), Timeout: limit, EndAtLimit: true}
	if !run.Interactive { // Codex adds its standard input to the instruction, so it is never the user's
		c.Stdin = strings.NewReader(launch.Stdin)
	}
	return append(list, c), nil
}

// gitIdentity returns variables that make commits in the sandbox the user's: the name and
// address that git has on this machine outside any repository. It leaves out values that
// git would guess from the machine's name, and variables that the configuration sets.
func (s *sessionBuilder) gitIdentity(ctx context.Context) []string {
	env := s.environ.pick("PATH", "HOME", "XDG_CONFIG_HOME", "GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")
	var out []string
	for _, who := range []string{"GIT_AUTHOR_", "GIT_COMMITTER_"} {
		cmd, err := programs.Command(ctx, env, s.writableDirs(s.workspace.Path), "git", "-c", "user.useConfigOnly=true", "var", who+"IDENT")
		if err != nil {
			return nil // the user has no git
		}
		cmd.Dir = "/"
		text, err := cmd.Output()
		name, rest, _ := strings.Cut(string(text), " <")
		email, _, whole := strings.Cut(rest, "> ") // and the time
		if err == nil && whole {
			out = append(out, who+"NAME="+name, who+"EMAIL="+email)
		}
	}
	return withoutConfigured(out, s.conf.Env)
}

// withoutConfigured returns the variables that the configuration doesn't set.
func withoutConfigured(variables []string, configured map[string]string) []string {
	return slices.DeleteFunc(variables, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, own := configured[name]
		return own
	})
}

// missingAgent adds the exit status to an error for an agent that can't be used.
func missingAgent(a agents.Agent, err error) error {
	if !errors.As(err, new(*agents.MissingError)) {
		return err
	}
	hint := "Change agents." + a.Name + " in the configuration."
	if a.NPM != nil {
		hint = "caisson agents install " + a.Name + " installs it for sandboxes; one that you install yourself is found too."
	}
	return newFailure(exitConfig, err, err.Error(), hint)
}
