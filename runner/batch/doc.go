// Package batch runs many trials of tasks on one machine and keeps their results.
//
// A trial is one attempt of an agent at a task. A [Ledger] is a batch's state: a
// directory with results.jsonl and a directory for each finished trial. [Run] runs all
// trials that have no result, so it continues a batch that was killed. The caller
// provides the function that runs a trial; [Trials] has one that uses sandboxes.
package batch

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/runner/batch/task"
)

// The agents that are not models. Nop does nothing, and Oracle runs the task's
// solution.
const (
	Nop    = "nop"
	Oracle = "oracle"
)

// Key identifies a trial. It is unique in a batch, and the same on all machines.
type Key struct {
	Task string `json:"task"`
	// Agent is [Nop], [Oracle], or a model's name.
	Agent string `json:"agent"`
	// Attempt counts from 1.
	Attempt int `json:"attempt"`
}

// Describe returns the key for messages.
func (k Key) Describe() string { return fmt.Sprintf("%s, %s, attempt %d", k.Task, k.Agent, k.Attempt) }

// Name returns the name of the trial's directory: parts of the task's ID and the agent,
// the attempt, and a hash that makes it unique.
func (k Key) Name() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %d", k.Task, k.Agent, k.Attempt))
	return fmt.Sprintf("%s__%s__%d-%s", safeName(k.Task, 64), safeName(k.Agent, 32), k.Attempt, hex.EncodeToString(sum[:4]))
}

// safeName returns at most n bytes of text, made safe for file names.
func safeName(text string, n int) string {
	safe := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '_'
	}, text)
	return strings.TrimLeft(safe[:min(len(safe), n)], ".-")
}

// Trial is one attempt of an agent at a task.
type Trial struct {
	Key
	Definition *task.Task
}

// Shard is a part of a batch's trials: those whose hash modulo Count is Index-1. The
// zero value means all.
type Shard struct {
	Index int `json:"index"` // from 1 to Count
	Count int `json:"count"`
}

// Contains reports whether a trial is in the shard. All agents' attempts with the same
// number at the same task are in the same shard.
func (s Shard) Contains(k Key) bool {
	if s.Count == 0 {
		return true
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %d", k.Task, k.Attempt))
	return binary.BigEndian.Uint64(sum[:])%uint64(s.Count) == uint64(s.Index-1)
}

// Check returns an error for an invalid shard.
func (s Shard) Check() error {
	if s != (Shard{}) && (s.Count < 1 || s.Index < 1 || s.Index > s.Count) {
		return fmt.Errorf("invalid shard %d/%d: want I/N with I from 1 to N", s.Index, s.Count)
	}
	return nil
}

// Plan returns a shard's trials of supported tasks: the first attempts of all agents at
// all tasks, then the second ones, and so on.
func Plan(tasks []task.Task, agents []string, attempts int, s Shard) []Trial {
	var list []Trial
	for attempt := 1; attempt <= attempts; attempt++ {
		for i := range tasks {
			for _, agent := range agents {
				t := Trial{Key{tasks[i].ID, agent, attempt}, &tasks[i]}
				if len(tasks[i].Unsupported) == 0 && s.Contains(t.Key) {
					list = append(list, t)
				}
			}
		}
	}
	return list
}
