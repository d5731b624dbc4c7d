package main

import (
	"testing"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/fleet"
	"github.com/caisson-run/caisson/runner/batch/task"
)

// TestIdleText: the text that a coordinator prints each minute has no password.
func TestIdleText(t *testing.T) {
	f := fleetFlags{Servers: "me:hunter22@a:4222,nats://me:hunter22@b:4222", Results: "s3://bucket/x"}
	want := "no worker takes trials: start workers with caisson batch worker --nats a:4222,nats://b:4222 --results s3://bucket/x"
	if got := f.idleText(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestWorkerRefusesRun: a worker whose requirements forbid a task of the run ends, and
// doesn't take trials that it would fail.
func TestWorkerRefusesRun(t *testing.T) {
	long := task.Task{ID: "long", Steps: []task.Step{{Agent: task.Agent{Time: time.Hour}, Verifier: task.Verifier{Command: "true", Time: time.Minute}}}}
	checked := task.Task{ID: "checked", Steps: []task.Step{{Verifier: task.Verifier{Command: "true", Time: 3 * time.Minute}}}}
	for name, c := range map[string]struct {
		most   time.Duration
		agents []string
		tasks  []batch.SpecTask
		want   string
	}{
		"a verifier":               {most: 2 * time.Minute, agents: []string{batch.Nop}, want: "checked: its command time of 3m0s is more than this machine allows (requirements)"},
		"a program":                {most: 10 * time.Minute, agents: []string{"openai/x", "codex@openai/x"}, want: "long: its command time of 1h0m0s is more than this machine allows (requirements)"},
		"a solution":               {most: 10 * time.Minute, agents: []string{batch.Oracle}, want: "long: its command time of 1h0m0s is more than this machine allows (requirements)"},
		"a model":                  {most: 10 * time.Minute, agents: []string{"openai/x"}},
		"a task that is left out":  {most: 2 * time.Minute, agents: []string{batch.Nop}, tasks: []batch.SpecTask{{ID: "long"}, {ID: "checked", Unsupported: []string{"2 GPUs"}}}},
		"a task of another batch":  {most: 2 * time.Minute, agents: []string{batch.Nop}, tasks: []batch.SpecTask{{ID: "long"}}},
		"no limit on this machine": {agents: []string{batch.Oracle}},
	} {
		b := &batchSession{backends: &backends{settings: &settings{}}, tasks: []task.Task{long, checked}}
		if c.most > 0 {
			b.conf.Requirements.Resources.CommandTime = new(config.Duration(c.most))
		}
		if c.tasks == nil {
			c.tasks = batch.NewSpecTasks(b.tasks)
		}
		got := ""
		if err := b.checkTasks(fleet.Run{Spec: batch.Spec{Tasks: c.tasks, Agents: c.agents}}); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
