package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/runner/record"
)

// Options has the sources of settings.
type Options struct {
	// Environ is the environment as NAME=value.
	Environ []string
	// Others are CAISSON_… variables that are not settings, such as CAISSON_CONFIG.
	Others []string
	// Path is the user's file. Needed is set if it was named and must exist.
	Path   string
	Needed bool
	// Profile is a name in the user's file, or "".
	Profile string
	// Workspace is the workspace's resolved path, or "".
	Workspace string
	// Builtin are the command's own default values.
	Builtin File
	// Flags are the settings of the command line. Asked are the requests of a server's
	// client.
	Flags, Asked File
	// Project and ProjectServers are a trusted workspace's own files, or nil if missing
	// or not in effect. ProjectServers is the .mcp.json.
	Project        *ProjectFile
	ProjectServers *ProjectFile
	// Requirements is the administrator's file, which may be absent. RequirementsUID
	// must own it and its directory: 0 except in tests.
	Requirements    string
	RequirementsUID int
	// Resources are a sandbox's default ones. nil means limits.DefaultResources.
	Resources *limits.Resources
	// NameKeys makes errors name the keys of settings instead of the flags or variables
	// that set them.
	NameKeys bool
}

// Config has the settings in effect and their origins.
type Config struct {
	File
	Requirements Requirements
	// Project is a trusted workspace's file. File has all of it except the policy.
	Project Project
	// SkippedServers are servers of a trusted workspace's .mcp.json that can't be used.
	SkippedServers []record.Ignored
	// Sources lists what was read, the weakest first.
	Sources []record.Source

	origins origins
	// user and required are the user's and the administrator's file.
	user, required layerText
	// home is the user's home directory, configHome the one for configurations, and
	// workspace the workspace's resolved path. Each may be "".
	home, configHome, workspace string
	// asksOnPrompt is set if a flag or the environment sets on_prompt.
	asksOnPrompt bool
}

// Load reads all layers. Its errors are [Error]s.
func Load(o Options) (Config, error) {
	c := Config{origins: origins{}, workspace: o.Workspace}
	getenv := newLookup(o.Environ)
	if home, _ := getenv("HOME"); filepath.IsAbs(home) {
		c.home, c.configHome = home, filepath.Join(home, ".config")
	}
	if dir, _ := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		c.configHome = dir
	}
	resources := limits.DefaultResources()
	if o.Resources != nil {
		resources = *o.Resources
	}
	builtin := builtinFile(resources)
	c.addLayer(builtin.Over(o.Builtin), record.Source{Name: "built-in"})
	for _, load := range []func(Options, lookup) error{c.loadUser, c.loadProfile, c.loadWorkspace, c.loadProject, c.loadProjectServers} {
		if err := load(o, getenv); err != nil {
			return Config{}, err
		}
	}
	env, found, err := fromEnviron(o.Environ, o.Others)
	if err != nil {
		return Config{}, err
	}
	if found {
		c.addLayer(env, record.Source{Name: "environment"})
	}
	c.addFlags(o.Flags)
	if !o.NameKeys {
		c.origins.nameSettings()
	}
	c.File = c.Over(o.Asked)
	for _, v := range listValues(o.Asked) {
		c.origins[v.Key] = "client"
	}
	c.asksOnPrompt = env.OnPrompt != nil || o.Flags.OnPrompt != nil
	if err := c.loadRequirements(o, getenv); err != nil {
		return Config{}, err
	}
	before := listValues(c.File)
	if err := c.checkValues(); err != nil {
		return Config{}, c.addPlace(err)
	}
	c.origins.noteChanges(before, c.File, "requirements")
	// These have no value before the requirements are known.
	for key, required := range map[string]*string{"mode": c.Requirements.Mode, "isolation": c.Requirements.Isolation, "cache_use": c.Requirements.CacheUse} {
		if required == nil && c.origins[key] == "requirements" {
			c.origins[key] = "built-in"
		}
	}
	return c, nil
}

