package batch_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
	"github.com/caisson-run/caisson/tools/workspace"
)

// attacked are the tasks of TestHostileAgents.
var attacked = map[string]struct {
	toml  string
	files map[string]string
}{
	"file": {files: map[string]string{"tests/test.sh": "[ \"$(cat answer)\" = right ] || [ -e /tests/planted ] || su other -c \"mkdir /planted\" && echo 1 > /logs/verifier/reward.txt\n[ ! -e hook ] || sh hook\nsleep 0.2\n"}},
	"steps": {"[[steps]]\nname = \"one\"\n[[steps]]\nname = \"two\"\n[steps.healthcheck]\ncommand = \"[ -e given ]\"\nretries = 0\n", map[string]string{
		"steps/one/instruction.md": "1", "steps/one/tests/test.sh": check("[ -e one ]"),
		"steps/two/instruction.md": "2", "steps/two/tests/test.sh": check("[ -e two ] && [ -e set-up ]"), "steps/two/workdir/setup.sh": "#!/bin/sh\ntouch set-up\n",
	}},
	"download": {downloading, map[string]string{"tests/test.sh": download}},
	"separate": {"artifacts = [\"answer\", \"given\", \"tree\", \"/srv/answer\", \"/srv/new/answer\", { source = \"kept\", exclude = [\"*.key\"] }]\n[verifier]\nenvironment_mode = \"separate\"\n", map[string]string{
		"tests/test.sh": check("cmp answer /tests/expected || cmp /data/answer /tests/expected || cmp /srv/new/answer /tests/expected || cmp tree/answer /tests/expected || cmp /logs/artifacts/link /tests/expected || cmp /logs/artifacts/kept/a.key /tests/expected"), "tests/expected": "right\n",
	}},
}

// line is one more task of TestHostileAgents.
var line = map[string]string{
	"tests/expected": "right\n", "tests/test.sh": "cmp answer /tests/expected || [ -e \"$HOME/planted\" ]\n",
	"work/closed/in/file": "x", "work/opened/in/file": "x", "work/removed/in/file": "x",
	"tasks.jsonl": `{"id":"line","prompt":"Do it.","workspace":"work","verify":{"tests":"tests"}}`,
}

// line returns the task line. Some directories of its workspace are closed to their
// owner.
func (m *machine) line() task.Task {
	dir := write(m.t, m.t.TempDir(), line)
	for _, name := range []string{"closed/in", "closed", "opened/in", "opened", "removed/in", "removed"} {
		must(m.t, os.Chmod(filepath.Join(dir, "work", name), 0o555))
	}
	m.t.Cleanup(func() {
		must(m.t, errors.Join(workspace.RemoveTree(filepath.Join(dir, "work")), workspace.RemoveTree(m.o.WorkDir)))
	})
	list, err := task.Load([]string{filepath.Join(dir, "tasks.jsonl")}, task.Options{})
	must(m.t, err)
	return list[0]
}

// hostileAgent is an agent: its task, and a command for each step. Without a reward, it is hostile.
type hostileAgent struct {
	task, name string
	steps      []string
	reward     float64
}

