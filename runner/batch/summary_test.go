package batch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/batch/stats"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/sandbox"
)

// result returns a result of a trial that took a second.
func result(id, agent string, attempt int, o Outcome) Result {
	began := time.Unix(1_800_000_000, 0)
	r := Result{Key: Key{id, agent, attempt}, Outcome: o, Started: began, Finished: began.Add(time.Second)}
	if o == Passed {
		r.Reward = new(1.0)
	}
	return r
}

func TestSummarize(t *testing.T) {
	s := spec(tasks(4))
	s.Agents, s.Attempts = []string{"m"}, 2
	s.Tasks[3].Unsupported = []string{"2 GPUs"}
	list := []Result{
		result("task-0", "m", 1, Passed), result("task-0", "m", 2, Failed), result("task-1", "m", 1, Passed), result("task-1", "m", 2, Passed),
		result("task-2", "m", 1, Infrastructure), result("task-2", "other", 1, Passed), result("task-2", "m", 2, Suspect), result("task-2", "other", 2, Suspect),
		result("no longer", "m", 1, Passed), result("no longer", "m", 2, Suspect), result("task-0", "m", 3, Passed),
	}
	for i := range list {
		list[i].Model, list[i].Usage = "p/m", limits.Usage{Rounds: 1, InputTokens: 10, CostMicroUSD: new(int64(500_000))}
	}
	list[1].Class = RewardMissing
	list[6].Class, list[6].Cause, list[6].Reward = VerifierNetwork, "down", new(0.0)
	list[3].Usage.CostMicroUSD = nil
	list[0].Faults = []Fault{{SandboxStart, "x"}}
	list[4].Faults = []Fault{{SandboxStart, "x"}, {SandboxLost, "y"}}
	got := Summarize(s, list)
	if d := gocmp.Diff([]UnsupportedTask{{"task-3", []string{"2 GPUs"}}}, got.Unsupported); d != "" {
		t.Error(d)
	}
	if d := gocmp.Diff([]SuspectTrial{{Key: list[6].Key, Class: VerifierNetwork, Cause: "down"}}, got.Suspects); d != "" {
		t.Error(d)
	}
	a := got.Agents[0]
	if a.Planned != 6 || a.NotRun != 0 || a.Suspect != 1 || a.Judged != 4 || a.Passed != 3 || a.Failed != 1 || a.Infrastructure != 1 || a.JudgedTasks != 2 {
		t.Errorf("%+v", a)
	}
	if a.CostUSD != "2.500000" || a.CostUnknown != 1 || a.Usage.InputTokens != 60 || a.MedianMS != 1000 || a.TotalMS != 6000 || *a.MeanReward != 0.75 {
		t.Errorf("%+v", a)
	}
	if d := gocmp.Diff(map[Class]int{SandboxStart: 2, SandboxLost: 1}, a.Faults); d != "" {
		t.Error(d)
	}
	if d := gocmp.Diff(map[Class]int{RewardMissing: 1}, a.Classes); d != "" {
		t.Error(d)
	}
	if *a.PassAt1.Value != 0.75 || a.PassAt1.Tasks != 2 || *a.PassAt["2"].Value != 1 || a.PassAt1.Low == nil {
		t.Errorf("%+v, %+v", a.PassAt1, a.PassAt)
	}
	if text, err := json.Marshal(Summarize(s, nil)); err != nil || !strings.Contains(string(text), `"pass@1":{"tasks":0}`) { // NaN is no JSON
		t.Errorf("%s, %v", text, err)
	}
}

// TestSummaryAddsUp: each planned trial is in exactly one count.
func TestSummaryAddsUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := spec(tasks(rapid.IntRange(1, 10).Draw(rt, "tasks")))
		s.Agents, s.Attempts = []string{Nop}, rapid.IntRange(1, 4).Draw(rt, "attempts")
		var list []Result
		for i, task := range s.Tasks {
			if rapid.Bool().Draw(rt, "unsupported") { // here; another machine may have tried it
				s.Tasks[i].Unsupported = []string{"2 GPUs"}
			}
			for attempt := 1; attempt <= s.Attempts; attempt++ {
				if o := rapid.SampledFrom([]Outcome{"", Passed, Failed, Limit, Infrastructure, Suspect}).Draw(rt, "outcome"); o != "" {
					list = append(list, result(task.ID, Nop, attempt, o))
				}
			}
		}
		got := Summarize(s, list)
		a := got.Agents[0]
		if a.Planned != (len(s.Tasks)-len(got.Unsupported))*s.Attempts || a.Planned != a.NotRun+a.Judged+a.Infrastructure+a.Suspect || a.Judged != a.Passed+a.Failed+a.Limit {
			rt.Errorf("%+v", a)
		}
		if r := a.PassAt1; r.Value != nil && (*r.Value < 0 || *r.Value > 1 || r.Low != nil && (*r.Low > *r.Value+1e-9 || *r.High < *r.Value-1e-9)) {
			rt.Errorf("%v in %v to %v", *r.Value, *r.Low, *r.High)
		}
		if _, err := json.Marshal(a); err != nil {
			rt.Error(err)
		}
	})
}

