package batch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner/batch/task"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

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

func readAll(t testing.TB, l *Ledger) []Result {
	t.Helper()
	list, err := ReadResults(l.Dir())
	must(t, err)
	return list
}

// TestLedgerAfterAnyDeath: wherever a process dies while it keeps a result, the next
// one has each finished trial once, and nothing of unfinished ones. Damaged lines are
// restored, and trials without a directory have no result.
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
			// The rest of the file, or all of it, didn't reach the disk.
			text = text[:len(text)-rapid.IntRange(0, len(text)).Draw(rt, "lost")]
			if len(text) > 0 && rapid.Bool().Draw(rt, "damaged") {
				text[rapid.IntRange(0, len(text)-1).Draw(rt, "place")] = '{'
			}
			must(t, os.WriteFile(results, text, 0o644))
			for k := range want {
				if rapid.IntRange(0, 9).Draw(rt, "removed") == 0 {
					must(t, os.RemoveAll(filepath.Join(dir, TrialsDir, k.Name())))
					delete(want, k)
				}
			}
			must(t, os.WriteFile(filepath.Join(dir, partPrefix+"summary.json-1"), nil, 0o644))
		}
		l := open(t, dir, spec(list))
		defer l.Close()
		got := map[Key]bool{}
		for _, r := range readAll(t, l) {
			if _, twice := got[r.Key]; twice {
				rt.Errorf("%v twice", r.Key)
			}
			got[r.Key] = r.Outcome == Passed
			if _, err := os.Stat(filepath.Join(dir, TrialsDir, r.Key.Name(), "file")); err != nil {
				rt.Error(err)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			rt.Errorf("results (-want +got):\n%s", d)
		}
		text, err := os.ReadFile(filepath.Join(dir, ResultsFile))
		must(t, err)
		left, err := os.ReadDir(filepath.Join(dir, runningDir))
		must(t, err)
		parts, err := filepath.Glob(filepath.Join(dir, partPrefix+"*"))
		must(t, err)
		if lines := bytes.Count(text, []byte{'\n'}); lines != len(want) || len(left) > 0 || len(parts) > 0 {
			rt.Errorf("%d lines for %d trials, left %v, %v", lines, len(want), left, parts)
		}
	})
}

// TestLedgerAfterKill: a killed process's lock can be held for a moment longer by a
// program that it was starting.
func TestLedgerAfterKill(t *testing.T) {
	dir := t.TempDir()
	copied, err := state.TryAcquire(filepath.Join(dir, lockFile))
	must(t, err)
	time.AfterFunc(state.ReleaseTime/10, func() { _ = copied.Release() })
	l, err := LockLedger(dir)
	must(t, err)
	must(t, l.Close())
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
		"key":      {Backend: "fake", Tasks: NewSpecTasks(list), Settings: map[string]string{"other": "x"}},
	} {
		_, err := OpenLedger(dir, s)
		if _, ok := errors.AsType[*MismatchError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, open(t, dir, spec(tasks(3))).Close()) // more tasks go on
	added, later := spec(list), spec(list)        // and more agents, even if one was left out meanwhile
	added.Settings[AgentSetting+"claude"], later.Settings[AgentSetting+"claude"] = "2.0", "2.1"
	must(t, open(t, dir, added).Close())
	must(t, open(t, dir, spec(list)).Close())
	if _, err := OpenLedger(dir, later); !errors.As(err, new(*MismatchError)) {
		t.Errorf("another version of an agent: %v", err)
	}
	must(t, os.RemoveAll(filepath.Join(dir, SpecFile)))
	must(t, os.WriteFile(filepath.Join(dir, ResultsFile), []byte(`{"task":"task-1","agent":"nop","attempt":1,"outcome":"passed","task_checksum":"sha256:other"}`+"\n"), 0o644))
	if _, err := OpenLedger(dir, spec(list)); !errors.As(err, new(*MismatchError)) {
		t.Errorf("without batch.json: %v", err)
	}
	must(t, os.RemoveAll(filepath.Join(dir, TrialsDir)))
	if _, err := OpenLedger(dir, spec(list)); !errors.As(err, new(*TrialError)) {
		t.Errorf("without trials: %v", err)
	}
	for name, text := range map[string]string{"empty": "", "of another": `{"task":"a","agent":"nop","attempt":2}`} {
		bad := filepath.Join(t.TempDir(), "batch")
		must(t, open(t, bad, spec(list)).Close())
		trial := filepath.Join(bad, TrialsDir, "trial")
		must(t, errors.Join(os.Mkdir(trial, 0o755), os.WriteFile(filepath.Join(trial, ResultFile), []byte(text), 0o644)))
		failed := new(TrialError)
		if _, err := OpenLedger(bad, spec(list)); !errors.As(err, &failed) || failed.Dir != trial {
			t.Errorf("a result that is %s: %v", name, err)
		}
	}
	foreign := t.TempDir()
	mine := filepath.Join(foreign, "state", "mine")
	must(t, errors.Join(os.Mkdir(filepath.Dir(mine), 0o755), os.WriteFile(mine, nil, 0o644)))
	if _, err := OpenLedger(foreign, spec(list)); !errors.Is(err, ErrForeign) {
		t.Errorf("a directory of another program: %v", err)
	}
	volume := t.TempDir()
	must(t, os.Mkdir(filepath.Join(volume, "lost+found"), 0o700))
	if l, err := OpenLedger(volume, spec(list)); err != nil {
		t.Errorf("a new file system: %v", err)
	} else {
		must(t, l.Close())
	}
	if _, err := ReadSpec(t.TempDir()); !errors.Is(err, ErrNoBatch) {
		t.Errorf("no batch: %v", err)
	}
}

