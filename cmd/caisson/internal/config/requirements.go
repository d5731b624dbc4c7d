package config

import (
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
	// RefuseLost refuses a sandbox that lacks a protection, whatever was asked for.
	RefuseLost bool      `yaml:"refuse_lost"`
	Policy     *Policy   `yaml:"policy"`
	Limits     Limits    `yaml:"limits"`
	Resources  Resources `yaml:"resources"`
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
	lower(&c.Limits.Rounds, r.Limits.Rounds)
	lower(&c.Limits.ToolCalls, r.Limits.ToolCalls)
	lower(&c.Limits.Tokens, r.Limits.Tokens)
	lower(&c.Limits.Timeout, r.Limits.Timeout)
	lower(&c.File.Resources.Memory, r.Resources.Memory)
	lower(&c.File.Resources.CPUs, r.Resources.CPUs)
	lower(&c.File.Resources.PIDs, r.Resources.PIDs)
	lower(&c.File.Resources.Tmp, r.Resources.Tmp)
	lower(&c.File.Resources.Home, r.Resources.Home)
	lower(&c.File.Resources.Shm, r.Resources.Shm)
	lower(&c.File.Resources.OpenFiles, r.Resources.OpenFiles)
	lower(&c.File.Resources.CommandTime, r.Resources.CommandTime)
	return nil
}

// refuse reports a choice that the requirements don't allow.
func (c *Config) refuse(r Requirements) error {
	forbidden := func(what, got string) error {
		return &Error{
			Where: "requirements", Message: what + " " + got + " is not allowed on this machine",
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
		return forbidden("git mode", *c.Git)
	case r.Mode != nil && *r.Mode == "overlay" && c.Mode != nil && *c.Mode != "overlay":
		return forbidden("mode", *c.Mode)
	case r.RefuseRunnerAsOwner && *c.AcceptRunnerAsOwner:
		return forbidden("accept_runner_as_owner", "true")
	}
	order := []string{"deny", "fail", "allow"}
	if r.OnPrompt != nil && slices.Index(order, *c.OnPrompt) > slices.Index(order, *r.OnPrompt) {
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

// lower takes the smaller of a setting and its cap; the cap where there is no
// setting, which means no limit.
func lower[T Count | Size | Duration | CPUs](v **T, limit *T) {
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
