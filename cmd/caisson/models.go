package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/cmd/caisson/internal/agents"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/anthropic"
	"github.com/caisson-run/caisson/loop/ollama"
	"github.com/caisson-run/caisson/loop/openai"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/loop/tags"
	"github.com/caisson-run/caisson/loop/worker"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/closers"
	"github.com/caisson-run/caisson/runner/ledger"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools/egress/secret"
)

// makeModel makes a real model. Its errors are a *commandError.
func makeModel(m config.SelectedModel, s modelSettings) (loop.Model, func(), error) {
	if m.Provider == "replay" {
		model, err := replay.Open(m.Model, replay.Options{
			Report: s.differs, Logger: s.logger,
		})
		if err != nil {
			status := exitConfig
			if errors.Is(err, fs.ErrNotExist) {
				status = exitInput
			}
			return nil, nil, newFailure(status, err, "the recording can't be played: "+err.Error(), "Name a script, a trace.jsonl or an ATIF file: --model replay/FILE.")
		}
		return model, func() {}, nil
	}
	if m.APIKey == "" && m.KeyNeeded {
		return nil, nil, noKey(m)
	}
	if m.Provider == "gemini" {
		return nil, nil, newFailure(exitConfig, nil, "the model "+m.Profile+" has provider gemini, which only agents can ask", "Name another model with --model, or run an agent that speaks its protocol: caisson agents ls.")
	}
	o := m.ModelOptions
	o.Logger = s.logger
	var (
		model interface {
			loop.Model
			Close()
		}
		err error
	)
	switch m.Provider {
	case "anthropic":
		model, err = anthropic.New(anthropic.Options{ModelOptions: o, ThinkingTokens: m.ThinkingTokens})
	case "ollama":
		model, err = ollama.New(ollama.Options{ModelOptions: o, ContextWindow: m.ContextWindow, Stream: s.stream})
	default:
		model, err = openai.New(openai.Options{ModelOptions: o, API: openai.API(m.API), Stream: s.stream})
	}
	if err != nil {
		return nil, nil, newFailure(exitConfig, err, "the model can't be used: "+err.Error(), "Check base_url and its other settings under models.")
	}
	return model, model.Close, nil
}

func noKey(m config.SelectedModel) error {
	return newFailure(exitAuth, nil, "there is no key for the model "+m.Profile+": "+m.KeyEnv+" is not set",
		"Set it to your key, or name another model with --model; --model replay/FILE needs none.")
}

// noModel adds the exit status to an error for a missing model or key. It returns any
// other unchanged.
func noModel(err error) error {
	e, ok := errors.AsType[*config.Error](err)
	if !ok || !errors.Is(err, config.ErrNoModel) {
		return err
	}
	return newFailure(exitAuth, err, e.Message, makeSentence(e.Hint))
}

// openModels makes the selected models and opens the ledger of their costs, nil if none
// is needed. ends gets their closers.
func (s *settings) openModels(ctx context.Context, selected []config.SelectedModel, m modelSettings, ends *closers.Stack) ([]loop.Profile, *ledger.Ledger, error) {
	var out []loop.Profile
	for _, sel := range selected {
		model, closeModel, err := s.deps.model(sel, m)
		if err != nil {
			return nil, nil, err
		}
		ends.PushFunc(closeModel)
		if sel.ToolProtocol == "tags" {
			model = tags.New(model)
		}
		out = append(out, loop.Profile{
			Name: sel.Profile, Model: model, Price: sel.Price, MaxOutputTokens: sel.MaxOutputTokens, ContextWindow: sel.ContextWindow,
			MaxRetries: sel.MaxRetries, MaxRetryDelay: sel.MaxRetryDelay,
		})
	}
	counts, err := s.openLedger(ctx, selected, ends)
	return out, counts, err
}

// workerOptions returns the options of the tools that ask models, whose profiles are
// given. Profiles without a model have only a name.
func workerOptions(conf *config.Config, profiles []loop.Profile) runner.WorkerOptions {
	o := runner.WorkerOptions{Profiles: profiles, Tools: conf.Workers.Tools}
	if usd := conf.Workers.CostCap; usd != nil {
		o.CostCap = worker.CostCap{USD: float64(*usd) / 1e6, Mode: worker.CostMode(*conf.Workers.CostCapMode)}
	}
	return o
}

// keyTime and maxKeyBytes bound a command that prints a key.
const (
	keyTime     = 30 * time.Second
	maxKeyBytes = 16 << 10
)

