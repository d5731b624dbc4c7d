package batch

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/sandbox"
)

// killedDir is set in a process that runs a batch until it is killed.
const killedDir = "CAISSON_TEST_BATCH_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(killedDir); dir != "" {
		if err := runKilled(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	status := m.Run()
	if MachinesAsked.Load() > 0 && MachinesMade.Load() == 0 && status == 0 && !testing.Verbose() && !testing.Short() {
		fmt.Fprintf(os.Stderr, "FAIL: no test of a trial ran: %s; -v lists what was skipped, and -short allows it\n", MissingMachine.Load())
		status = 1
	}
	os.Exit(status)
}

// killedTrials is the size of the batch that is killed.
const killedTrials = 200

// outcomeOf returns a trial's result, which depends only on its key.
func outcomeOf(k Key) Outcome {
	h := fnv.New32()
	fmt.Fprint(h, k)
	return []Outcome{Passed, Failed, Limit}[h.Sum32()%3]
}

func runKilled(dir string) error {
	list := tasks(killedTrials)
	l, err := OpenLedger(dir, spec(list))
	if err != nil {
		return err
	}
	_, err = Run(context.Background(), Options{
		Ledger: l, Trials: Plan(list, []string{Nop}, 1, Shard{}), Capacity: Capacity{Trials: 4},
		Run: func(_ context.Context, t Trial, dir string, _ *int64) Result {
			if err := os.WriteFile(filepath.Join(dir, "begun"), nil, 0o644); err != nil {
				return Result{Outcome: Infrastructure, Class: Machine, Cause: err.Error()}
			}
			time.Sleep(20 * time.Millisecond)
			return Result{Outcome: outcomeOf(t.Key)}
		},
	})
	return errors.Join(err, l.Close())
}

// TestKilled: a batch that is killed repeatedly ends with the same results, each trial
// once, and nothing left behind.
func TestKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "batch")
	kills := 0
	for {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), killedDir+"="+dir)
		cmd.Stderr = os.Stderr
		must(t, cmd.Start())
		timer := time.AfterFunc(time.Duration(200+kills*20+kills*37%100)*time.Millisecond, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		if timer.Stop() {
			must(t, err)
			break
		}
		kills++
		if kills > 200 {
			t.Fatal("the batch makes no progress")
		}
	}
	if kills == 0 {
		t.Error("the batch was never killed")
	}
	t.Logf("killed %d times", kills)
	results, err := ReadResults(dir)
	must(t, err)
	got, want := map[Key]Outcome{}, map[Key]Outcome{}
	for _, r := range results {
		got[r.Key] = r.Outcome
	}
	for _, trial := range Plan(tasks(killedTrials), []string{Nop}, 1, Shard{}) {
		want[trial.Key] = outcomeOf(trial.Key)
	}
	if d := cmp.Diff(want, got); d != "" || len(results) != killedTrials {
		t.Errorf("%d results (-want +got):\n%s", len(results), d)
	}
	for name, want := range map[string]int{TrialsDir: killedTrials, runningDir: 0} {
		if entries, err := os.ReadDir(filepath.Join(dir, name)); err != nil && !os.IsNotExist(err) || len(entries) != want {
			t.Errorf("%s has %d directories, want %d: %v", name, len(entries), want, err)
		}
	}
}

func runAll(t testing.TB, list []task.Task, o Options) []Result {
	t.Helper()
	l := open(t, t.TempDir(), spec(list))
	o.Ledger, o.Trials = l, Plan(list, []string{Nop}, 1, Shard{})
	if o.RetryDelay == 0 {
		o.RetryDelay = time.Millisecond
	}
	_, err := Run(t.Context(), o)
	must(t, err)
	results := readAll(t, l)
	must(t, l.Close())
	return results
}

// TestRetries: only infrastructure faults are retried. Each is counted by class, and
// the attempts' costs are added.
func TestRetries(t *testing.T) {
	var tries sync.Map
	results := runAll(t, tasks(4), Options{Retries: 2, Capacity: Capacity{Trials: 3}, Run: func(_ context.Context, trial Trial, _ string, _ *int64) Result {
		n, _ := tries.LoadOrStore(trial.Task, new(atomic.Int64))
		try := n.(*atomic.Int64).Add(1)
		r := Result{Model: "m", Usage: limits.Usage{CostMicroUSD: new(int64(10))}}
		if trial.Task == "task-3" {
			r = Result{} // an agent that is no model has no cost
		}
		switch {
		case trial.Task == "task-0":
			r.Outcome = Failed
		case trial.Task == "task-1" && try == 3, trial.Task == "task-3" && try == 2:
			r.Outcome = Passed
		default:
			r.Outcome, r.Class, r.Cause = Infrastructure, SandboxStart, fmt.Sprint("try ", try)
		}
		return r
	}})
	want := map[string]string{
		"task-0": "failed [] 10",
		"task-1": "passed [{sandbox_start try 1} {sandbox_start try 2}] 30",
		"task-2": "infrastructure [{sandbox_start try 1} {sandbox_start try 2} {sandbox_start try 3}] 30",
	}
	for _, r := range results {
		if r.Task == "task-3" {
			if r.Outcome != Passed || len(r.Faults) != 1 || r.CostUSD != "" {
				t.Errorf("%+v", r)
			}
			continue
		}
		if got := fmt.Sprintf("%s %v %d", r.Outcome, r.Faults, *r.Usage.CostMicroUSD); got != want[r.Task] {
			t.Errorf("%s: %s, want %s", r.Task, got, want[r.Task])
		}
		if r.Checksum == "" || r.Finished.Before(r.Started) || r.Name != r.Key.Name() {
			t.Errorf("%+v", r)
		}
	}
}

