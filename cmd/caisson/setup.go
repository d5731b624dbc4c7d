package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/openai"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox/pool"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools/memory"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// setup has the settings, the workspace and the backends of a command.
type setup struct {
	deps    deps
	environ environ
	conf    config.Config
	// apply is set if the run applies its changes by itself.
	apply bool
	// reads is set if the command, as far as is known, needs no sandbox.
	reads bool
	// workspace is nil where the command has none.
	workspace *runner.Workspace
	// project has the workspace's own settings if they are in effect; ignored
	// lists those that are not.
	project  *config.ProjectFile
	ignored  []record.Ignored
	host     *caisson.Host
	programs *programs.Finder
	pools    []*pool.Pool
	logger   *zap.Logger
	// ready is the backend that the sessions of a server share; nil lets each
	// run choose its own, and clean up before it.
	ready *readyBackend
}

// configEnv names the user's file in place of the usual one.
const configEnv = "CAISSON_CONFIG"

// configPath is the user's file, and whether it was named and must be there.
func (e environ) configPath() (string, bool) {
	if path := e.get(configEnv); path != "" {
		return path, true
	}
	if dir := e.configDir(); dir != "" {
		return filepath.Join(dir, "config.yaml"), false
	}
	return "", false
}

// loadConfig reads the settings in all their layers; project is the file of a
// trusted workspace, nil where there is none.
func loadConfig(d deps, env environ, flags config.File, profile string, project *config.ProjectFile) (config.Config, error) {
	return config.Load(configOptions(d, env, flags, profile, project))
}

// configOptions names the sources of the settings.
func configOptions(d deps, env environ, flags config.File, profile string, project *config.ProjectFile) config.Options {
	path, needed := env.configPath()
	if profile == "" {
		profile = env.get("CAISSON_PROFILE")
	}
	return config.Options{
		Environ: env, Others: []string{configEnv, "CAISSON_PROFILE"}, Path: path, Needed: needed, Profile: profile, Project: project,
		Flags: flags, Requirements: d.requirements, RequirementsUID: d.requirementsUID,
	}
}

// newSetup reads the settings and opens the workspace, in this order, so that
// a mistake in either is said before anything is started.
func newSetup(d deps, env environ, flags config.File, profile, workspace string) (*setup, error) {
	s := &setup{deps: d, environ: env, logger: zap.NewNop()}
	var err error
	if s.conf, err = loadConfig(d, env, flags, profile, nil); err != nil {
		return nil, err
	}
	state := env.stateDir()
	if state == "" {
		return nil, &runner.Error{Status: runner.ExitConfig, Problem: record.Problem{
			Cause: "there is no place for Caisson's state: neither HOME nor XDG_STATE_HOME is an absolute path",
			Hint:  "Set HOME, or XDG_STATE_HOME.",
		}}
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, &runner.Error{Status: runner.ExitConfig, Err: err, Problem: record.Problem{
			Cause: "the state directory can't be made: " + err.Error(), Hint: "Set XDG_STATE_HOME to a directory that you can write.",
		}}
	}
	s.programs = &programs.Finder{Executable: d.executable, Path: env.get("PATH"), Cache: env.programDir()}
	if workspace != "" {
		protected := env.protectedDirs()
		protected.AcceptSystem = *s.conf.AcceptSystemWorkspace
		s.workspace, err = runner.OpenWorkspace(workspace, protected)
		if err != nil {
			return nil, err
		}
		if err := s.workspace.CheckOwner(*s.conf.CallerOwnsFiles); err != nil {
			return nil, errors.Join(err, s.workspace.Close())
		}
		s.programs.Workspace = s.workspace.Path
	} else if w, err := workspaceFor(env, ""); err == nil { // home and what holds it are none
		s.programs.WorkingDir = w.Path
		_ = w.Close()
	}
	return s, s.newHost()
}

func (s *setup) close() {
	s.closeBackends()
	if s.workspace != nil {
		_ = s.workspace.Close()
	}
}

// configSources says where the settings came from.
func (s *setup) configSources() []record.Source {
	var out []record.Source
	for _, src := range s.conf.Sources {
		out = append(out, record.Source{Name: src.Name, Path: src.Path, SHA256: src.SHA256})
	}
	return out
}

// secretSuffixes end the names of variables that hold keys, as programs
// usually name them.
var secretSuffixes = []string{"_API_KEY", "_ACCESS_KEY", "_SECRET_KEY", "_SECRET", "_TOKEN", "_PASSWORD"}