func TestCompareSides(t *testing.T) {
	list := tasks(5)
	a := Side{Name: "x", Agent: "x", Spec: spec(list[:4])}
	changed := tasks(5)
	changed[1].Checksum = "sha256:changed"
	b := Side{Name: "y", Agent: "y", Spec: spec(changed)}
	for i := range 4 {
		a.Results = append(a.Results, result(fmt.Sprintf("task-%d", i), "x", 1, Passed), result(fmt.Sprintf("task-%d", i), "x", 2, Failed))
		b.Results = append(b.Results, result(fmt.Sprintf("task-%d", i), "y", 1, Failed))
	}
	b.Results[3].Outcome = Suspect
	c := Compare(a, b)
	want := []stats.Pair{{Task: "task-0", A: 0.5, AttemptsA: 2, AttemptsB: 1}, {Task: "task-2", A: 0.5, AttemptsA: 2, AttemptsB: 1}}
	if d := gocmp.Diff(want, c.Pairs); d != "" {
		t.Error(d)
	}
	left := []LeftOut{{"task-1", "it differs between the two"}, {"task-3", "no trial of y was judged"}, {"task-4", "only y has it"}}
	if d := gocmp.Diff(left, c.LeftOut); d != "" {
		t.Error(d)
	}
}

func TestExports(t *testing.T) {
	dir := t.TempDir()
	s := spec(tasks(4))
	s.Tasks[2].Unsupported = []string{"another machine can run it"}
	s.Tasks[3].Unsupported = []string{"a\x00 <GPU>"}
	passed, failed, infra, suspect := result("task-0", Nop, 1, Passed), result("task-1", Nop, 1, Failed), result("task-1", Nop, 2, Infrastructure), result("task-2", Nop, 1, Suspect)
	failed.Class, failed.Cause = RewardMissing, "no & \x1b reward"
	list := []Result{passed, failed, infra, suspect}
	must(t, os.MkdirAll(filepath.Join(dir, TrialsDir, passed.Key.Name()), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, TrialsDir, passed.Key.Name(), PatchFile), []byte("--- a\n+++ <b>\n"), 0o644))
	var b bytes.Buffer
	must(t, WritePredictions(&b, dir, Nop, list))
	if want := "{\"instance_id\":\"task-0\",\"model_name_or_path\":\"nop\",\"model_patch\":\"--- a\\n+++ <b>\\n\"}\n{\"instance_id\":\"task-1\",\"model_name_or_path\":\"nop\",\"model_patch\":\"\"}\n{\"instance_id\":\"task-2\",\"model_name_or_path\":\"nop\",\"model_patch\":\"\"}\n"; b.String() != want {
		t.Errorf("predictions: %s", b.String())
	}
	b.Reset()
	must(t, WriteJUnit(&b, s, list))
	var suites junitSuites
	must(t, xml.Unmarshal(b.Bytes(), &suites))
	suite := suites.Suites[0]
	if suite.Tests != 5 || suite.Failures != 1 || suite.Errors != 2 || suite.Skipped != 1 || suite.Time != "4.000" || len(suite.Cases) != 5 || suite.Cases[3].Error == nil {
		t.Errorf("%+v", suite)
	}
	if f := suite.Cases[1].Failure; f == nil || f.Type != "reward_missing" || f.Message != "no & � reward" {
		t.Errorf("%+v", f)
	}
}

