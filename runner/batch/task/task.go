// Package task reads the tasks of a batch: Harbor task directories (schema 1.0 to 1.4)
// and lines of JSON.
//
// Reading starts nothing and contacts nothing. What a task asks for that can't be
// provided is listed in [Task].Unsupported, so that a batch learns of it before its
// first trial.
package task

import (
	"fmt"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// Task is one task. It has at least one step, unless it is unsupported.
type Task struct {
	// ID names the task in its batch: the name of its directory, or the id of its line.
	ID string
	// Source is the directory, or the file with the number of the line, such as
	// tasks.jsonl:3.
	Source string
	// Checksum is "sha256:" and the hash of everything that the task consists of.
	Checksum string
	// Unsupported are the reasons why no trial of the task is possible; empty is none.
	Unsupported []string
	// Variables are the names of variables that the task refers to and is not given. Each
	// is a reason in Unsupported as well.
	Variables []string
	Metadata  map[string]any

	Environment Environment
	// Solution is the directory with solve.sh that the oracle runs, "" for none.
	// SolutionEnv are its variables, as NAME=value. Steps may have a solution of their
	// own.
	Solution    string
	SolutionEnv []string
	Steps       []Step
	// MultiStep reports that the task has named steps, and Strategy how their rewards
	// become one.
	MultiStep bool
	Strategy  Strategy
}

// Strategy combines the rewards of steps.
type Strategy string

// The strategies. Mean is the mean over the steps that have rewards, where a missing key
// counts as 0; Final takes those of the last step.
const (
	Mean  Strategy = "mean"
	Final Strategy = "final"
)

// Environment is where a task is done. Zero values are the caller's defaults.
type Environment struct {
	// Image is a reference as package images reads it: "build:" and a directory with a
	// Dockerfile, or an image's name. "" is the caller's default.
	Image string
	// BuildTime bounds the build.
	BuildTime time.Duration
	// Workdir is the directory that the agent works in, "" for the image's WORKDIR.
	Workdir string
	// SkillsDir is the directory of the image that has skills for the agent, "" for none.
	SkillsDir string
	// Workspace is the directory or the tar archive whose content the agent works on,
	// "" for what the image has in Workdir. Git is a repository instead.
	Workspace string
	Git       *Git
	// Root reports that commands run as root inside, on a writable root: the task
	// comes with an image of its own, as Harbor tasks do.
	Root bool
	// MilliCPUs, MemoryBytes and StorageBytes are the needs and the limits of a trial.
	MilliCPUs, MemoryBytes, StorageBytes int64
	// Env are variables of all commands, as NAME=value.
	Env         []string
	Network     Network
	HealthCheck *HealthCheck
}

// Git names a commit of a repository.
type Git struct{ URL, Commit string }

// NetworkMode is a kind of network.
type NetworkMode string

// The modes.
const (
	NoNetwork NetworkMode = "no-network"
	Public    NetworkMode = "public"
	AllowList NetworkMode = "allowlist"
)

// Network limits the hosts that commands may reach. Rules are those of [AllowList].
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

// Step is one instruction with its verifier. A task without named steps has one,
// whose name is "".
type Step struct {
	Name        string
	Instruction string
	// Files is a directory whose content is copied to the working directory before the
	// step, "" for none. Its setup.sh, if it has one, is run there.
	Files string
	// Solution is the solution of this step alone, "" for that of the task.
	Solution    string
	Agent       Agent
	Verifier    Verifier
	HealthCheck *HealthCheck
	Artifacts   []Artifact
	// MinReward are the least rewards with which the next step begins; an empty map is
	// no bound.
	MinReward map[string]float64
}

// Agent bounds the agent of a step.
type Agent struct {
	// Time bounds the step; zero is no limit.
	Time    time.Duration
	Budget  limits.Budget
	Network Network
}

// Verifier decides what a trial is worth.
type Verifier struct {
	// Tests is a directory with test.sh, which becomes /tests. It is "" if Command is
	// set, a shell command that passes with exit status 0, or if there is nothing to
	// verify.
	Tests, Command string
	Time           time.Duration
	Env            []string
	Network        Network
	// Separate reports that the verifier has an environment of its own, to which only
	// artifacts are brought. Environment is that environment.
	Separate    bool
	Environment Environment
	// Collect are commands that run after the agent, in its sandbox.
	Collect []Collect
}

// Collect is a command that prepares artifacts.
type Collect struct {
	Command string
	Time    time.Duration
}

// Artifact is a file or directory that is kept and brought to a separate verifier.
type Artifact struct {
	// Source is an absolute path in the sandbox, or one relative to the working directory.
	Source string
	// Destination is a relative path below the artifacts, "" for that of Source.
	Destination string
	// Exclude are patterns of names that are left out.
	Exclude []string
}

// Error is a task that can't be read.
type Error struct {
	// Source is the directory or the line.
	Source string
	Err    error
}

// Error names the source and the reason.
func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Source, e.Err) }

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }
