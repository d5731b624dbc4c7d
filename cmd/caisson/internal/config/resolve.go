package config

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/telemetry"
	"github.com/caisson-run/caisson/sandbox"
)

// Names is a list of names, such as names of environment variables.
type Names []string

// setText parses the value of a flag: names separated by commas.
func (n *Names) setText(text string) error {
	*n = nil
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name == "" {
			return errors.New("a name is empty")
		}
		*n = append(*n, name)
	}
	return nil
}

// Variables returns the variables of commands as NAME=value, from env and env_from.
func (c *Config) Variables(getenv lookup) ([]string, error) {
	var out []string
	for _, name := range sortedKeys(c.Env) {
		out = append(out, name+"="+c.Env[name])
	}
	for _, name := range slices.Compact(slices.Sorted(slices.Values(c.EnvFrom))) {
		value, ok := getenv(name)
		if !ok {
			hint := "export it, or take it out of env_from"
			if c.origins.flagOrVariable("env_from", name) == "--env" {
				hint = "export it, or write NAME=VALUE"
			}
			return nil, c.addPlace(&Error{Where: "env_from", Item: name, Message: name + " is not set in caisson's environment", Hint: hint})
		}
		out = append(out, name+"="+value)
	}
	return out, sandbox.CheckVariables(out)
}

// checkVariables refuses variables that a sandbox refuses.
func (c *Config) checkVariables() error {
	check := func(where, item, v string) error {
		if err := sandbox.CheckVariables([]string{v}); err != nil {
			return &Error{Where: where, Item: item, Message: strings.TrimPrefix(err.Error(), sandbox.ErrInvalid.Error()+": "), Hint: "take it out"}
		}
		return nil
	}
	for _, name := range sortedKeys(c.Env) {
		if err := check(joinKey("env", name), "", name+"="+c.Env[name]); err != nil {
			return err
		}
	}
	for _, name := range c.EnvFrom {
		if err := check("env_from", name, name+"="); err != nil {
			return err
		}
		if _, both := c.Env[name]; both {
			return &Error{Where: "env_from", Item: name, Message: name + " is in env too", Hint: "keep one of them"}
		}
	}
	return nil
}

// Root returns commands' access to the image's files.
func (c *Config) Root() sandbox.RootMode {
	if *c.WritableRoot {
		return sandbox.RootEphemeral
	}
	return sandbox.RootReadOnly
}

// SandboxSetup returns the setup of each sandbox with an image.
func (c *Config) SandboxSetup(image images.Reference, resources limits.Resources) sandbox.Setup {
	return sandbox.Setup{
		Image: image, Root: c.Root(), Git: sandbox.GitMode(*c.Git), User: sandbox.UserPolicy(*c.User), Service: c.UserService(),
		Resources: resources, Grace: time.Duration(*c.Grace), CallerOwnsFiles: *c.CallerOwnsFiles,
	}
}

// checkRoot refuses a writable root of this machine's own directories.
func (c *Config) checkRoot() error {
	if *c.WritableRoot && *c.Image == string(images.SchemeHost) {
		return &Error{Where: "writable_root", Message: "image host consists of this machine's own directories", Hint: "name another image with image, or take writable_root out"}
	}
	return nil
}

// SandboxIsolation returns the isolation that sandboxes must have, or "" for the
// strongest that works.
func (c *Config) SandboxIsolation() sandbox.Isolation {
	if *c.Isolation == "auto" {
		return ""
	}
	return sandbox.Isolation(*c.Isolation)
}

// checkIsolation refuses a backend that can't have the isolation.
func (c *Config) checkIsolation() error {
	if b := *c.Backend; valueOr(c.Isolation, "") == string(sandbox.IsolationProcess) && b != "auto" && b != "gvisor" {
		return &Error{Where: "isolation", Message: "backend " + b + " has no isolation process", Hint: "set backend to gvisor or auto, or take isolation out"}
	}
	return nil
}

// Toolchains returns the directories that image host shows, as absolute paths.
func (c *Config) Toolchains() ([]string, error) {
	var out []string
	for _, dir := range c.HostImage.Toolchains {
		path, err := expandHome(dir, c.home)
		if err != nil {
			return nil, c.addPlace(&Error{Where: "host_image.toolchains", Item: dir, Message: err.Error(), Hint: "write it from / or ~/ on"})
		}
		out = append(out, path)
	}
	return out, nil
}

