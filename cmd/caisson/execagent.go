package main

import (
	"bytes"
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
)

// agentTime bounds a run of an agent whose definition has no timeout.
const agentTime = time.Hour

// agentRun is an agent with its program and its models.
type agentRun struct {
	agents.Agent
	program agents.Program
	models  map[string]config.SelectedModel
}

// findAgent returns an agent that can run in a session, with the keys of its models.
func (s *sessionBuilder) findAgent(ctx context.Context, name string) (*agentRun, error) {
	r, err := s.findProgram(name)
	if err != nil {
		return nil, err
	}
	if r.models, err = s.conf.SelectAgentModels(name, s.environ); err != nil {
		return nil, noModel(err)
	}
	selected := r.selected()
	if err := s.readKeys(ctx, selected, s.workspace.Path); err != nil {
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

// findProgram returns an agent without its models. It adds its program and caches to the
// session's.
func (s *sessionBuilder) findProgram(name string) (*agentRun, error) {
	agent, err := agents.New(&s.conf, name)
	if err != nil {
		return nil, err
	}
	r := &agentRun{Agent: agent}
	if r.program, err = s.agentFinder(s.workspace.Path).Find(agent); err != nil {
		return nil, missingAgent(err)
	}
	if r.program.Mount != nil {
		s.moreMounts = append(s.moreMounts, *r.program.Mount)
	}
	s.conf.Caches = append(s.conf.Caches, agent.Caches...)
	return r, nil
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
	}
	return p, nil
}

// agentOptions makes the options of a session in which an agent runs.
func (s *sessionBuilder) agentOptions(ctx context.Context, r *agentRun, task string, u reporter) (runner.Options, error) {
	selected := r.selected()
	if err := s.openDir(ctx, selected...); err != nil {
		return runner.Options{}, err
	}
	counts, err := s.openLedger(ctx, selected)
	if err != nil {
		return runner.Options{}, err
	}
	if counts != nil {
		s.ends.PushFunc(func() { _ = counts.Close() }) // the next one removes what stays
	}
	o, err := s.sandboxOptions(ctx, u)
	if err != nil {
		return o, err
	}
	o.Task, o.InstructionFiles, o.InstructionTexts, o.Ledger = task, false, nil, counts
	o.Bridge, err = r.bridge()
	return o, err
}

// commands returns the command that writes the agent's files, if it has any, and the
// agent's.
func (r *agentRun) commands(o *runner.Options, instruction string) ([]runner.UserCommand, error) {
	launch, err := r.Launch(r.program, agents.Run{
		Instruction: instruction, Model: r.models[config.AnyModel].Model, BaseURL: "http://" + bridge.Host,
		Workspace: sandbox.Workspace{Target: o.Target}.MountPoint(), Home: sandbox.HomeDir,
	})
	if err != nil {
		return nil, newUsageError("%v", err)
	}
	var list []runner.UserCommand
	if len(launch.Files) > 0 {
		text, err := agents.Archive(launch.Files)
		if err != nil {
			return nil, err
		}
		list = append(list, runner.UnpackCommand(sandbox.HomeDir, bytes.NewReader(text)))
	}
	limit := agentTime
	if r.Timeout != nil {
		limit = time.Duration(*r.Timeout)
	}
	// Codex adds its standard input to the instruction, so it is never the user's.
	return append(list, runner.UserCommand{Argv: launch.Argv, Env: launch.Env, Stdin: strings.NewReader(launch.Stdin), Timeout: limit}), nil
}

// missingAgent adds the exit status to an error for an agent that can't be used.
func missingAgent(err error) error {
	missing, ok := errors.AsType[*agents.MissingError](err)
	if !ok {
		return err
	}
	hint := "caisson agents check " + missing.Name + " tells more."
	if errors.Is(err, agents.ErrNotInstalled) {
		hint = "caisson agents install " + missing.Name + " installs it for sandboxes; one that you install yourself is found too."
	}
	return newFailure(exitConfig, err, err.Error(), hint)
}