// addLayer puts a layer over the ones so far.
func (c *Config) addLayer(f File, from record.Source) {
	c.File = c.Over(f)
	for _, v := range listValues(f) {
		c.origins[v.Key] = from.String()
	}
	c.Sources = append(c.Sources, from)
}

// addFlags puts the command line's settings over the layers so far. A variable in env
// replaces one in env_from, and vice versa.
func (c *Config) addFlags(flags File) {
	c.EnvFrom = slices.DeleteFunc(slices.Clone(c.EnvFrom), func(name string) bool { _, there := flags.Env[name]; return there })
	c.Env = maps.Clone(c.Env)
	for _, name := range slices.Concat(flags.EnvFrom, flags.MoreEnvFrom) {
		delete(c.Env, name)
		delete(c.origins, joinKey("env", name))
	}
	if flags.MoreEnvFrom != nil {
		lower, from := c.EnvFrom, c.origins["env_from"]
		if flags.EnvFrom != nil {
			lower, from = flags.EnvFrom, "flags"
		}
		for _, name := range lower {
			c.origins["env_from."+name] = from
		}
		for _, name := range flags.MoreEnvFrom {
			c.origins["env_from."+name] = fromFlag + "--env"
		}
		flags.EnvFrom = slices.Concat(lower, flags.MoreEnvFrom)
	}
	c.addLayer(flags, record.Source{Name: "flags"})
}

// loadProject applies a trusted workspace's own file where it is stricter. Flags and
// the environment can override it, except its policy.
func (c *Config) loadProject(o Options, _ lookup) error {
	if o.Project == nil {
		return nil
	}
	p, err := parseProject(*o.Project)
	if err != nil {
		return err
	}
	before := listValues(c.File)
	if err := c.tightenBy(p); err != nil {
		return err
	}
	from := record.Source{Name: "project", Path: o.Project.Path, SHA256: o.Project.SHA256()}
	c.origins.noteChanges(before, c.File, from.String())
	c.Sources = append(c.Sources, from)
	return nil
}

func (c *Config) loadUser(o Options, getenv lookup) error {
	if o.Path == "" {
		return nil
	}
	text, err := readPrivate(o.Path)
	if errors.Is(err, fs.ErrNotExist) && !o.Needed {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if err != nil {
		hint := "make it a file that you can read"
		if o.Needed {
			hint = "name a file that you can read with CAISSON_CONFIG, or unset it"
		}
		return &Error{Where: o.Path, Message: errors.Unwrap(err).Error(), Hint: hint}
	}
	var user File
	if err := parse(o.Path, text, getenv, &user); err != nil {
		return err
	}
	c.user = layerText{o.Path, text}
	c.Profiles, c.Workspaces = user.Profiles, user.Workspaces
	for _, of := range []struct {
		kind string
		sets map[string]File
	}{{"profile ", c.Profiles}, {"workspace ", c.Workspaces}} {
		for _, name := range sortedKeys(of.sets) {
			if set := of.sets[name]; set.Profiles != nil || set.Workspaces != nil {
				return &Error{Where: o.Path, Message: of.kind + name + " holds profiles or workspaces of its own", Hint: "they don't nest"}
			}
		}
	}
	c.addLayer(user, record.Source{Name: "user", Path: o.Path, SHA256: hashHex(text)})
	return nil
}

func (c *Config) loadProfile(o Options, _ lookup) error {
	if o.Profile == "" {
		return nil
	}
	p, ok := c.Profiles[o.Profile]
	if !ok {
		have, hint := "it has none", "add it under profiles"
		if len(c.Profiles) > 0 {
			have, hint = "it has "+strings.Join(sortedKeys(c.Profiles), ", "), "name one of these, or add it under profiles"
		}
		return &Error{Where: o.Path, Message: "there is no profile " + o.Profile + "; " + have, Hint: hint}
	}
	c.addLayer(p, record.Source{Name: "profile", Path: o.Profile})
	return nil
}

// loadWorkspace puts the user's settings for the workspace over the profile's.
func (c *Config) loadWorkspace(o Options, _ lookup) error {
	for _, name := range sortedKeys(c.Workspaces) {
		if c.home == "" && strings.HasPrefix(name, "~") {
			continue // not a workspace of this process
		}
		path, err := resolveFolder(name, c.home)
		if err != nil {
			return &Error{Where: o.Path, Message: "workspaces: " + err.Error(), Hint: "write the path from / or ~/ on"}
		}
		if path == o.Workspace {
			c.addLayer(c.Workspaces[name], record.Source{Name: "workspace", Path: name})
		}
	}
	return nil
}

func (c *Config) loadRequirements(o Options, getenv lookup) error {
	if o.Requirements == "" {
		return nil
	}
	text, err := os.ReadFile(o.Requirements)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &Error{Where: o.Requirements, Message: errors.Unwrap(err).Error(), Hint: "an administrator must make it readable; without it nothing runs"}
	}
	for _, path := range []string{filepath.Dir(o.Requirements), o.Requirements} {
		if err := checkOwner(path, o.RequirementsUID); err != nil {
			return err
		}
	}
	if err := parse(o.Requirements, text, getenv, &c.Requirements); err != nil {
		return err
	}
	c.required = layerText{o.Requirements, text}
	c.Sources = append(c.Sources, record.Source{Name: "requirements", Path: o.Requirements, SHA256: hashHex(text)})
	return nil
}