// TestMaxCost: nothing starts once the cost is used up, even in a continued batch, and
// each attempt is bounded by what is left. A trial for which too little is left has no
// result and runs again, but its cost counts.
func TestMaxCost(t *testing.T) {
	dir, list := t.TempDir(), tasks(10)
	var budgets []int64
	var short, faults int
	run := func(maxCost int64) Totals {
		l := open(t, dir, spec(list))
		defer l.Close()
		totals, err := Run(t.Context(), Options{
			Ledger: l, Trials: Plan(list, []string{Nop}, 1, Shard{}), Capacity: Capacity{Trials: 1}, MaxCostMicroUSD: maxCost, Retries: 1, RetryDelay: 1,
			Run: func(_ context.Context, _ Trial, _ string, budget *int64) Result {
				budgets = append(budgets, *budget)
				if *budget < 30 && short > 0 {
					short--
					return Result{Outcome: NotRun, Cause: "too little", Model: "m", Usage: limits.Usage{CostMicroUSD: new(int64(4))}}
				}
				if faults > 0 {
					faults--
					return Result{Outcome: Infrastructure, Class: SandboxLost, Model: "m", Usage: limits.Usage{CostMicroUSD: new(int64(20))}}
				}
				return Result{Outcome: Passed, Model: "m", Usage: limits.Usage{CostMicroUSD: new(int64(30))}}
			},
		})
		must(t, err)
		return totals
	}
	if got := run(100); got.Ran != 4 || got.Reached == "" || len(got.NotRun) != 6 {
		t.Errorf("%+v", got)
	}
	if d := cmp.Diff([]int64{100, 70, 40, 10}, budgets); d != "" {
		t.Error(d)
	}
	if got := run(100); got.Ran != 0 || got.Kept != 4 || got.Reached == "" {
		t.Errorf("again: %+v", got)
	}
	if got := run(1000); got.Ran != 6 || got.Reached != "" || len(got.NotRun) != 0 {
		t.Errorf("with more: %+v", got)
	}
	dir, budgets, short, faults = t.TempDir(), nil, 1, 1
	if got := run(100); got.Ran != 2 || got.Reached != "too little" || len(got.NotRun) != 8 {
		t.Errorf("too little: %+v", got)
	}
	if got := run(100); got.Ran != 1 || got.Kept != 2 || len(got.NotRun) != 7 {
		t.Errorf("too little, again: %+v", got)
	}
	if d := cmp.Diff([]int64{100, 80, 50, 20, 16}, budgets); d != "" {
		t.Error(d)
	}
}