// environSecrets are the values of the environment that are keys, whichever model
// was chosen: the model's own, and what is named as keys are.
func environSecrets(env environ, m config.SelectedModel) []redact.Secret {
	var out []redact.Secret
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		named := slices.ContainsFunc(secretSuffixes, func(suffix string) bool { return strings.HasSuffix(strings.ToUpper(name), suffix) })
		if value != "" && (named || name == m.KeyEnv) {
			out = append(out, redact.Secret{Name: name, Value: value})
		}
	}
	return out
}

// knownSecrets returns what no record, log or message of the session may hold.
func (s *setup) knownSecrets(m config.SelectedModel) []redact.Secret {
	return append(environSecrets(s.environ, m), urlSecrets(s.environ, &s.conf)...)
}

// urlSecrets returns the credentials in the URLs that Caisson uses: of models,
// engines and proxies.
func urlSecrets(env environ, conf *config.Config) []redact.Secret {
	var out []redact.Secret
	add := func(name string, raw *string) {
		if raw == nil {
			return
		}
		for _, s := range safeurl.Secrets(*raw) {
			out = append(out, redact.Secret{Name: name, Value: s})
		}
	}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		if upper := strings.ToUpper(name); name == "OPENAI_BASE_URL" || name == "DOCKER_HOST" || strings.HasSuffix(upper, "_PROXY") && upper != "NO_PROXY" {
			add(name, &value)
		}
	}
	add("docker.host", conf.Docker.Host)
	add("fetch.proxy", conf.Fetch.Proxy)
	for name, m := range conf.Models {
		add("models."+name+".base_url", m.BaseURL)
	}
	return out
}

// makeModel makes a real model. Its errors are a *runner.Error.
func makeModel(m config.SelectedModel, s modelSettings) (loop.Model, func(), error) {
	if m.Provider == "replay" {
		model, err := replay.Open(m.Name, replay.Options{
			Report: func(d replay.Difference) { s.differs(d.String()) }, Logger: s.logger,
		})
		if err != nil {
			status := runner.ExitConfig
			if errors.Is(err, fs.ErrNotExist) {
				status = runner.ExitInput
			}
			return nil, nil, &runner.Error{Status: status, Err: err, Problem: record.Problem{
				Cause: "the recording can't be played: " + err.Error(),
				Hint:  "Name a script, a trace.jsonl or an ATIF file: --model replay/FILE.",
			}}
		}
		return model, func() {}, nil
	}
	if m.APIKey == "" && m.KeyNeeded {
		return nil, nil, &runner.Error{Status: runner.ExitAuth, Problem: record.Problem{
			Cause: "there is no key for the model " + m.Provider + "/" + m.Name + ": " + m.KeyEnv + " is not set",
			Hint:  "Set it to your key, or name another model with --model; --model replay/FILE needs none.",
		}}
	}
	o := openai.Options{
		Model: m.Name, BaseURL: m.BaseURL, APIKey: m.APIKey, Stream: s.stream, Temperature: m.Temperature,
		MaxOutputTokens: m.MaxOutputTokens, Logger: s.logger,
		MaxRetries: m.MaxRetries, MaxRetryDelay: m.MaxRetryDelay, HeaderTimeout: m.HeaderTimeout, IdleTimeout: m.IdleTimeout,
	}
	if s.retries != nil {
		o.OnRetry = func(r openai.Retry) { s.retries(retryText(r)) }
	}
	if m.Price != nil {
		o.Price = &openai.Price{Input: float64(m.Price.Input), CachedInput: float64(m.Price.CachedInput), Output: float64(m.Price.Output)}
	}
	model, err := openai.New(o)
	if err != nil {
		return nil, nil, &runner.Error{Status: runner.ExitConfig, Err: err, Problem: record.Problem{
			Cause: "the model can't be used: " + err.Error(), Hint: "Check base_url and the model's profile.",
		}}
	}
	return model, model.Close, nil
}

// retryText describes a retry of a model's request for people.
func retryText(r openai.Retry) string {
	failure := "no answer"
	if r.Status != 0 {
		failure = strings.TrimSpace(fmt.Sprintf("HTTP %d %s", r.Status, http.StatusText(r.Status)))
	}
	wait := r.Delay
	if wait >= 10*time.Second {
		wait = wait.Round(time.Second)
	}
	return fmt.Sprintf("model: %s, retry %d of %d in %s", failure, r.Number, r.Most, wait)
}

// recordedTask returns the task of a recording, or "".
func recordedTask(m loop.Model) string {
	if r, ok := m.(interface{ Task() string }); ok {
		return r.Task()
	}
	return ""
}

// openMemory is where notes about the workspace are kept, nil where they are off.
func (s *setup) openMemory() *memory.Store {
	if on := s.conf.MemoryTools; on == nil || !*on {
		return nil
	}
	return memory.NewStore(filepath.Join(s.environ.stateDir(), "memory"), s.workspace.Path)
}