// TestLedgerRepairs: faults are reported. Readers find results with damaged lines, but
// not results without a directory.
func TestLedgerRepairs(t *testing.T) {
	dir, list := t.TempDir(), tasks(3)
	l := open(t, dir, spec(list))
	var keys []Key
	for _, d := range list {
		k := Key{d.ID, Nop, 1}
		_, err := l.Begin(k)
		must(t, errors.Join(err, l.Finish(Result{Key: k, Outcome: Passed})))
		keys = append(keys, k)
	}
	must(t, l.Close())
	results := filepath.Join(dir, ResultsFile)
	text, err := os.ReadFile(results)
	must(t, err)
	must(t, os.WriteFile(results, append([]byte("x"), text...), 0o644))
	if list := readAll(t, l); len(list) != 3 {
		t.Errorf("readers find %d results", len(list))
	}
	must(t, os.RemoveAll(filepath.Join(dir, TrialsDir, keys[2].Name())))
	l = open(t, dir, spec(list))
	if d := cmp.Diff(Repairs{Damaged: 1, Missing: keys[2:]}, l.Repairs()); d != "" {
		t.Error(d)
	}
	_, err = l.Begin(keys[2])
	must(t, errors.Join(err, l.Finish(Result{Key: keys[2], Outcome: Failed}), l.Close()))
	if list := readAll(t, l); len(list) != 3 || list[2].Outcome != Failed || l.CostMicroUSD() != 0 {
		t.Errorf("%+v", list)
	}
	must(t, errors.Join(os.WriteFile(results, append(text, "x\n"...), 0o644)))
	if _, err := ReadResults(dir); err == nil {
		t.Error("a damaged line whose result is nowhere is left out")
	}
}