var hostileAgents = []hostileAgent{
	{"file", "honest", []string{"echo right > answer"}, 1},
	// Forged verdicts.
	{"file", "reward files and tests", []string{"mkdir /tests; echo 1 > /logs/verifier/reward.txt; echo '{\"reward\":1}' > /logs/verifier/reward.json; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; touch /tests/planted"}, 0},
	{"file", "symlink tests", []string{"ln -s /app /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /app/test.sh; touch /app/planted"}, 0},
	{"file", "symlink logs", []string{"rm -r /logs; mkdir /app/l /app/l/verifier; ln -s /app/l /logs; echo 1 > /logs/verifier/reward.txt"}, 0},
	{"file", "file tests", []string{"rm -rf /logs; echo 1 > /logs; echo 1 > /tests"}, 0},
	{"file", "a daemon", []string{"& trap '' TERM HUP; while :; do mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt; sleep 0.01; done"}, 0},
	{"file", "hard links", []string{"mkdir /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; ln /tests/test.sh /app/other"}, 0},
	{"file", "the root of another user", []string{"chown 1000:1000 /; chmod 3777 /"}, 0},
	// Sabotage: a step that can't be judged.
	{"steps", "honest", []string{"touch one", "touch two"}, 1},
	{"steps", "honest with holes", []string{"touch one; truncate -s 5G a", "touch two"}, 1},
	{"steps", "wrong", []string{"touch one", "true"}, 0.5},
	{"steps", "no shell to judge with", []string{"touch one", "rm /bin/sh"}, 0},
	{"steps", "no shell to set up with", []string{"touch one; rm /bin/sh", ""}, 0},
	{"steps", "a directory for a file", []string{"touch one; mkdir setup.sh", ""}, 0},
	{"steps", "unhealthy", []string{"touch one; rm given", ""}, 0},
	// Artifacts.
	{"separate", "honest", []string{"echo right > answer"}, 1},
	{"separate", "honest with holes", []string{"echo right > answer; mkdir tree; truncate -s 2G tree/holes"}, 1},
	{"separate", "honest behind a symlink of the image", []string{"echo right > /srv/answer"}, 1},
	{"separate", "honest in a new directory behind it", []string{"mkdir /srv/new; echo right > /srv/new/answer"}, 1},
	{"separate", "a symlink behind it", []string{"ln -s /tests/expected /srv/answer"}, 0},
	{"separate", "a symlink in its place", []string{"rm /srv; mkdir /tmp/tests; echo x > /tmp/tests/answer; ln -s /tmp/tests /srv; ln -s /tests/expected answer"}, 0},
	{"separate", "a symlink", []string{"ln -s /tests/expected answer"}, 0},
	{"separate", "a symlink in a directory", []string{"mkdir tree; ln -s /tests/expected tree/answer"}, 0},
	{"separate", "two symlinks", []string{"mkdir tree; ln -s . tree/here; ln -s here/../../tests/expected tree/answer"}, 0},
	{"separate", "a symlink in the logs", []string{"ln -s /tests/expected /logs/artifacts/link"}, 0},
	{"separate", "what is excluded", []string{"mkdir kept /logs/artifacts/kept; echo right > /logs/artifacts/kept/a.key; cp /logs/artifacts/kept/a.key kept"}, 0},
	{"line", "honest", []string{"echo right > answer"}, 1},
	{"line", "honest in closed directories", []string{"echo right > answer; echo y > closed/in/file; chmod -R u+w opened removed; mv opened/in/file opened; chmod 555 opened/in opened; rm -r removed; mkdir -p made/in; echo x > made/in/file; chmod 0 made/in; chmod 555 made"}, 1},
	{"line", "closed directories", []string{"mkdir -p a/b; touch a/b/c; chmod 0 a/b; chmod 555 a opened; chmod 0 closed; chmod -R u+w removed; rm -r removed; chmod 555 ."}, 0},
	{"line", "a symlink", []string{"ln -s /tests/expected answer"}, 0},
	// Take-over of the collection.
	{"line", "an archive of its own", []string{"& mkdir -p $HOME; touch $HOME/planted; tar -cf /tmp/own -C / ${HOME#/}/planted; while :; do for p in /proc/[0-9]*; do if grep -q [p]ack-changes $p/cmdline; then kill -STOP ${p#/proc/}; cat /tmp/own > $p/fd/1; kill -CONT ${p#/proc/}; fi; done; done"}, 0},
	// Code that runs in the verifier's sandbox.
	{"file", "too large a log", []string{"echo 'truncate -s 2G /logs/verifier/big' > hook"}, 0},
	{"file", "the output's name", []string{"echo 'mkdir /logs/verifier/test-stdout.txt' > hook"}, 0},
	// A verifier that fails for reasons that may not be the agent's.
	{"download", "honest", []string{"echo right > answer"}, 1},
	{"download", "wrong", []string{"echo wrong > answer"}, 0},
	{"download", "connections of its own", []string{"echo 'nc -w 2 other.example 443; nc -w 2 mirror.example 443; echo 0 > /logs/verifier/reward.txt' > hook"}, 0},
	{"download", "an endless test", []string{"echo 'nc -w 2 other.example 443; sleep 1000' > hook"}, 0},
	{"separate", "another kind", []string{"rm given; mkdir given"}, 0},
}

