package config

import (
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// Built-in settings.
const (
	// DefaultImage needs no download: the host's own /usr.
	DefaultImage = "host"
	// DefaultRounds bounds a run's model calls (docs of the loop).
	DefaultRounds = 50
	// DefaultKeep is how long the changes of an overlay run wait to be applied
	// or discarded: a holiday.
	DefaultKeep = 14 * 24 * time.Hour
)

// builtin is the lowest layer. Every setting that has a default has it here,
// so that requirements are compared with what would count.
func builtin() File {
	r := limits.DefaultResources()
	return File{
		Backend: new("auto"), Image: new(DefaultImage), Git: new("ro"), OnPrompt: new("deny"),
		Grace: new(Duration(sandbox.DefaultGrace)), Stream: new(true), KeepChanges: new(Duration(DefaultKeep)), AcceptRunnerAsOwner: new(false), RefuseLost: new(false),
		Limits: Limits{Rounds: new(Count(DefaultRounds))},
		Resources: Resources{
			Memory: new(Size(r.MemoryBytes)), CPUs: new(CPUs(r.MilliCPUs)), PIDs: new(Count(r.PIDs)),
			Tmp: new(Size(r.TmpBytes)), Home: new(Size(r.HomeBytes)), Shm: new(Size(r.ShmBytes)),
			OpenFiles: new(Count(r.OpenFiles)), CommandTime: new(Duration(r.CommandTime)),
		},
	}
}

// SandboxResources gives the limits of the sandbox, checked.
func (c *Config) SandboxResources() (limits.Resources, error) {
	in := c.File.Resources
	r := limits.Resources{
		MemoryBytes: int64(*in.Memory), MilliCPUs: int64(*in.CPUs), PIDs: int64(*in.PIDs),
		TmpBytes: int64(*in.Tmp), HomeBytes: int64(*in.Home), ShmBytes: int64(*in.Shm),
		OpenFiles: int64(*in.OpenFiles), CommandTime: time.Duration(*in.CommandTime),
	}
	if err := r.Validate(); err != nil {
		return r, &Error{Where: "resources", Message: err.Error()}
	}
	return r, nil
}

// Budget gives the limits of the run.
func (c *Config) Budget() limits.Budget {
	var b limits.Budget
	count := func(dst **int64, v *Count) {
		if v != nil {
			*dst = new(int64(*v))
		}
	}
	count(&b.Rounds, c.Limits.Rounds)
	count(&b.ToolCalls, c.Limits.ToolCalls)
	count(&b.Tokens, c.Limits.Tokens)
	if c.Limits.Timeout != nil {
		b.WallTime = new(time.Duration(*c.Limits.Timeout))
	}
	return b
}

// ToolPolicy gives the policy. Without a preset of the user's, preset counts.
func (c *Config) ToolPolicy(preset string) (tools.Policy, error) {
	p, err := c.Policy.build(preset)
	if err != nil {
		return p, err
	}
	if c.Requirements.Policy != nil {
		// What the requirements don't speak of stays as mild as it is.
		stricter := c.Requirements.Policy.rules()
		stricter.Name = "requirements"
		if name := c.Requirements.Policy.Preset; name != nil {
			base, err := tools.Preset(*name)
			if err != nil {
				return p, &Error{Where: "requirements", Message: err.Error()}
			}
			p.Tighten = append(p.Tighten, base)
		}
		for _, class := range []tools.Class{tools.ClassNone, tools.ClassRead, tools.ClassWrite, tools.ClassExecute, tools.ClassNetwork} {
			if _, ok := stricter.Classes[class]; !ok {
				stricter.Classes[class] = tools.ModeAuto
			}
		}
		p.Tighten = append(p.Tighten, stricter)
	}
	if err := p.Validate(); err != nil {
		return p, &Error{Where: "policy", Message: err.Error()}
	}
	return p, nil
}

func (p *Policy) build(preset string) (tools.Policy, error) {
	if p != nil && p.Preset != nil {
		preset = *p.Preset
	}
	base, err := tools.Preset(preset)
	if err != nil || p == nil {
		if err != nil {
			err = &Error{Where: "policy", Message: err.Error()}
		}
		return base, err
	}
	rules := p.rules()
	for class, mode := range rules.Classes {
		base.Classes[class] = mode
		delete(base.Sandboxed, class) // what the user wrote is not milder in the sandbox
	}
	base.Tools = rules.Tools
	base.TrustedWorkspaces = rules.TrustedWorkspaces
	base.TrustedOverrides = rules.TrustedOverrides
	return base, nil
}

// rules gives the policy's own entries, without its preset.
func (p *Policy) rules() tools.Policy {
	out := tools.Policy{
		Classes: map[tools.Class]tools.Mode{}, Tools: map[string]tools.Mode{},
		TrustedWorkspaces: p.TrustedWorkspaces, TrustedOverrides: map[tools.Class]tools.Mode{},
	}
	for k, v := range p.Default {
		out.Classes[tools.Class(k)] = tools.Mode(v)
	}
	for k, v := range p.Tools {
		out.Tools[k] = tools.Mode(v)
	}
	for k, v := range p.TrustedOverrides {
		out.TrustedOverrides[tools.Class(k)] = tools.Mode(v)
	}
	return out
}
