package config

import (
	"errors"
	"strings"
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
	// DefaultKeepSessions is how long the records of a session are kept whole:
	// long enough for what is asked a quarter later.
	DefaultKeepSessions = 90 * 24 * time.Hour
)

// builtin is the lowest layer. Every setting that has a default has it here,
// so that requirements are compared with what would count.
func builtin() File {
	r := limits.DefaultResources()
	return File{
		Backend: new("auto"), Image: new(DefaultImage), Git: new("ro"), OnPrompt: new("deny"),
		Concurrency: new(Count(tools.DefaultConcurrency)), ConfirmTimeout: new(Duration(tools.DefaultConfirmTimeout)),
		Grace: new(Duration(sandbox.DefaultGrace)), Stream: new(true), KeepChanges: new(Duration(DefaultKeep)), KeepSessions: new(Duration(DefaultKeepSessions)), AcceptRunnerAsOwner: new(false), AcceptSystemWorkspace: new(false), RefuseLost: new(false), InstructionFiles: new(true),
		Limits: Limits{Rounds: new(Count(DefaultRounds))},
		Resources: Resources{
			Memory: new(Size(r.MemoryBytes)), CPUs: new(CPUs(r.MilliCPUs)), PIDs: new(Count(r.PIDs)),
			Tmp: new(Size(r.TmpBytes)), Home: new(Size(r.HomeBytes)), Shm: new(Size(r.ShmBytes)),
			OpenFiles: new(Count(r.OpenFiles)), CommandTime: new(Duration(r.CommandTime)),
		},
		Fetch: builtinFetch(),
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
		return r, c.locate(resourceError(err))
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

// Budget gives the limits of a turn, which a run has one of.
func (c *Config) Budget() limits.Budget {
	l := c.Limits
	return limits.Budget{
		Rounds: (*int64)(l.Rounds), ToolCalls: (*int64)(l.ToolCalls), Tokens: (*int64)(l.Tokens), CostMicroUSD: (*int64)(l.Cost), WallTime: (*time.Duration)(l.Timeout),
	}
}

// SessionBudget gives the limits of a session with all of its turns.
func (c *Config) SessionBudget() limits.Budget {
	l := c.Limits.Session
	return limits.Budget{ToolCalls: (*int64)(l.ToolCalls), Tokens: (*int64)(l.Tokens), CostMicroUSD: (*int64)(l.Cost), WallTime: (*time.Duration)(l.Timeout)}
}