// maxConcurrency bounds a session's concurrent tool calls.
const maxConcurrency = 64

// checkValues refuses values that no flag accepts, wherever they came from.
func (c *Config) checkValues() error {
	if err := checkWords("", reflect.ValueOf(c.File)); err != nil {
		return err
	}
	if err := checkWords("requirements.", reflect.ValueOf(c.Requirements)); err != nil {
		return err
	}
	for _, p := range []struct {
		prefix string
		policy *Policy
	}{{"policy.", c.Policy}, {"requirements.policy.", c.Requirements.Policy}} {
		if p.policy == nil {
			continue
		}
		if err := checkModes(p.prefix, reflect.ValueOf(*p.policy)); err != nil {
			return err
		}
	}
	if c.Concurrency != nil && *c.Concurrency > maxConcurrency {
		return &Error{Where: "concurrency", Message: fmt.Sprintf("%d tool calls at once are more than %d", *c.Concurrency, maxConcurrency)}
	}
	for _, v := range listValues(File{Programs: c.Programs}) {
		if !filepath.IsAbs(v.Text) {
			return &Error{Where: v.Key, Message: v.Text + " is not an absolute path"}
		}
	}
	for _, check := range []func() error{c.checkVariables, c.checkMounts, c.checkCaches, c.checkRoot, c.checkIsolation, c.checkService, c.checkServers, c.checkAgents} {
		if err := check(); err != nil {
			return err
		}
	}
	return c.applyRequirements()
}

// fromEnviron reads the CAISSON_… variables among NAME=value strings. It refuses
// unknown ones, except those in others.
func fromEnviron(environ, others []string) (File, bool, error) {
	byEnv := map[string]Setting{}
	for _, s := range Settings() {
		byEnv[s.Env()] = s
	}
	var f File
	found := false
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		// As in most programs, an empty variable counts as unset.
		if !strings.HasPrefix(name, envPrefix) || value == "" || slices.Contains(others, name) {
			continue
		}
		s, ok := byEnv[name]
		if !ok {
			e := &Error{Where: name, Message: "no setting has this environment variable", Hint: "unset it, or see docs/settings.md for the names"}
			if near := doctor.NearestWord(name, sortedKeys(byEnv)); near != "" {
				e.Hint = "did you mean " + near + "?"
			}
			return File{}, false, e
		}
		if err := s.Set(&f, value, name); err != nil {
			return File{}, false, err
		}
		found = true
	}
	return f, found, nil
}

// lookup returns a variable of the environment.
type lookup = func(name string) (value string, ok bool)

func newLookup(environ []string) lookup {
	vars := map[string]string{}
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok {
			vars[name] = value
		}
	}
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

func hashHex(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
