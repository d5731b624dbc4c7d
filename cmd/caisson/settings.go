package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/telemetry"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/egress/secret"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// environ is the environment as NAME=value strings.
type environ []string

func (e environ) get(name string) string {
	value, _ := e.lookup(name)
	return value
}

// lookup returns the last value of a variable.
func (e environ) lookup(name string) (value string, found bool) {
	for _, v := range e {
		if k, rest, ok := strings.Cut(v, "="); ok && k == name {
			value, found = rest, true
		}
	}
	return value, found
}

// pick returns the named variables that are set, as NAME=value strings.
func (e environ) pick(names ...string) []string {
	var out []string
	for _, name := range names {
		if value, ok := e.lookup(name); ok {
			out = append(out, name+"="+value)
		}
	}
	return out
}

// home returns the user's home directory, or "".
func (e environ) home() string { return absoluteOrEmpty(e.get("HOME")) }

// xdgDir returns Caisson's directory below an XDG base directory, or "" without a home.
// The specification says to ignore relative values.
func (e environ) xdgDir(name, def string) string {
	base := absoluteOrEmpty(e.get(name))
	if base == "" {
		if e.home() == "" {
			return ""
		}
		base = filepath.Join(e.home(), def)
	}
	return filepath.Join(base, "caisson")
}

func (e environ) stateDir() string  { return e.xdgDir("XDG_STATE_HOME", ".local/state") }
func (e environ) configDir() string { return e.xdgDir("XDG_CONFIG_HOME", ".config") }

// cacheDir contains only what can be made again. It returns "" if there is no place for
// it.
func (e environ) cacheDir() string { return e.xdgDir("XDG_CACHE_HOME", ".cache") }

// dataDir contains the agents that Caisson installed.
func (e environ) dataDir() string { return e.xdgDir("XDG_DATA_HOME", ".local/share") }

// joinUnder returns the path of name in dir, or "" if dir is "".
func joinUnder(dir, name string) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, name)
}

// protectedDirs returns the directories that a workspace must not contain or be in.
func (e environ) protectedDirs() runner.Protected {
	return runner.Protected{Home: e.home(), State: e.stateDir(), Config: e.configDir(), Cache: e.cacheDir()}
}

func absoluteOrEmpty(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return ""
}

func (e environ) temporaryDirs() []string {
	dirs := []string{"/tmp", "/var/tmp", "/dev/shm"}
	if dir := absoluteOrEmpty(e.get("TMPDIR")); dir != "" {
		dirs = append(dirs, dir)
	}
	return dirs
}

// configEnv is the variable that names the user's file.
const configEnv = "CAISSON_CONFIG"

// configPath returns the path of the user's file, and whether it was named and so must
// exist.
func (e environ) configPath() (string, bool) {
	if path := e.get(configEnv); path != "" {
		return path, true
	}
	if dir := e.configDir(); dir != "" {
		return filepath.Join(dir, "config.yaml"), false
	}
	return "", false
}

// settings are a command's settings, with what they were read from.
type settings struct {
	deps    deps
	environ environ
	flags   config.File
	profile string
	// buildRecords is the directory of records about image builds. "" means the state
	// directory's.
	buildRecords string
	// builtin are the command's own default values.
	builtin config.File
	conf    config.Config
	// workspaceDir is the resolved path of the workspace if the user's file may have
	// settings for it, or "".
	workspaceDir string
	// project and projectServers are the workspace's own settings and servers, if they
	// are in effect. ignored lists what is not.
	project, projectServers *config.ProjectFile
	ignored                 []record.Ignored
	// instructions are the workspace's trusted instruction files.
	instructions []approval.TrustedFile
	// egressKeys are the keys that commands use without seeing them, once read.
	// serverKeys are the keys of MCP servers, by the server's name.
	egressKeys []secret.Secret
	serverKeys map[string][]secret.Secret
	// shared is set if the process has many sessions, which share the machine.
	shared bool
	// workspaces has the workspaces of a server's sessions. It is nil for other
	// commands.
	workspaces *workspaceSet
	// forClients keeps this program's flags out of errors and facts: a server's clients
	// have none.
	forClients bool
}