// TestVerdict: a step without rewards counts 0, a class of failure is no pass, and a
// sandbox failure is the agent's once it has acted.
func TestVerdict(t *testing.T) {
	step := func(class Class, rewards ...float64) StepResult {
		s := StepResult{Class: class}
		if len(rewards) > 0 {
			s.Rewards = map[string]float64{"reward": rewards[0]}
		}
		return s
	}
	lost, limit := fmt.Errorf("x: %w", sandbox.ErrLost), &limits.ExceededError{Kind: limits.KindMemory}
	for name, c := range map[string]struct {
		steps    []StepResult
		strategy task.Strategy
		err      error
		outcome  Outcome
		class    Class
		reward   float64 // -1 is none
	}{
		"passed":                    {steps: []StepResult{step("", 1), step("", 1), step("", 1)}, outcome: Passed, reward: 1},
		"no reward":                 {steps: []StepResult{step("", 1), step(RewardMissing), step("", 1)}, outcome: Failed, class: RewardMissing, reward: 2. / 3},
		"no reward, large ones":     {steps: []StepResult{step("", 3), step(RewardMissing), step("", 3)}, outcome: Failed, class: RewardMissing, reward: 2},
		"not reached":               {steps: []StepResult{step("", 1)}, err: blame(true, Environment, errors.New("x")), outcome: Failed, class: Environment, reward: 1. / 3},
		"no reward at all":          {steps: []StepResult{step(RewardMissing)}, outcome: Failed, class: RewardMissing, reward: -1},
		"final":                     {steps: []StepResult{step("", 0), step("", 0), step("", 1)}, strategy: task.Final, outcome: Passed, reward: 1},
		"final not reached":         {steps: []StepResult{step(MinRewardNotMet, 1)}, strategy: task.Final, outcome: Failed, class: MinRewardNotMet, reward: 0},
		"lost before the agent":     {err: blame(false, StateUnreadable, lost), outcome: Infrastructure, class: SandboxLost, reward: -1},
		"not set up":                {err: blame(false, StateUnreadable, errors.New("x")), outcome: Infrastructure, class: Environment, reward: -1},
		"lost after it":             {err: blame(true, StateUnreadable, lost), outcome: Failed, class: SandboxLost, reward: -1},
		"full after it":             {err: blame(true, StateUnreadable, limit), outcome: Limit, class: StateUnreadable, reward: -1},
		"disk of this machine":      {err: blame(true, StateUnreadable, syscall.ENOSPC), outcome: Infrastructure, class: Machine, reward: -1},
		"records of this machine":   {err: blame(true, StateUnreadable, &state.DirError{}), outcome: Infrastructure, class: RecordsUnwritable, reward: -1},
		"suspect":                   {steps: []StepResult{step("", 1), step(VerifierNetwork, 0)}, err: &failure{VerifierNetwork, errors.New("x"), true}, outcome: Suspect, class: VerifierNetwork, reward: 1. / 3},
		"suspect, graded":           {steps: []StepResult{step("", 1)}, err: &failure{VerifierNetwork, errors.New("x"), true}, outcome: Suspect, class: VerifierNetwork, reward: 1. / 3},
		"suspect after a failure":   {steps: []StepResult{step(RewardMissing), step(VerifierNetwork, 0)}, err: &failure{VerifierNetwork, errors.New("x"), true}, outcome: Failed, class: RewardMissing, reward: 0},
		"of the provider after all": {err: blame(true, StateUnreadable, &infraError{Provider, lost}), outcome: Infrastructure, class: Provider, reward: -1},
	} {
		r := trialRun{steps: c.steps, trial: Trial{Definition: &task.Task{MultiStep: true, Strategy: cmp.Or(c.strategy, task.Mean), Steps: make([]task.Step, 3)}}}
		r.setOutcome(c.err)
		reward := -1.0
		if r.result.Reward != nil {
			reward = *r.result.Reward
		}
		if r.result.Outcome != c.outcome || r.result.Class != c.class || reward != c.reward {
			t.Errorf("%s: %s %q, reward %g; want %s %q, %g", name, r.result.Outcome, r.result.Class, reward, c.outcome, c.class, c.reward)
		}
	}
}

