// Package task reads a batch's tasks: Harbor task directories (schema 1.0 to 1.4) and
// JSON lines.
//
// Reading starts and contacts nothing. [Task].Unsupported lists what a task needs that
// can't be provided, so that a batch knows it before its first trial.
package task

import (
	"fmt"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// Task is a task. It has at least one step, unless it is unsupported.
type Task struct {
	// ID is unique in a batch: the directory's name, or the line's id.
	ID string
	// Source is the directory, or the file and line, such as tasks.jsonl:3.
	Source string
	// Checksum is "sha256:" and the hash of everything in the task.
	Checksum string
	// Unsupported are the reasons why the task can't run, if any.
	Unsupported []string
	// Variables are variables that the task refers to but isn't given. Each is a reason
	// in Unsupported too.
	Variables []string
	Metadata  map[string]any

	Environment Environment
	// Solution is the directory with the oracle's solve.sh, or "". SolutionEnv has its
	// variables, as NAME=value. Steps may have their own solution.
	Solution    string
	SolutionEnv []string
	Steps       []Step
	// MultiStep means that the task has named steps. Strategy combines their rewards.
	MultiStep bool
	Strategy  Strategy
}

// Strategy says how the rewards of steps are combined.
type Strategy string

// The strategies. Mean is the mean over steps with rewards, where missing keys count as
// 0. Final takes the last step's rewards.
const (
	Mean  Strategy = "mean"
	Final Strategy = "final"
)

// Environment is where a task runs. Zero values mean the caller's defaults.
type Environment struct {
	// Image is a reference for package images: "build:" and a directory with a
	// Dockerfile, or an image's name.
	Image     string
	BuildTime time.Duration
	// Workdir is the agent's working directory; "" means the image's WORKDIR.
	Workdir string
	// SkillsDir is the image's directory with skills for the agent, or "".
	SkillsDir string
	// Workspace is a directory or tar archive for the agent to work on; "" means the
	// image's content of Workdir. Git is a repository instead.
	Workspace string
	Git       *Git
	// Root means that commands run as root on a writable root: the task has its own
	// image, like Harbor tasks.
	Root bool
	// MilliCPUs, MemoryBytes and StorageBytes are a trial's needs and limits.
	MilliCPUs, MemoryBytes, StorageBytes int64
	// Env are all commands' variables, as NAME=value.
	Env         []string
	Network     Network
	HealthCheck *HealthCheck
}

// Environments returns the environments of the agent and of verifiers with their own.
func (t *Task) Environments() []Environment {
	list := []Environment{t.Environment}
	for _, s := range t.Steps {
		if s.Verifier.Separate {
			list = append(list, s.Verifier.Environment)
		}
	}
	return list
}

// LongestCommand returns the most time that the task gives to one command: a verifier,
// one that collects artifacts, a health check, and the agent if that is a command.
func (t *Task) LongestCommand(agent bool) time.Duration {
	longest := t.Environment.HealthCheck.time()
	for _, s := range t.Steps {
		longest = max(longest, s.HealthCheck.time())
		if s.Verifier.Tests+s.Verifier.Command != "" {
			longest = max(longest, s.Verifier.Time)
		}
		if agent {
			longest = max(longest, s.Agent.Time)
		}
		for _, c := range s.Verifier.Collect {
			longest = max(longest, c.Time)
		}
	}
	return longest
}

// Git is a commit of a repository.
type Git struct{ URL, Commit string }

// NetworkMode is a kind of network.
type NetworkMode string

// The modes.
const (
	NoNetwork NetworkMode = "no-network"
	Public    NetworkMode = "public"
	AllowList NetworkMode = "allowlist"
)

// Network limits the hosts that commands may reach. Rules are for [AllowList].
type Network struct {
	Mode  NetworkMode
	Rules []rule.Rule
}

// HealthCheck is a command that must succeed before the agent starts.
type HealthCheck struct {
	Command                                       string
	Interval, Timeout, StartPeriod, StartInterval time.Duration
	Retries                                       int
}

func (h *HealthCheck) time() time.Duration {
	if h == nil {
		return 0
	}
	return h.Timeout
}

// Step is an instruction with its verifier. A task without named steps has one, named
// "".
type Step struct {
	Name        string
	Instruction string
	// Files is a directory to copy into the working directory before the step, or "".
	// If it has a setup.sh, that is run.
	Files string
	// Solution is this step's solution; "" means the task's.
	Solution    string
	Agent       Agent
	Verifier    Verifier
	HealthCheck *HealthCheck
	Artifacts   []Artifact
	// MinReward are the minimum rewards for the next step to begin.
	MinReward map[string]float64
}

// Agent bounds a step's agent.
type Agent struct {
	// Time bounds the step; zero is no limit.
	Time    time.Duration
	Budget  limits.Budget
	Network Network
}

// Verifier decides a trial's reward.
type Verifier struct {
	// Tests is a directory with test.sh, which becomes /tests. Command is a shell
	// command instead, which passes with exit status 0. If both are "", there is
	// nothing to verify.
	Tests, Command string
	Time           time.Duration
	Env            []string
	Network        Network
	// Separate means that the verifier runs in its own Environment, which gets only
	// artifacts.
	Separate    bool
	Environment Environment
	// Collect are commands to run after the agent, in its sandbox.
	Collect []Collect
}

// Collect is a command that prepares artifacts.
type Collect struct {
	Command string
	Time    time.Duration
}

// Artifact is a file or directory to keep and to bring to a separate verifier.
type Artifact struct {
	// Source is a path in the sandbox, absolute or relative to the working directory.
	Source string
	// Destination is a relative path below the artifacts; "" means Source's.
	Destination string
	// Exclude are patterns of names to leave out.
	Exclude []string
}

// Error reports a task that can't be read.
type Error struct {
	// Source is the directory or the line.
	Source string
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Source, e.Err) }

func (e *Error) Unwrap() error { return e.Err }