// loadSettings reads the settings in all layers except the workspace's own.
func loadSettings(a *app, flags config.File, profile string) (*settings, error) {
	s := &settings{deps: a.deps, environ: a.environ, flags: flags, profile: profile}
	return s, s.load(config.File{})
}

// loadChatSettings is loadSettings for a conversation.
func loadChatSettings(a *app, flags config.File, profile string) (*settings, error) {
	s := &settings{deps: a.deps, environ: a.environ, flags: flags, profile: profile}
	s.builtin.Limits.Rounds = new(config.Count(chatRounds))
	s.builtin.Mode = new(string(sandbox.ModeOverlay))
	return s, s.load(config.File{})
}

// loadServerSettings is loadSettings for a process with many sessions.
func loadServerSettings(a *app, flags config.File, profile string) (*settings, error) {
	s := &settings{deps: a.deps, environ: a.environ, flags: flags, profile: profile, shared: true}
	return s, s.load(config.File{})
}

// loadBatchSettings is loadServerSettings for trials of tasks, whose Dockerfiles expect
// a network.
func loadBatchSettings(a *app, flags config.File, profile, out string) (*settings, error) {
	s := &settings{deps: a.deps, environ: a.environ, flags: flags, profile: profile, shared: true, buildRecords: filepath.Join(out, "builds")}
	s.builtin.Images.BuildNetwork = new("public")
	return s, s.load(config.File{})
}

// loadClientSettings is loadSettings for a session of a server's client.
func loadClientSettings(a *app, flags config.File, profile string) (*settings, error) {
	s := &settings{deps: a.deps, environ: a.environ, flags: flags, profile: profile, shared: true, forClients: true}
	return s, s.load(config.File{})
}

// load reads the settings in all layers. asked has the requests of a server's client.
func (s *settings) load(asked config.File) (err error) {
	o := config.Options{
		Environ: s.environ, Others: []string{configEnv, "CAISSON_PROFILE", plainEnv}, Profile: cmp.Or(s.profile, s.environ.get("CAISSON_PROFILE")),
		Workspace: s.workspaceDir, Project: s.project, ProjectServers: s.projectServers, Builtin: s.builtin, Flags: s.flags, Asked: asked, Requirements: s.deps.requirements, RequirementsUID: s.deps.requirementsUID,
		NameKeys: s.forClients,
	}
	if !s.shared && s.deps.resources != nil {
		o.Resources = new(s.deps.resources())
	}
	o.Path, o.Needed = s.environ.configPath()
	s.conf, err = config.Load(o)
	return err
}

// loadSettingsFor reads the settings for a workspace, with its own if they are in
// effect. "" is no workspace.
func loadSettingsFor(a *app, flags config.File, profile, workspace string, project projectOptions) (*settings, error) {
	s, err := loadSettings(a, flags, profile)
	if err != nil || workspace == "" {
		return s, err
	}
	w, err := workspaceFor(a.environ, workspace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = w.Close() }()
	if err := s.loadFor(w.Path); err != nil {
		return nil, err
	}
	return s, s.useProject(w, project)
}

// loadConfig returns the settings without flags and a workspace's own.
func loadConfig(a *app, profile string) (config.Config, error) {
	s, err := loadSettings(a, config.File{}, profile)
	return s.conf, err
}

// findState returns the state directory, which need not exist.
func findState(env environ) (string, error) {
	if state := env.stateDir(); state != "" {
		return state, nil
	}
	return "", newFailure(exitConfig, nil, "there is no place for Caisson's state: neither HOME nor XDG_STATE_HOME is an absolute path", "Set HOME, or XDG_STATE_HOME.")
}

func (s *settings) makeStateDir() error {
	state, err := findState(s.environ)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return newFailure(exitConfig, err, "the state directory can't be made: "+err.Error(), "Set XDG_STATE_HOME to a directory that you can write.")
	}
	return nil
}

// writableDirs returns the directories that commands in sandboxes can write to: the
// workspace unless it is "", mounts, Caisson's state, which has caches and changes, and
// the workspaces of a server's other sessions.
func (s *settings) writableDirs(workspace string) []string {
	return append(append(s.conf.WritableMounts(), s.environ.stateDir(), workspace), s.workspaces.list()...)
}

