package config

import (
	"errors"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
)

// SandboxResources returns the checked limits of the sandbox.
func (c *Config) SandboxResources() (limits.Resources, error) {
	in := c.File.Resources
	r := limits.Resources{
		MemoryBytes: int64(*in.Memory), MilliCPUs: int64(*in.CPUs), PIDs: int64(*in.PIDs),
		TmpBytes: int64(*in.Tmp), HomeBytes: int64(*in.Home), ShmBytes: int64(*in.Shm),
		OpenFiles: int64(*in.OpenFiles), CommandTime: time.Duration(*in.CommandTime),
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

// Budget returns the limits of a turn; a run has one turn.
func (l Limits) Budget() limits.Budget {
	return limits.Budget{
		Rounds: (*int64)(l.Rounds), ToolCalls: (*int64)(l.ToolCalls), Tokens: (*int64)(l.Tokens), CostMicroUSD: (*int64)(l.Cost), WallTime: (*time.Duration)(l.Timeout),
	}
}

// Budget returns the limits of a session with all of its turns.
func (l SessionLimits) Budget() limits.Budget {
	return limits.Budget{ToolCalls: (*int64)(l.ToolCalls), Tokens: (*int64)(l.Tokens), CostMicroUSD: (*int64)(l.Cost), WallTime: (*time.Duration)(l.Timeout)}
}