// readKeys runs the commands that print keys of models. It refuses programs in
// directories that commands in the sandbox can write to. Its errors are a
// *commandError.
func (s *settings) readKeys(ctx context.Context, models []config.SelectedModel, workspace string) error {
	for i, m := range models {
		if m.KeyCommand == nil {
			continue
		}
		if read := slices.IndexFunc(models[:i], func(o config.SelectedModel) bool { return o.Profile == m.Profile }); read >= 0 {
			models[i].APIKey = models[read].APIKey
			continue
		}
		key, err := readKey(ctx, s.environ, m.KeyCommand, s.writableDirs(workspace))
		if err != nil {
			return newFailure(exitAuth, err, "the command for the key of the model "+m.Profile+" failed: "+err.Error(),
				"Run the program of models."+m.Profile+".api_key_command yourself: it has to print the key, and nothing else, to standard output.")
		}
		models[i].APIKey = key
	}
	return nil
}

// readEgressKeys reads the keys that commands use without seeing them. Its errors are a
// *commandError or a [config.Error] and contain no key.
func (s *settings) readEgressKeys(ctx context.Context, workspace string) error {
	keys, err := s.conf.EgressKeys()
	if err == nil {
		s.egressKeys, err = s.readKeysOf(ctx, "egress.secrets", keys, workspace)
	}
	return err
}

// readServerKeys is readEgressKeys for a session's MCP servers.
func (s *settings) readServerKeys(ctx context.Context, workspace string) error {
	names, err := s.conf.UsedServers()
	if err != nil {
		return err
	}
	s.serverKeys = map[string][]secret.Secret{}
	for _, name := range names {
		keys, err := s.conf.ServerKeys(name)
		if err != nil {
			return err
		}
		if s.serverKeys[name], err = s.readKeysOf(ctx, "mcpServers."+name+".egress.secrets", keys, workspace); err != nil {
			return err
		}
	}
	return nil
}

func (s *settings) readKeysOf(ctx context.Context, setting string, keys []config.EgressKey, workspace string) ([]secret.Secret, error) {
	var out []secret.Secret
	for _, k := range keys {
		where := setting + "." + k.Name
		if k.Command != nil {
			var err error
			if k.Value, err = readKey(ctx, s.environ, k.Command, s.writableDirs(workspace)); err != nil {
				return nil, newFailure(exitConfig, err, "the command for the key "+where+" failed: "+err.Error(), "Run it yourself: it has to print the key, and nothing else, to standard output.")
			}
		} else if k.Value = s.environ.get(k.Env); k.Value == "" {
			return nil, &config.Error{Where: where, Message: "the variable " + k.Env + " is not set", Hint: "set it, or take the key out"}
		}
		out = append(out, k.Secret)
	}
	if _, err := secret.New(out); err != nil {
		return nil, &config.Error{Where: setting, Message: err.Error(), Hint: "fix the key, or its settings"}
	}
	return out, nil
}

// operatorCommand returns a command of the configuration, ready to start. It refuses one
// whose program or arguments lie where commands in the sandbox can write.
func operatorCommand(ctx context.Context, env environ, command, writable []string) (*exec.Cmd, error) {
	for _, argument := range command[1:] {
		_, value, _ := strings.Cut(argument, "=") // of --rules=/path
		for _, path := range []string{argument, value} {
			if !filepath.IsAbs(path) {
				continue
			}
			for _, path := range []string{path, resolvePath(path)} {
				if dir := programs.FindWritable(writable, path); dir != "" {
					return nil, fmt.Errorf("commands in the sandbox can write to %s: %s lies there", dir, path)
				}
			}
		}
	}
	cmd, err := programs.Command(ctx, env, writable, command[0], command[1:]...)
	if err != nil {
		return nil, err
	}
	// A relative path among the arguments must not name a file of the workspace.
	cmd.Dir, cmd.WaitDelay = string(filepath.Separator), time.Second
	return cmd, nil
}

// readKey runs a command and returns the line that it prints. Errors contain none of
// its output.
func readKey(ctx context.Context, env environ, command, writable []string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, keyTime, fmt.Errorf("it took longer than %v", keyTime))
	defer cancel()
	cmd, err := operatorCommand(ctx, env, command, writable)
	if err != nil {
		return "", err
	}
	out := &limits.Head{Size: maxKeyBytes + 1}
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("%s: %w", command[0], err)
	}
	key := strings.TrimRight(out.String(), "\r\n")
	switch {
	case key == "":
		return "", fmt.Errorf("%s printed nothing", command[0])
	case len(out.Bytes()) > maxKeyBytes:
		return "", fmt.Errorf("%s printed more than %d bytes", command[0], maxKeyBytes)
	case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("%s printed more than a key: white space, or characters that no key has", command[0])
	}
	return key, nil
}