// workspaceSet has the workspaces of all sessions since a server started: files that
// their commands wrote there must not run on this machine for another session. It
// doesn't have the roots, which may be a home directory with programs on PATH. It is
// safe for concurrent use.
type workspaceSet struct {
	mu    sync.Mutex
	paths []string
}

func (w *workspaceSet) add(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.paths, path) {
		w.paths = append(w.paths, path)
	}
}

// list returns the workspaces, none for a nil set.
func (w *workspaceSet) list() []string {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.paths)
}

// loadFor reloads the settings if the user's file has settings of workspaces. A path
// that can't be resolved has none: opening it reports why.
func (s *settings) loadFor(workspace string) error {
	if len(s.conf.Workspaces) == 0 {
		return nil
	}
	s.workspaceDir = resolvePath(workspace)
	return s.load(config.File{})
}

// resolvePath returns an absolute path without symlinks, or "" if there is none.
func resolvePath(path string) string {
	resolved, err := resolveLinks(path)
	if err != nil {
		return ""
	}
	return resolved
}

func resolveLinks(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// openWorkspace opens the workspace of sessions. From then on, its settings in the
// user's file are in effect.
func (s *settings) openWorkspace(path string) (*runner.Workspace, error) {
	if err := s.loadFor(path); err != nil {
		return nil, err
	}
	protected := s.environ.protectedDirs()
	protected.AcceptSystem = *s.conf.AcceptSystemWorkspace
	w, err := runner.OpenWorkspace(path, protected)
	if err != nil {
		return nil, err
	}
	if err := w.CheckOwner(*s.conf.CallerOwnsFiles); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	if err := s.checkSettingsOf(w); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// checkSettingsOf refuses a workspace if the settings were read for another directory:
// a symlink on the way was replaced.
func (s *settings) checkSettingsOf(w *runner.Workspace) error {
	if s.workspaceDir == "" || resolvePath(w.Path) == s.workspaceDir {
		return nil
	}
	return newFailure(exitInput, nil, "the workspace "+w.Path+" was replaced while it was opened", "Run the command again, and find out who replaced it.")
}

// secretSuffixes are the usual ends of names of variables with keys.
var secretSuffixes = []string{"_API_KEY", "_ACCESS_KEY", "_SECRET_KEY", "_SECRET", "_TOKEN", "_PASSWORD"}

// environSecrets returns the values of the variables that names has, and of those whose
// names end like a key's.
func environSecrets(env environ, names ...string) []redact.Secret {
	var out []redact.Secret
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		named := slices.ContainsFunc(secretSuffixes, func(suffix string) bool { return strings.HasSuffix(strings.ToUpper(name), suffix) })
		if value != "" && (named || slices.Contains(names, name)) {
			out = append(out, redact.Secret{Name: name, Value: value})
		}
	}
	return out
}

// knownSecrets returns the secrets that records, logs and messages of the session must
// not have.
func (s *settings) knownSecrets(models ...config.SelectedModel) []redact.Secret {
	names := s.conf.EnvFrom
	var printed []redact.Secret
	for _, m := range models {
		names = append(append(slices.Clip(names), m.SecretHeaders...), m.KeyEnv)
		if m.KeyCommand != nil {
			printed = append(printed, redact.Secret{Name: "models." + m.Profile + ".api_key_command", Value: m.APIKey})
		}
	}
	for _, k := range s.egressKeys {
		printed = append(printed, redact.Secret{Name: "egress.secrets." + k.Name, Value: k.Value})
	}
	for name, keys := range s.serverKeys {
		for _, k := range keys {
			printed = append(printed, redact.Secret{Name: "mcpServers." + name + ".egress.secrets." + k.Name, Value: k.Value})
		}
	}
	for name, value := range s.conf.ServerSecrets() {
		printed = append(printed, redact.Secret{Name: name, Value: value})
	}
	if store := tokenStore(s.environ.stateDir()); store != nil {
		for name, server := range s.conf.MCP {
			for _, value := range store.Secrets(name, server.URL) {
				printed = append(printed, redact.Secret{Name: "token of MCP server " + name, Value: value})
			}
		}
	}
	return slices.Concat(environSecrets(s.environ, names...), printed, urlSecrets(s.environ, &s.conf))
}

// urlSecrets returns the credentials in URLs of models, engines, proxies, collectors and
// deciders, and in headers of the last two.
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
		if upper := strings.ToUpper(name); slices.Contains(config.BaseURLVariables(), name) || name == "DOCKER_HOST" || strings.HasPrefix(name, "OTEL_EXPORTER_OTLP_") || strings.HasSuffix(upper, "_PROXY") && upper != "NO_PROXY" {
			add(name, &value)
		}
	}
	collector, _ := conf.Telemetry.Options(env.lookup) // a header without its variable has no value
	for name, values := range collector.Secrets() {
		for _, value := range values {
			out = append(out, redact.Secret{Name: name, Value: value})
		}
	}
	if d, where := conf.PolicyDecider(); d != nil {
		headers, _ := d.HeaderValues(where, env.lookup)
		for name, value := range headers {
			_, credentials, _ := strings.Cut(value, " ") // such as Bearer
			out = append(out, redact.Secret{Name: where + ".headers." + name, Value: value}, redact.Secret{Name: where + ".headers." + name, Value: credentials})
		}
		add(where+".url", d.URL)
	}
	add("telemetry.endpoint", conf.Telemetry.Endpoint)
	add("docker.host", conf.Docker.Host)
	add("fetch.proxy", conf.Fetch.Proxy)
	add("egress.proxy", conf.Egress.Proxy)
	for name, server := range conf.MCP {
		add("mcpServers."+name+".url", &server.URL)
	}
	for name, m := range conf.Models {
		add("models."+name+".base_url", m.BaseURL)
	}
	return out
}