// TestAdmission: trials run together only while all fit. If one needs more processors
// than there are, it gets all.
func TestAdmission(t *testing.T) {
	list := tasks(40)
	for i := range list {
		list[i].Environment = task.Environment{MemoryBytes: int64(i%4+1) << 20, MilliCPUs: int64(i%3) * 4000}
	}
	var mu sync.Mutex
	var trials, memory, most int64
	results := runAll(t, list, Options{Capacity: Capacity{Trials: 5, MemoryBytes: 6 << 20, MilliCPUs: 4000}, Run: func(_ context.Context, trial Trial, _ string, _ *int64) Result {
		mu.Lock()
		trials++
		memory += trial.Definition.Environment.MemoryBytes
		most = max(most, trials)
		if trials > 5 || memory > 6<<20 {
			t.Errorf("%d trials with %d bytes at once", trials, memory)
		}
		mu.Unlock()
		time.Sleep(time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		trials--
		memory -= trial.Definition.Environment.MemoryBytes
		return Result{Outcome: Passed}
	}})
	if len(results) != 40 || most < 2 {
		t.Errorf("%d results, at most %d at once", len(results), most)
	}
	c := Capacity{MemoryBytes: 1 << 30}
	if err := c.Check(task.Environment{MemoryBytes: 2 << 30}); !errors.As(err, new(*CapacityError)) {
		t.Errorf("never fits: %v", err)
	}
	if err := c.Check(task.Environment{MemoryBytes: 1 << 30, StorageBytes: 1 << 50}); err != nil {
		t.Error(err)
	}
}

// TestClockSetBack: the reference time allows for the lag of the kernel's times, and
// for a clock that is set forward.
func TestClockSetBack(t *testing.T) {
	for _, c := range []struct{ wall, elapsed, want time.Duration }{
		{time.Minute, time.Minute, 0},
		{time.Minute - 19*time.Millisecond, time.Minute, 0},
		{time.Hour, time.Minute, 0},
		{time.Minute - 20*time.Millisecond, time.Minute, 20 * time.Millisecond},
		{-time.Hour, time.Minute, time.Hour + time.Minute},
	} {
		if got := clockSetBack(c.wall, c.elapsed); got != c.want {
			t.Errorf("%s in %s: %s, want %s", c.wall, c.elapsed, got, c.want)
		}
	}
}

// TestCancel: trials that are stopped have no result, and run again.
func TestCancel(t *testing.T) {
	dir, list := t.TempDir(), tasks(10)
	l := open(t, dir, spec(list))
	ctx, cancel := context.WithCancel(t.Context())
	var started atomic.Int64
	totals, err := Run(ctx, Options{Ledger: l, Trials: Plan(list, []string{Nop}, 1, Shard{}), Capacity: Capacity{Trials: 2}, Run: func(ctx context.Context, _ Trial, _ string, _ *int64) Result {
		if started.Add(1) > 4 {
			cancel()
			<-ctx.Done()
		}
		return Result{Outcome: Passed}
	}})
	must(t, err)
	if n := len(readAll(t, l)); totals.Ran != n || n < 3 || n > 4 || n+len(totals.NotRun) != 10 {
		t.Errorf("%d results, %+v", n, totals)
	}
	must(t, l.Close())
	l = open(t, dir, spec(list))
	defer l.Close()
	totals, err = Run(t.Context(), Options{Ledger: l, Trials: Plan(list, []string{Nop}, 1, Shard{}), Run: func(context.Context, Trial, string, *int64) Result { return Result{Outcome: Passed} }})
	if err != nil || len(readAll(t, l)) != 10 || totals.Kept+totals.Ran != 10 {
		t.Errorf("%+v, %v", totals, err)
	}
}

// TestEndingFaults: after a full disk, a refused key or a reached ceiling, the trial
// has no result and no retry, and no other trial starts. The sandbox's own reports of
// these are failures of the trial.
func TestEndingFaults(t *testing.T) {
	for _, fault := range []error{
		&infraError{Machine, &os.PathError{Op: "write", Path: "state.tar", Err: syscall.ENOSPC}}, fmt.Errorf("records: %w", syscall.EROFS),
		&infraError{ProviderAuth, errors.New("refused")}, &infraError{Ceiling, errors.New("reached")},
	} {
		list := tasks(5)
		l := open(t, t.TempDir(), spec(list))
		ran := 0
		totals, err := Run(t.Context(), Options{Ledger: l, Trials: Plan(list, []string{Nop}, 1, Shard{}), Capacity: Capacity{Trials: 1}, Retries: 2, Run: func(context.Context, Trial, string, *int64) Result {
			ran++
			r := trialRun{}
			r.setOutcome(fault)
			return r.result
		}})
		if end, ok := errors.AsType[*EndError](err); !ok || !errors.Is(end, fault) || ran != 1 || len(readAll(t, l)) != 0 || len(totals.NotRun) != 5 {
			t.Errorf("%v after %d trials, %+v", err, ran, totals)
		}
		must(t, l.Close())
	}
	if isDiskFault(&statusError{"bring files into the sandbox", sandbox.ExitStatus{Code: 1}, "no space left on device"}) {
		t.Error("a full disk in a sandbox ends the batch")
	}
}

// TestNothingStartsAfterTheEnd: a trial that frees its place when the batch has ended makes
// no room for another.
func TestNothingStartsAfterTheEnd(t *testing.T) {
	ctx, end := context.WithCancelCause(t.Context())
	end(errors.New("ended"))
	if _, err := NewAdmission(Capacity{Trials: 1}).Acquire(ctx, task.Environment{}); err == nil || err.Error() != "ended" {
		t.Errorf("error %v, want the end's", err)
	}
}

// TestResultCannotBeKept: once a result can't be written, no trial starts.
func TestResultCannotBeKept(t *testing.T) {
	list := tasks(50)
	l := open(t, t.TempDir(), spec(list))
	var ran atomic.Int64
	_, err := Run(t.Context(), Options{Ledger: l, Trials: Plan(list, []string{Nop}, 1, Shard{}), Capacity: Capacity{Trials: 1}, Run: func(context.Context, Trial, string, *int64) Result {
		if ran.Add(1) == 3 {
			_ = l.file.Close()
		}
		return Result{Outcome: Passed}
	}})
	if err == nil || ran.Load() != 3 {
		t.Errorf("%v after %d trials", err, ran.Load())
	}
	_ = l.lock.Release()
}