// recordedTask returns a recording's task, or "".
func recordedTask(m loop.Model) string {
	if r, ok := m.(interface{ Task() string }); ok {
		return r.Task()
	}
	return ""
}

// openLedger opens the ledger of the ceilings per day and month. It returns nil if
// there are no ceilings or no model costs anything. ends gets its closer.
func (s *settings) openLedger(ctx context.Context, selected []config.SelectedModel, ends *closers.Stack) (*ledger.Ledger, error) {
	o := ledger.Options{StateDir: s.environ.stateDir(), User: s.conf.Limits.Ceilings(), Profiles: map[string]limits.Ceilings{}}
	ceilings, charged := s.conf.ProfileCeilings(), false
	for _, m := range selected {
		o.Profiles[m.Profile] = ceilings[m.Profile]
		charged = charged || m.Provider != "replay"
	}
	if !charged || !o.Bound() {
		return nil, nil
	}
	counts, err := ledger.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	ends.PushFunc(func() { _ = counts.Close() }) // the next one removes what stays
	return counts, nil
}

// gitEnviron returns the environment for git when it fetches tasks' workspaces. It has
// no keys of models.
func gitEnviron(env environ) []string {
	return env.pick("PATH", "HOME", "SSH_AUTH_SOCK", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
}

func (b *batchSession) newModel(ctx context.Context, agent string) (_ batch.Model, err error) {
	conf := b.conf
	if b.flags.maxCost != nil {
		conf.Limits.Cost = b.flags.maxCost // it needs the price
	}
	if name, model, ok := b.parseAgent(agent); ok {
		return b.newProgram(ctx, conf, name, model)
	}
	conf.Model = &agent
	selected, err := conf.SelectModels(b.user)
	if err != nil {
		return batch.Model{}, noModel(err)
	}
	if err := b.readKeys(ctx, selected, ""); err != nil {
		return batch.Model{}, err
	}
	own := *b.settings
	own.environ = b.user
	var ends closers.Stack
	defer ends.CloseOnError(&err)
	profiles, counts, err := own.openModels(ctx, selected, modelSettings{logger: zap.NewNop()}, &ends)
	return batch.Model{Profiles: profiles, Ledger: counts, Close: func() { _ = ends.Close() }}, err
}

// parseAgent splits the name of a batch's agent, such as claude or claude@MODEL. It
// returns false for a model's name.
func (s *settings) parseAgent(agent string) (name, model string, ok bool) {
	name, model, _ = strings.Cut(agent, "@")
	_, isModel := s.conf.Models[agent]
	return name, model, !isModel && slices.Contains(s.conf.AgentNames(), name)
}

// identifyPrograms adds to the settings of a batch which programs its agents are.
func (s *settings) identifyPrograms(list []string, to map[string]string) error {
	for _, agent := range list {
		name, _, ok := s.parseAgent(agent)
		if key := batch.AgentSetting + name; ok && to[key] == "" {
			r, err := s.findProgram(&s.conf, name, "")
			if err != nil {
				return err
			}
			sum, err := r.program.Hash()
			if err != nil {
				return newFailure(exitConfig, err, "the agent "+name+" can't be read: "+err.Error(), "Install it again.")
			}
			to[key] = strings.TrimSpace(r.program.Version + " " + cmp.Or(sum, "of the image"))
		}
	}
	return nil
}

// newProgram makes an agent that is a program, for a trial. If model is not "", all
// requests of the agent go to it.
func (b *batchSession) newProgram(ctx context.Context, conf config.Config, name, model string) (_ batch.Model, err error) {
	if model != "" {
		conf.Model = &model
	}
	own := *b.settings
	own.environ = b.user
	r, err := own.findAgent(ctx, &conf, name, "")
	if err != nil {
		return batch.Model{}, err
	}
	var ends closers.Stack
	defer ends.CloseOnError(&err)
	counts, err := own.openLedger(ctx, r.selected(), &ends)
	if err != nil {
		return batch.Model{}, err
	}
	p := &batch.Program{Mounts: r.mounts(), Secrets: own.knownSecrets(r.selected()...), Commands: func(instruction, dir, home string) ([]runner.UserCommand, error) {
		return r.commands(agents.Run{Instruction: instruction, Workspace: dir, Home: home})
	}}
	p.Bridge, err = r.bridge()
	return batch.Model{Program: p, Ledger: counts, Close: func() { _ = ends.Close() }}, err
}