// exporter exports a process's telemetry. The first session opens it. A nil exporter
// exports nothing.
type exporter struct {
	opened sync.Once
	to     *telemetry.Exporter
	err    error

	mu      sync.Mutex
	warning string
	logger  *zap.Logger
}

// openObserver returns the function that exports sessions' records, or nil. A fault of
// the environment is only a warning: its variables may be meant for other programs.
func (s *settings) openObserver() (func(record.Record, []byte), error) {
	x := s.deps.telemetry
	if x == nil {
		return nil, nil
	}
	x.opened.Do(func() { x.openExporter(s) })
	if x.to == nil {
		return nil, x.err
	}
	return x.to.Observe, nil
}

func (x *exporter) openExporter(s *settings) {
	o, err := s.conf.Telemetry.Options(s.environ.lookup)
	if err != nil {
		x.err = err
		return
	}
	o.Version, o.NoParent, o.Warn = programVersion(), s.shared, x.keepWarning
	x.to, err = telemetry.Open(context.Background(), o)
	if e, ok := errors.AsType[*telemetry.SettingError](err); ok && e.Name == "endpoint" {
		x.err = &config.Error{Where: "telemetry.endpoint", Message: e.Reason, Hint: "write it as http://localhost:4318", Err: err}
	} else if err != nil {
		x.keepWarning(err.Error())
	}
}

// keepWarning logs a warning, or keeps it for the end of the program, where it disturbs
// nobody.
func (x *exporter) keepWarning(text string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.warning = text; x.logger != nil {
		x.logger.Warn("telemetry is not exported", zap.String("why", text))
	}
}

func (x *exporter) logWarning(to *zap.Logger) {
	if x == nil {
		return
	}
	x.mu.Lock()
	warning := x.warning
	x.logger = to
	x.mu.Unlock()
	if warning != "" {
		x.keepWarning(warning)
	}
}

// closeExporter sends the rest, and prints the warning if there is no log.
func (x *exporter) closeExporter(ctx context.Context, a *app) {
	if x == nil {
		return
	}
	x.to.Close(ctx)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.warning != "" && x.logger == nil {
		a.warn("telemetry is not exported: " + x.warning)
	}
}

// skillOptions returns where to look for skills.
func skillOptions(conf *config.Config, env environ) (runner.SkillOptions, error) {
	if *conf.Skills == "off" {
		return runner.SkillOptions{}, nil
	}
	dirs, err := conf.OperatorSkillDirs(env.configDir())
	return runner.SkillOptions{Workspace: *conf.Skills == "all", CheckFile: config.CheckPrivate, Dirs: dirs}, err
}

func localUser(conf *config.Config) runner.User {
	return runner.User{Name: runner.LocalUser(), Admin: !conf.Requirements.RefuseLocalAdmin}
}
