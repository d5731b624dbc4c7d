package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Options says where settings come from.
type Options struct {
	// Environ is the environment as NAME=value; nothing else is read of it.
	Environ []string
	// Others are CAISSON_… names that are no settings, such as CAISSON_CONFIG.
	Others []string
	// Path is the user's file. Needed says that it was named and must exist.
	Path   string
	Needed bool
	// Profile is a name in the user's file, or "".
	Profile string
	// Flags is what the command line set.
	Flags File
	// Requirements is the administrator's file, which may be absent, and
	// RequirementsUID the user who must own it and its folder: 0 outside tests.
	Requirements    string
	RequirementsUID int
}

// Config is what counts, and where it came from.
type Config struct {
	File
	Requirements Requirements
	// Sources lists what was read, the weakest first.
	Sources []Source
}

// Source is one place that settings came from. SHA256 is that of the file.
type Source struct{ Name, Path, SHA256 string }

// Load reads all layers. Its errors are [Error]s.
func Load(o Options) (Config, error) {
	c := Config{File: builtin(), Sources: []Source{{Name: "built-in"}}}
	getenv := lookup(o.Environ)
	if err := c.loadUser(o, getenv); err != nil {
		return Config{}, err
	}
	if err := c.loadProfile(o); err != nil {
		return Config{}, err
	}
	env, found, err := FromEnviron(o.Environ, o.Others)
	if err != nil {
		return Config{}, err
	}
	if found {
		c.File = c.Over(env)
		c.Sources = append(c.Sources, Source{Name: "environment"})
	}
	c.File = c.Over(o.Flags)
	c.Sources = append(c.Sources, Source{Name: "flags"})
	if err := c.loadRequirements(o, getenv); err != nil {
		return Config{}, err
	}
	return c, c.check()
}

func (c *Config) loadUser(o Options, getenv func(string) (string, bool)) error {
	if o.Path == "" {
		return nil
	}
	text, err := os.ReadFile(o.Path)
	if errors.Is(err, fs.ErrNotExist) && !o.Needed {
		return nil
	}
	if err != nil {
		return &Error{Where: o.Path, Message: errors.Unwrap(err).Error(), Mend: "mend the file, or unset CAISSON_CONFIG"}
	}
	var user File
	if err := parse(o.Path, text, getenv, &user); err != nil {
		return err
	}
	c.File, c.Profiles = c.Over(user), user.Profiles
	for name, p := range c.Profiles {
		if p.Profiles != nil {
			return &Error{Where: o.Path, Message: "profile " + name + " holds profiles of its own", Mend: "profiles don't nest"}
		}
	}
	c.Sources = append(c.Sources, Source{"user", o.Path, hash(text)})
	return nil
}

func (c *Config) loadProfile(o Options) error {
	if o.Profile == "" {
		return nil
	}
	p, ok := c.Profiles[o.Profile]
	if !ok {
		have := "it has none"
		if len(c.Profiles) > 0 {
			have = "it has " + strings.Join(slices.Sorted(maps.Keys(c.Profiles)), ", ")
		}
		return &Error{Where: o.Path, Message: "there is no profile " + o.Profile + "; " + have, Mend: "name one of these, or add it under profiles:"}
	}
	c.File = c.Over(p)
	c.Sources = append(c.Sources, Source{Name: "profile", Path: o.Profile})
	return nil
}

func (c *Config) loadRequirements(o Options, getenv func(string) (string, bool)) error {
	if o.Requirements == "" {
		return nil
	}
	text, err := os.ReadFile(o.Requirements)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &Error{Where: o.Requirements, Message: errors.Unwrap(err).Error(), Mend: "an administrator must make it readable; without it nothing runs"}
	}
	for _, path := range []string{filepath.Dir(o.Requirements), o.Requirements} {
		if err := checkOwner(path, o.RequirementsUID); err != nil {
			return err
		}
	}
	if err := parse(o.Requirements, text, getenv, &c.Requirements); err != nil {
		return err
	}
	c.Sources = append(c.Sources, Source{"requirements", o.Requirements, hash(text)})
	return nil
}

// check refuses values that the table of settings checks for flags, wherever
// they came from.
func (c *Config) check() error {
	for _, w := range []struct {
		name  string
		value *string
		words []string
	}{
		{"backend", c.Backend, Backends()},
		{"git", c.Git, []string{"ro", "commit"}},
		{"mode", c.Mode, Modes()},
		{"requirements.mode", c.Requirements.Mode, Modes()},
		{"on_prompt", c.OnPrompt, []string{"deny", "fail", "allow"}},
	} {
		if w.value != nil && !slices.Contains(w.words, *w.value) {
			return &Error{Where: w.name, Message: "\"" + *w.value + "\" is none of " + strings.Join(w.words, ", ")}
		}
	}
	for name, path := range map[string]*string{
		"caisson-guest": c.Programs.Guest, "runsc": c.Programs.Runsc, "runc": c.Programs.Runc,
		"buildctl": c.Programs.Buildctl, "buildah": c.Programs.Buildah,
	} {
		if path != nil && !filepath.IsAbs(*path) {
			return &Error{Where: "programs." + name, Message: *path + " is no absolute path"}
		}
	}
	return c.tighten()
}

func lookup(environ []string) func(string) (string, bool) {
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

func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
