package config

import (
	"errors"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
)

// overlaidBy puts a policy over another, key by key. One that names a preset replaces
// the lower one except its denials and its decider, because denials win.
func (p *Policy) overlaidBy(upper *Policy) *Policy {
	switch {
	case upper == nil:
		return p
	case p == nil:
		return upper
	}
	lower := *p
	if upper.Preset != nil {
		lower = Policy{Decider: p.Decider, RelaxedModes: keepDenials(p.RelaxedModes), PolicyRules: PolicyRules{
			Default: keepDenials(p.Default), Tools: keepDenials(p.Tools), Commands: keepDenials(p.Commands), DangerousCommands: p.DangerousCommands,
		}}
	}
	out := lower
	overlayValue(reflect.ValueOf(&out).Elem(), reflect.ValueOf(*upper))
	out.DangerousCommands = slices.Concat(lower.DangerousCommands, upper.DangerousCommands)
	return &out
}

func keepDenials(modes map[string]string) map[string]string {
	kept := maps.Clone(modes)
	maps.DeleteFunc(kept, func(_, mode string) bool { return mode != string(policy.ModeDeny) })
	return kept
}

// ToolPolicy returns the policy. If the settings name no preset, it uses preset.
func (c *Config) ToolPolicy(preset string) (_ policy.Policy, err error) {
	defer func() { err = c.addPlace(err) }()
	p, err := c.Policy.toolPolicy(preset, c.home)
	if err != nil {
		return p, err
	}
	if c.asksOnPrompt {
		// A user who sets on_prompt wants prompts instead of ci's refusals.
		p.NoPrompts = false
	}
	p.Tighten = append(p.Tighten, c.Project.Policy.tighteningLayers()...)
	if r := c.Requirements.Policy; r != nil {
		if r.Preset != nil {
			if _, err := policy.Preset(*r.Preset); err != nil {
				return p, &Error{Where: "requirements.policy.preset", Message: err.Error()}
			}
		}
		p.Tighten = append(p.Tighten, r.tighteningLayers("requirements")...)
	}
	if err := p.Validate(); err != nil {
		return p, &Error{Where: "policy", Message: strings.TrimPrefix(err.Error(), "check policy: ")}
	}
	return p, nil
}

// PolicyDecider returns the decider, or nil, and the key of its settings. An
// administrator's replaces the user's.
func (c *Config) PolicyDecider() (d *Decider, where string) {
	if r := c.Requirements.Policy; r != nil && r.Decider != nil {
		return r.Decider, "requirements.policy.decider"
	}
	if c.Policy == nil {
		return nil, ""
	}
	return c.Policy.Decider, "policy.decider"
}

// HeaderValues returns the values of the headers of each request. Its error is an
// [Error] below where.
func (d *Decider) HeaderValues(where string, getenv lookup) (map[string]string, error) {
	return headerValues(where+".headers.", d.Headers, getenv)
}

func (p *Policy) toolPolicy(preset, home string) (policy.Policy, error) {
	if p != nil && p.Preset != nil {
		preset = *p.Preset
	}
	base, err := policy.Preset(preset)
	if err != nil || p == nil {
		if err != nil {
			err = &Error{Where: "policy.preset", Message: err.Error()}
		}
		return base, err
	}
	rules := p.ownRules()
	for class, mode := range rules.Classes {
		base.Classes[class] = mode
		delete(base.Sandboxed, class) // rules of the user are not milder in the sandbox
	}
	base.Tools, base.Commands = rules.Tools, rules.Commands
	base.RelaxedModes = rules.RelaxedModes
	base.Dangerous = append(base.Dangerous, rules.Dangerous...)
	base.RelaxedWorkspaces, err = resolveFolders(p.RelaxedWorkspaces, home)
	return base, err
}

// tighteningLayers returns a policy as layers that tighten: its preset, then its own
// entries. They don't change anything else.
func (p *Policy) tighteningLayers(name string) []policy.Policy {
	var layers []policy.Policy
	if p.Preset != nil {
		if base, err := policy.Preset(*p.Preset); err == nil {
			base.Name, base.Dangerous = name+", preset "+*p.Preset, nil
			layers = append(layers, base)
		}
	}
	stricter := p.ownRules()
	stricter.Name, stricter.Servers = name, policy.ModeAuto
	for _, class := range []tools.Class{tools.ClassNone, tools.ClassRead, tools.ClassWrite, tools.ClassExecute, tools.ClassNetwork} {
		if _, ok := stricter.Classes[class]; !ok {
			stricter.Classes[class] = policy.ModeAuto
		}
	}
	return append(layers, stricter)
}

func (p *Policy) ownRules() policy.Policy {
	return policy.Policy{
		Classes: convertModes[tools.Class](p.Default), Tools: convertModes[string](p.Tools), Commands: convertModes[string](p.Commands), Dangerous: p.DangerousCommands,
		RelaxedWorkspaces: p.RelaxedWorkspaces, RelaxedModes: convertModes[tools.Class](p.RelaxedModes),
	}
}

func convertModes[K ~string](in map[string]string) map[K]policy.Mode {
	out := make(map[K]policy.Mode, len(in))
	for k, v := range in {
		out[K(k)] = policy.Mode(v)
	}
	return out
}

// resolveFolders resolves directories. See [resolveFolder].
func resolveFolders(folders []string, home string) ([]string, error) {
	var out []string
	for _, folder := range folders {
		path, err := resolveFolder(folder, home)
		if err != nil {
			return nil, &Error{Where: "policy.relaxed_workspaces", Item: folder, Message: err.Error(), Hint: "write it from / or ~/ on"}
		}
		out = append(out, path)
	}
	return out, nil
}

// resolveFolder returns a directory in the form of workspace paths: "~" is the home
// directory, and symlinks are resolved. It doesn't resolve a directory that doesn't
// exist.
func resolveFolder(folder, home string) (string, error) {
	path, err := expandHome(folder, home)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return filepath.Clean(path), nil
}

// expandHome expands "~" at the beginning of a path. It refuses a relative path.
func expandHome(path, home string) (string, error) {
	if rest, ok := strings.CutPrefix(path, "~"); ok && (rest == "" || rest[0] == '/') {
		if home == "" {
			return "", errors.New(path + " needs HOME, which is not set to an absolute path")
		}
		path = home + rest
	}
	if !filepath.IsAbs(path) {
		return "", errors.New(path + " is not an absolute path")
	}
	return path, nil
}

// ShortenHome replaces the home directory at the beginning of a path by "~".
func ShortenHome(path, home string) string {
	if rest, ok := strings.CutPrefix(path, home); ok && home != "" && (rest == "" || rest[0] == '/') {
		return "~" + rest
	}
	return path
}
