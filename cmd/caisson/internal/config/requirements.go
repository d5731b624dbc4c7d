package config

import (
	"cmp"
	"slices"
	"strings"
)

// Requirements is an administrator's file. It makes nothing milder: limits and
// resources are lowered to it, the policy's modes raised to it, and a choice
// that it does not allow is an error.
type Requirements struct {
	// Backends and Images are what may be chosen; absent means any. An image
	// ending in * allows what begins like it.
	Backends []string `yaml:"backends"`
	Images   []string `yaml:"images"`
	// Git is "ro" to refuse commit.
	Git *string `yaml:"git"`
	// Mode is "overlay" to refuse bind: nothing reaches a workspace but by apply.
	Mode *string `yaml:"mode"`
	// OnPrompt is "deny" to refuse allow and fail, "fail" to refuse allow.
	OnPrompt *string `yaml:"on_prompt"`
	// RefuseRunnerAsOwner refuses accept_runner_as_owner.
	RefuseRunnerAsOwner bool `yaml:"refuse_runner_as_owner"`
	// RefuseSystemWorkspace refuses accept_system_workspace.
	RefuseSystemWorkspace bool `yaml:"refuse_system_workspace"`
	// RefuseLost refuses a sandbox that lacks a protection, whatever was asked for.
	RefuseLost bool `yaml:"refuse_lost"`
	// InstructionFiles is false to keep a workspace's AGENTS.md from the model.
	InstructionFiles *bool     `yaml:"instruction_files"`
	Policy           *Policy   `yaml:"policy"`
	Limits           Limits    `yaml:"limits"`
	Resources        Resources `yaml:"resources"`
	// Fetch narrows what may be fetched.
	Fetch FetchBounds `yaml:"fetch"`
}

// tighten holds the effective settings against the requirements.
func (c *Config) tighten() error {
	r := c.Requirements
	if err := c.refuse(r); err != nil {
		return err
	}
	if r.Mode != nil && *r.Mode == "overlay" {
		c.Mode = r.Mode
	}
	if c.Mode == nil {
		c.Mode = new("bind")
	}
	if r.RefuseLost {
		c.File.RefuseLost = new(true)
	}
	if r.InstructionFiles != nil && !*r.InstructionFiles {
		c.File.InstructionFiles = r.InstructionFiles
	}
	lowerLimits(&c.Limits, r.Limits)
	lowerResources(&c.File.Resources, r.Resources)
	return c.Fetch.narrow("requirements", r.Fetch)
}

// refuse reports a choice that the requirements don't allow.
func (c *Config) refuse(r Requirements) error {
	forbidden := func(key, got string) error {
		return &Error{
			Where: "requirements", Message: cmp.Or(c.given(key), key) + " " + got + " is not allowed on this machine",
			Mend: "choose what the administrator's file allows",
		}
	}
	backend, image := *c.Backend, *c.Image
	switch {
	case backend != "auto" && !c.Allowed(backend):
		return forbidden("backend", backend)
	case !c.AllowedImage(image):
		return forbidden("image", image)
	case r.Git != nil && *r.Git == "ro" && *c.Git != "ro":
		return forbidden("git", *c.Git)
	case r.Mode != nil && *r.Mode == "overlay" && c.Mode != nil && *c.Mode != "overlay":
		return forbidden("mode", *c.Mode)
	case r.RefuseRunnerAsOwner && *c.AcceptRunnerAsOwner:
		return forbidden("accept_runner_as_owner", "true")
	case r.RefuseSystemWorkspace && *c.AcceptSystemWorkspace:
		return forbidden("accept_system_workspace", "true")
	}
	if r.OnPrompt != nil && milder(*c.OnPrompt, *r.OnPrompt) {
		return forbidden("on_prompt", *c.OnPrompt)
	}
	return nil
}

// Allowed says whether the requirements allow a backend.
func (c *Config) Allowed(backend string) bool {
	return c.Requirements.Backends == nil || slices.Contains(c.Requirements.Backends, backend)
}

// AllowedImage says whether the requirements allow an image, as it is written.
// A path counts as it is resolved too: rootfs:/base/../home is not below /base.
func (c *Config) AllowedImage(image string) bool {
	return c.Requirements.Images == nil ||
		slices.ContainsFunc(c.Requirements.Images, func(allowed string) bool { return matches(allowed, image) })
}

func matches(pattern, s string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(s, prefix)
	}
	return pattern == s
}

// lowerLimits and lowerResources lower each to its cap.
func lowerLimits(v *Limits, limit Limits) {
	lower(&v.Rounds, limit.Rounds)
	lower(&v.ToolCalls, limit.ToolCalls)
	lower(&v.Tokens, limit.Tokens)
	lower(&v.Cost, limit.Cost)
	lower(&v.Timeout, limit.Timeout)
	lower(&v.Session.ToolCalls, limit.Session.ToolCalls)
	lower(&v.Session.Tokens, limit.Session.Tokens)
	lower(&v.Session.Cost, limit.Session.Cost)
	lower(&v.Session.Timeout, limit.Session.Timeout)
}

func lowerResources(v *Resources, limit Resources) {
	lower(&v.Memory, limit.Memory)
	lower(&v.CPUs, limit.CPUs)
	lower(&v.PIDs, limit.PIDs)
	lower(&v.Tmp, limit.Tmp)
	lower(&v.Home, limit.Home)
	lower(&v.Shm, limit.Shm)
	lower(&v.OpenFiles, limit.OpenFiles)
	lower(&v.CommandTime, limit.CommandTime)
}

// milder says whether one on_prompt is milder than another: deny goes on
// without the call, fail ends the run, allow runs what nobody approved.
func milder(a, than string) bool {
	order := []string{"deny", "fail", "allow"}
	return slices.Index(order, a) > slices.Index(order, than)
}

// lower takes the smaller of a setting and its cap; the cap where there is no
// setting, which means no limit.
func lower[T Count | Size | Duration | CPUs | Dollars](v **T, limit *T) {
	if limit != nil && (*v == nil || **v > *limit) {
		*v = limit
	}
}

func value[T any](v *T, def T) T {
	if v == nil {
		return def
	}
	return *v
}