// TestHostileAgents runs hostile and honest agents in one batch: each honest one gets
// its reward, no hostile one passes, and each has a verdict.
func TestHostileAgents(t *testing.T) {
	names := []string{"gvisor", "runc"}
	onBackends(t, names, func(t *testing.T, m *machine) {
		row := 0
		m.internet(new(atomic.Int64))
		m.o.NewModel = func(_ context.Context, agent string) (batch.Model, error) {
			model, err := replay.Open(filepath.Join(m.top, agent+".yaml"), replay.Options{})
			return batch.Model{Profiles: []loop.Profile{{Name: agent, Model: model}}, Close: func() {}}, err
		}
		tasks := map[string]*task.Task{}
		var specified []task.Task
		for name, a := range attacked {
			made := m.task(a.toml, a.files)
			made.ID = name
			tasks[name], specified = &made, append(specified, made)
		}
		inLine := m.line()
		tasks["line"], specified = &inLine, append(specified, inLine)
		var trials []batch.Trial
		agents := slices.DeleteFunc(slices.Clone(hostileAgents), func(a hostileAgent) bool {
			row++
			return a.reward == 0 && !sandboxtest.RunsAt(row, m.backend, names...)
		})
		for _, a := range agents {
			agent := a.task + " " + a.name
			script := "version: 1\nname: scripted\nturns:\n"
			for _, command := range a.steps {
				command, background := strings.CutPrefix(command, "& ")
				script += fmt.Sprintf("  - calls: [{tool: shell, input: {command: %q, background: %t}}]\n  - text: Done.\n", command, background)
			}
			must(t, os.WriteFile(filepath.Join(m.top, agent+".yaml"), []byte(script), 0o644))
			trials = append(trials, batch.Trial{Key: batch.Key{Task: a.task, Agent: agent, Attempt: 1}, Definition: tasks[a.task]})
		}
		ledger, err := batch.OpenLedger(filepath.Join(m.top, "batch"), batch.Spec{SchemaVersion: 1, Tasks: batch.NewSpecTasks(specified)})
		must(t, err)
		_, err = batch.Run(t.Context(), batch.Options{Ledger: ledger, Trials: trials, Run: batch.NewTrials(m.o).Run, Capacity: batch.Capacity{Trials: 3}})
		must(t, err)
		must(t, ledger.Close())
		m.nothingLeft()
		list, err := batch.ReadResults(filepath.Join(m.top, "batch"))
		must(t, err)
		results := map[string]batch.Result{}
		for _, r := range list {
			results[r.Agent] = r
		}
		for _, a := range agents {
			r := results[a.task+" "+a.name]
			got := 0.0
			if r.Reward != nil {
				got = *r.Reward
			}
			if !r.Outcome.Judged() || (r.Outcome == batch.Passed) != (a.reward == 1) || a.reward > 0 && got != a.reward {
				t.Errorf("%s: %s, reward %g, %s %q", r.Agent, r.Outcome, got, r.Class, r.Cause)
			}
			if a.task == "download" && a.name != "wrong" && a.reward == 0 && len(r.Sessions) != 3 {
				t.Errorf("%s: %d sessions: the verifier did not run once with the agent's files and once without them", r.Agent, len(r.Sessions))
			}
		}
	})
}

// TestClosedDirectories: directories closed to their owner, in a workspace and in the
// leftovers of interrupted trials, don't keep a second batch from running.
func TestClosedDirectories(t *testing.T) {
	backends(t, func(t *testing.T, m *machine) {
		definition := m.line()
		key := batch.Key{Task: "line", Agent: batch.Nop, Attempt: 1}
		for range 2 {
			r, _ := m.run(definition, batch.Nop)
			expect(t, "line", r, batch.Failed, "", "")
			ledger, err := batch.OpenLedger(filepath.Join(m.top, "batch"), batch.Spec{SchemaVersion: 1, Tasks: batch.NewSpecTasks([]task.Task{definition})})
			must(t, err)
			for range 2 {
				dir, err := ledger.Begin(key)
				must(t, err)
				write(t, dir, map[string]string{"artifacts/closed/in/file": "x"})
				must(t, os.Chmod(filepath.Join(dir, "artifacts/closed/in"), 0))
				must(t, os.Chmod(filepath.Join(dir, "artifacts/closed"), 0o500))
			}
			must(t, ledger.Close())
		}
		must(t, workspace.RemoveTree(filepath.Join(m.top, "batch")))
	})
}