// TestFailedAppend: after a partial line, no other line is written.
func TestFailedAppend(t *testing.T) {
	dir, list := t.TempDir(), tasks(2)
	l := open(t, dir, spec(list))
	file := l.file
	var err error
	l.file, err = os.Open(filepath.Join(dir, ResultsFile)) // can't be written to
	must(t, err)
	finish := func(i int) error {
		k := Key{list[i].ID, Nop, 1}
		_, err := l.Begin(k)
		return errors.Join(err, l.Finish(Result{Key: k, Outcome: Passed}))
	}
	first := finish(0)
	must(t, l.file.Close())
	l.file = file
	if second := finish(1); first == nil || second == nil {
		t.Errorf("%v, %v", first, second)
	}
	must(t, l.Close())
	if l = open(t, dir, spec(list)); len(readAll(t, l)) != 2 {
		t.Errorf("%+v", readAll(t, l))
	}
	must(t, l.Close())
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
	if r := readAll(t, l); len(r) != 1 || r[0].Outcome != Passed {
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

// TestShards: each trial is in one shard, shards have similar sizes, and all agents'
// attempts with the same number are together.
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

// TestForeignWords: classes and limits are shown as they are.
func TestForeignWords(t *testing.T) {
	sound := Result{Key: Key{Task: "a", Agent: Nop, Attempt: 1}, Outcome: Failed, Class: VerifierTimeout, Limit: string(limits.KindWallTime), Faults: []Fault{{Class: Machine}}}
	if !sound.isSound() {
		t.Error("control: it is refused")
	}
	for name, change := range map[string]func(r *Result){
		"class": func(r *Result) { r.Class = "\x1b]0;x\a" }, "limit": func(r *Result) { r.Limit = "\x1b[2J" }, "fault": func(r *Result) { r.Faults = []Fault{{Class: "a\nb"}} },
	} {
		r := sound
		if change(&r); r.isSound() {
			t.Errorf("%s: %+v is accepted", name, r)
		}
	}
}

// TestMergeKeepsWhatIsUnsupported: a shard knows it only of its own tasks, so the order of the
// shards must not matter.
func TestMergeKeepsWhatIsUnsupported(t *testing.T) {
	top := t.TempDir()
	var from []string
	for i := range 2 {
		list := tasks(2)
		list[i].Unsupported = []string{"GPUs (1)"}
		dir := filepath.Join(top, fmt.Sprint(i))
		must(t, open(t, dir, spec(list)).Close())
		from = append(from, dir)
	}
	_, err := Merge(filepath.Join(top, "merged"), from)
	must(t, err)
	merged, err := ReadSpec(filepath.Join(top, "merged"))
	must(t, err)
	for _, task := range merged.Tasks {
		if !slices.Equal(task.Unsupported, []string{"GPUs (1)"}) {
			t.Errorf("%+v", task)
		}
	}
}

// makeDeep makes directories below dir whose paths become too long.
func makeDeep(t *testing.T, dir string) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	must(t, err)
	name := strings.Repeat("d", 250)
	for range 17 {
		must(t, root.Mkdir(name, 0o755))
		next, err := root.OpenRoot(name)
		must(t, errors.Join(err, root.Close()))
		root = next
	}
	must(t, root.Close())
}

// TestMerge: the merged shards equal one run, without files whose paths are too long.
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
			makeDeep(t, filepath.Join(sub, "agent"))
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
	// A killed merge goes on, and doesn't report its trials as duplicates.
	must(t, os.RemoveAll(filepath.Join(out, TrialsDir, results[3].Name)))
	if twice, err := Merge(out, from); err != nil || len(twice) != 0 {
		t.Errorf("merged again: %v, %v", twice, err)
	}
	for _, r := range results {
		text, err := os.ReadFile(filepath.Join(out, TrialsDir, r.Name, "agent", "x"))
		if err != nil || string(text) != r.Task {
			t.Errorf("%s: %q, %v", r.Task, text, err)
		}
		for _, dir := range []string{out, filepath.Join(out, TrialsDir, r.Name)} {
			if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s: %v, %v", dir, info.Mode(), err)
			}
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

// TestForeignNames: nothing is read or written through symlinks or pipes in results,
// which may come from others. The control is a file or directory that is moved back.
func TestForeignNames(t *testing.T) {
	top, list := t.TempDir(), tasks(1)
	dir, k := filepath.Join(top, "batch"), Key{"task-0", Nop, 1}
	l := open(t, dir, spec(list))
	trial, err := l.Begin(k)
	must(t, errors.Join(err, os.WriteFile(filepath.Join(trial, PatchFile), []byte("patch"), 0o644), l.Finish(Result{Key: k, Outcome: Passed}), l.Close()))
	merges := 0
	use := func() error {
		merges++
		_, mergeErr := Merge(filepath.Join(top, fmt.Sprint(merges)), []string{dir})
		_, specErr := ReadSpec(dir)
		results, err := ReadResults(dir)
		if results == nil {
			results = []Result{{Key: k, Outcome: Passed}}
		}
		var b bytes.Buffer
		err = errors.Join(err, specErr, mergeErr, WritePredictions(&b, dir, Nop, results))
		if l, openErr := OpenLedger(dir, spec(list)); openErr == nil {
			must(t, l.Close())
		} else {
			err = errors.Join(err, openErr)
		}
		return err
	}
	must(t, use())
	for _, name := range []string{SpecFile, ResultsFile, lockFile, TrialsDir, filepath.Join(TrialsDir, k.Name()), filepath.Join(TrialsDir, k.Name(), PatchFile)} {
		path, moved := filepath.Join(dir, name), filepath.Join(top, "moved")
		must(t, errors.Join(os.Rename(path, moved), os.Symlink(moved, path)))
		if err := use(); !errors.As(err, new(*NameError)) {
			t.Errorf("%s is a symlink: %v", name, err)
		}
		must(t, errors.Join(os.Remove(path), os.Rename(moved, path)))
	}
	must(t, use())
}
