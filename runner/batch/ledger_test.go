package batch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/runner/batch/task"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tasks returns n tasks without anything in them.
func tasks(n int) []task.Task {
	var list []task.Task
	for i := range n {
		list = append(list, task.Task{ID: fmt.Sprintf("task-%d", i), Checksum: fmt.Sprintf("sha256:%d", i), Steps: []task.Step{{}}})
	}
	return list
}

func spec(list []task.Task) Spec {
	return Spec{Backend: "fake", Tasks: NewSpecTasks(list), Agents: []string{Nop}, Attempts: 1, Settings: map[string]string{"image": "host"}}
}

func open(t testing.TB, dir string, s Spec) *Ledger {
	t.Helper()
	l, err := OpenLedger(dir, s)
	must(t, err)
	return l
}

// TestLedgerAfterAnyDeath: wherever a process dies while it keeps a result, the next one
// has each finished trial once, and nothing of those that were not finished.
func TestLedgerAfterAnyDeath(t *testing.T) {
	list := tasks(6)
	rapid.Check(t, func(rt *rapid.T) {
		dir := t.TempDir()
		want := map[Key]bool{}
		for range rapid.IntRange(1, 4).Draw(rt, "lives") {
			l := open(t, dir, spec(list))
			for range rapid.IntRange(0, 4).Draw(rt, "trials") {
				k := Key{rapid.SampledFrom(list).Draw(rt, "task").ID, Nop, rapid.IntRange(1, 2).Draw(rt, "attempt")}
				sub, err := l.Begin(k)
				must(t, err)
				must(t, os.WriteFile(filepath.Join(sub, "file"), nil, 0o644))
				if rapid.Bool().Draw(rt, "finished") {
					must(t, l.Finish(Result{Key: k, Outcome: Passed}))
					want[k] = true
				}
			}
			must(t, l.Close())
			results := filepath.Join(dir, ResultsFile)
			text, err := os.ReadFile(results)
			must(t, err)
			// The rest of the file, or all of it, did not reach the disk.
			cut := len(text) - rapid.IntRange(0, len(text)).Draw(rt, "lost")
			must(t, os.Truncate(results, int64(cut)))
		}
		l := open(t, dir, spec(list))
		defer l.Close()
		got := map[Key]bool{}
		for _, r := range l.Results() {
			if got[r.Key] {
				rt.Errorf("%v twice", r.Key)
			}
			got[r.Key] = true
			if _, err := os.Stat(filepath.Join(dir, TrialsDir, r.Name, "file")); err != nil {
				rt.Error(err)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			rt.Errorf("results (-want +got):\n%s", d)
		}
		onDisk, err := ReadResults(dir)
		must(t, err)
		left, err := os.ReadDir(filepath.Join(dir, runningDir))
		must(t, err)
		if len(onDisk) != len(want) || len(left) > 0 {
			rt.Errorf("%d lines for %d trials, %d directories left", len(onDisk), len(want), len(left))
		}
	})
}

func TestLedgerRefuses(t *testing.T) {
	dir, list := t.TempDir(), tasks(2)
	l := open(t, dir, spec(list))
	if _, err := OpenLedger(dir, spec(list)); !errors.Is(err, ErrInUse) {
		t.Errorf("opened twice: %v", err)
	}
	must(t, l.Close())
	changed := tasks(2)
	changed[1].Checksum = "sha256:other"
	for name, s := range map[string]Spec{
		"task":     spec(changed),
		"backend":  {Backend: "other", Tasks: NewSpecTasks(list)},
		"settings": {Backend: "fake", Tasks: NewSpecTasks(list), Settings: map[string]string{"image": "other"}},
	} {
		_, err := OpenLedger(dir, s)
		if _, ok := errors.AsType[*MismatchError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, open(t, dir, spec(tasks(3))).Close()) // more tasks go on
	must(t, os.WriteFile(filepath.Join(dir, ResultsFile), []byte("{\n{}\n"), 0o644))
	if _, err := OpenLedger(dir, spec(list)); err == nil {
		t.Error("a damaged line that is not the last is accepted")
	}
	if _, err := ReadSpec(t.TempDir()); !errors.Is(err, ErrNoBatch) {
		t.Errorf("no batch: %v", err)
	}
}

// TestFinishTwice: the first result of a trial counts.
func TestFinishTwice(t *testing.T) {
	l := open(t, t.TempDir(), spec(tasks(1)))
	defer l.Close()
	k := Key{"task-0", Nop, 1}
	for _, o := range []Outcome{Passed, Failed} {
		_, err := l.Begin(k)
		must(t, err)
		must(t, l.Finish(Result{Key: k, Outcome: o}))
	}
	if r := l.Results(); len(r) != 1 || r[0].Outcome != Passed {
		t.Errorf("%+v", r)
	}
}

func TestNames(t *testing.T) {
	seen := map[string]Key{}
	for _, id := range []string{"a", "A", "a/b", "a_b", "../../x", "", ".", "ü", string(make([]byte, 300))} {
		for _, agent := range []string{Nop, "openai/gpt", "openai_gpt"} {
			k := Key{id, agent, 1}
			name := k.Name()
			if other, ok := seen[name]; ok {
				t.Errorf("%v and %v are both %s", k, other, name)
			}
			seen[name] = k
			if filepath.Base(name) != name || len(name) > 140 || name[0] == '.' {
				t.Errorf("%v is called %q", k, name)
			}
		}
	}
}

// TestShards: each trial is in one shard, shards are of like sizes, and all agents'
// attempts of one number are in the same.
func TestShards(t *testing.T) {
	list := tasks(200)
	whole := Plan(list, []string{Nop, Oracle}, 3, Shard{})
	if len(whole) != 1200 {
		t.Fatal(len(whole))
	}
	seen := map[Key]int{}
	for i := 1; i <= 3; i++ {
		part := Plan(list, []string{Nop, Oracle}, 3, Shard{i, 3})
		if len(part) < 340 || len(part) > 460 {
			t.Errorf("shard %d has %d trials", i, len(part))
		}
		for _, trial := range part {
			seen[trial.Key]++
			other := trial.Key
			other.Agent = Oracle
			if !(Shard{i, 3}).Contains(other) {
				t.Errorf("%v is in another shard than %v", other, trial.Key)
			}
		}
	}
	if len(seen) != 1200 || slices.ContainsFunc(whole, func(t Trial) bool { return seen[t.Key] != 1 }) {
		t.Error("the shards are not a partition")
	}
	for _, s := range []Shard{{0, 3}, {4, 3}, {1, 0}, {-1, -1}} {
		if s.Check() == nil {
			t.Errorf("%v is accepted", s)
		}
	}
}

// TestMerge: the merged shards equal one run.
func TestMerge(t *testing.T) {
	list, top := tasks(20), t.TempDir()
	var from []string
	for i := 1; i <= 3; i++ {
		dir := filepath.Join(top, fmt.Sprint(i))
		l := open(t, dir, spec(list))
		for _, trial := range Plan(list, []string{Nop}, 1, Shard{i, 3}) {
			sub, err := l.Begin(trial.Key)
			must(t, err)
			must(t, os.MkdirAll(filepath.Join(sub, "agent"), 0o755))
			must(t, os.WriteFile(filepath.Join(sub, "agent", "x"), []byte(trial.Task), 0o644))
			must(t, os.Symlink("/etc/passwd", filepath.Join(sub, "agent", "link")))
			must(t, l.Finish(Result{Key: trial.Key, Outcome: Passed}))
		}
		must(t, l.Close())
		from = append(from, dir)
	}
	out := filepath.Join(top, "merged")
	twice, err := Merge(out, append(from, from[0]))
	must(t, err)
	results, err := ReadResults(out)
	must(t, err)
	first, err := ReadResults(from[0])
	must(t, err)
	if len(results) != 20 || len(twice) != len(first) {
		t.Errorf("%d results, %d twice", len(results), len(twice))
	}
	for _, r := range results {
		text, err := os.ReadFile(filepath.Join(out, TrialsDir, r.Name, "agent", "x"))
		if err != nil || string(text) != r.Task {
			t.Errorf("%s: %q, %v", r.Task, text, err)
		}
		if target, err := os.Readlink(filepath.Join(out, TrialsDir, r.Name, "agent", "link")); err != nil || target != "/etc/passwd" {
			t.Errorf("link: %q, %v", target, err)
		}
	}
	changed := tasks(20)
	changed[3].Checksum = "sha256:other"
	other := filepath.Join(top, "other")
	must(t, open(t, other, spec(changed)).Close())
	if _, err := Merge(filepath.Join(top, "mixed"), []string{from[0], other}); !errors.As(err, new(*MismatchError)) {
		t.Errorf("merged other tasks: %v", err)
	}
}