// SandboxResources returns the checked limits of the sandbox.
func (c *Config) SandboxResources() (limits.Resources, error) {
	in := c.File.Resources
	r := limits.Resources{
		MemoryBytes: int64(*in.Memory), MilliCPUs: int64(*in.CPUs), PIDs: int64(*in.PIDs),
		TmpBytes: int64(*in.Tmp), HomeBytes: int64(*in.Home), ShmBytes: int64(*in.Shm),
		OpenFiles: int64(*in.OpenFiles), CommandTime: time.Duration(*in.CommandTime),
	}
	if c.origins["resources.tmp"] == "built-in" {
		// Files in /tmp count as memory: a command gets ENOSPC before it is killed.
		r.TmpBytes = min(r.TmpBytes, max(r.MemoryBytes/2, limits.DefaultResources().TmpBytes))
	}
	if err := r.Validate(); err != nil {
		return r, c.addPlace(resourceError(err))
	}
	return r, nil
}

// resourceError names the setting of a resource that is too small.
func resourceError(err error) error {
	e, ok := errors.AsType[*limits.ResourceError](err)
	if !ok {
		return &Error{Where: "resources", Message: err.Error()}
	}
	show := func(n int64) string { return Count(n).String() }
	switch e.Field {
	case "memory", "tmp", "home", "shm":
		show = func(n int64) string { return Size(n).String() }
	case "cpus":
		show = func(n int64) string { return CPUs(n).String() }
	case "command time":
		show = func(n int64) string { return Duration(n).String() }
	}
	return &Error{
		Where:   "resources." + strings.ReplaceAll(e.Field, " ", "_"),
		Message: show(e.Got) + " is less than a sandbox needs, which is " + show(e.Min),
	}
}

// Budget returns the limits of a turn. A run has one turn.
func (l Limits) Budget() limits.Budget {
	return limits.Budget{
		Rounds: (*int64)(l.Rounds), ToolCalls: (*int64)(l.ToolCalls), Tokens: (*int64)(l.Tokens), CostMicroUSD: (*int64)(l.Cost), WallTime: (*time.Duration)(l.Timeout),
	}
}

// Ceilings returns the ceilings of each user.
func (l Limits) Ceilings() limits.Ceilings {
	return limits.Ceilings{Day: l.Day.ceiling(), Month: l.Month.ceiling()}
}

// ProfileCeilings returns the ceilings of models, by name.
func (f *File) ProfileCeilings() map[string]limits.Ceilings {
	out := map[string]limits.Ceilings{}
	for name, m := range f.Models {
		out[name] = limits.Ceilings{Day: m.Limits.Day.ceiling(), Month: m.Limits.Month.ceiling()}
	}
	return out
}

func (l CeilingLimits) ceiling() limits.Ceiling {
	return limits.Ceiling{Requests: (*int64)(l.Requests), Tokens: (*int64)(l.Tokens), CostMicroUSD: (*int64)(l.Cost)}
}

// Budget returns the limits of all turns of a session together.
func (l SessionLimits) Budget() limits.Budget {
	return limits.Budget{ToolCalls: (*int64)(l.ToolCalls), Tokens: (*int64)(l.Tokens), CostMicroUSD: (*int64)(l.Cost), WallTime: (*time.Duration)(l.Timeout)}
}

// Telemetry names a collector.
type Telemetry struct {
	Endpoint *string           `yaml:"endpoint" doc:"address of a collector that receives OTLP over HTTP, such as http://localhost:4318"`
	Headers  map[string]string `yaml:"headers" doc:"headers of each request to it, by name" each:"value of a header; $NAME is that of a variable"`
	Content  *bool             `yaml:"content" default:"false" doc:"also export messages, arguments and results"`
}

// Options returns the options of an exporter. If a header's variable is not set, it
// returns an [Error], and options without the header.
func (t *Telemetry) Options(getenv lookup) (telemetry.Options, error) {
	o := telemetry.Options{
		Getenv:   func(name string) string { v, _ := getenv(name); return v },
		Endpoint: valueOr(t.Endpoint, ""), Content: valueOr(t.Content, false),
	}
	var err error
	o.Headers, err = headerValues("telemetry.headers.", t.Headers, getenv)
	return o, err
}

// headerValues returns the values of headers, of which $NAME is that of a variable. If
// one is not set, it returns an [Error] at the header's name below where, and the
// other values.
func headerValues(where string, headers map[string]string, getenv lookup) (map[string]string, error) {
	out := map[string]string{}
	var err error
	for _, name := range sortedKeys(headers) {
		value := headers[name]
		if variable, ok := strings.CutPrefix(value, "$"); ok {
			if value, ok = getenv(variable); !ok {
				err = cmp.Or(err, error(&Error{Where: where + name, Message: "the variable " + variable + " is not set", Hint: "set it, or write the header's value"}))
				continue
			}
		}
		out[name] = value
	}
	return out, err
}