// TestOwnFaults: after a command of the agent, a refused conversation is its own fault.
func TestOwnFaults(t *testing.T) {
	failure := func(class loop.ErrorClass, status int) error {
		return &loop.ModelError{Class: class, Status: status, Err: errors.New("refused")}
	}
	for _, c := range []struct {
		err           error
		before, after bool // a command
	}{
		{failure(loop.ModelInvalidRequest, 0), false, true},
		{failure(loop.ModelInvalidRequest, 400), false, true},
		{failure(loop.ModelInvalidRequest, 422), false, true},
		{failure(loop.ModelInvalidRequest, 404), false, false},
		{failure(loop.ModelAuth, 403), false, true},
		{failure(loop.ModelAuth, 401), false, false},
		{failure(loop.ModelRateLimit, 429), false, false},
		{failure(loop.ModelNetwork, 0), false, false},
		{&loop.ModelError{Class: loop.ModelServer, Status: 500, Err: loop.AnswerError("can't be parsed")}, true, true},
	} {
		if (&trialRun{}).isOwnFault(c.err) != c.before || (&trialRun{acted: true}).isOwnFault(c.err) != c.after {
			t.Errorf("%#v", c.err)
		}
	}
}

// TestStepDirs: each step has its own directory, even if the kept letters of names are
// the same, or none.
func TestStepDirs(t *testing.T) {
	seen := map[string]bool{filepath.Join("trial", StepsDir): true}
	steps := []task.Step{{Name: "один"}, {Name: "пять"}, {Name: "..."}, {Name: "a b"}, {Name: "a_b"}, {Name: strings.Repeat("x", 100) + "1"}, {Name: strings.Repeat("x", 100) + "2"}}
	r := &trialRun{dir: "trial", trial: Trial{Definition: &task.Task{MultiStep: true, Steps: steps}}}
	for i := range steps {
		dir := r.stepDir(i)
		if seen[dir] || filepath.Dir(dir) != filepath.Join("trial", StepsDir) {
			t.Errorf("step %d: %s", i, dir)
		}
		seen[dir] = true
	}
}

func TestReadRewards(t *testing.T) {
	for _, c := range []struct {
		files string
		want  map[string]float64
		class Class
	}{
		{files: "reward.txt=1\n", want: map[string]float64{"reward": 1}},
		{files: "reward.txt= 0.25 \n", want: map[string]float64{"reward": 0.25}},
		{files: `reward.txt=1|reward.json={"reward":0.5,"b":2,"c":true,"d":"x","e":null}`, want: map[string]float64{"reward": 0.5, "b": 2}},
		{files: `reward.json={"reward":null,"tests":12}`, class: RewardUnparsable},
		{files: `reward.json={"reward":"0","elapsed_sec":3.5}`, class: RewardUnparsable},
		{files: `reward.json={"reward":0,"reward":1}`, class: RewardUnparsable},
		{files: `reward.json={"a":{"b":1,"b":2},"c":1} {}`, class: RewardUnparsable},
		{files: `reward.json={"a":[1,2],"c":1}`, want: map[string]float64{"c": 1}},
		{files: "reward.txt=1|reward.json=", class: RewardEmpty},
		{files: "reward.txt=1|reward.json=[1]", class: RewardUnparsable},
		{files: "reward.txt=1|reward.json=null", class: RewardUnparsable},
		{files: `reward.json={"x":"y"}`, class: RewardUnparsable},
		{files: "reward.txt=NaN", class: RewardUnparsable},
		{files: "reward.txt=inf", class: RewardUnparsable},
		{files: "reward.txt=-1e101", class: RewardUnparsable},
		{files: `reward.json={"a":1.7e308,"b":1.7e308}`, class: RewardUnparsable}, // the mean would be infinite
		{files: "reward.txt=1 2", class: RewardUnparsable},
		{files: "reward.txt=\n \n", class: RewardEmpty},
		{files: "other=1", class: RewardMissing},
	} {
		dir := t.TempDir()
		for f := range strings.SplitSeq(c.files, "|") {
			name, text, _ := strings.Cut(f, "=")
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
		}
		got, err := ReadRewards(dir)
		class := Class("")
		if e, ok := errors.AsType[*RewardError](err); ok {
			class, err = e.Class, nil
		}
		if d := gocmp.Diff(c.want, got); d != "" || class != c.class || err != nil {
			t.Errorf("%s: %v, %s, %v", c.files, got, class, err)
		}
	}
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "reward.txt"), 0o755))
	_, err := ReadRewards(dir)
	if e, ok := errors.AsType[*RewardError](err); !ok || e.Class != RewardUnparsable {
		t.Errorf("a directory: %v", err)
	}
	if r := mainReward(map[string]float64{"a": 1, "b": 0}); r != 0.5 {
		t.Errorf("mean without the key: %v", r)
	}
}
