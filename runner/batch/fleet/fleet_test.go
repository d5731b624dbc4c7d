package fleet

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/results"
	"github.com/caisson-run/caisson/runner/batch/task"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testTasks returns n tasks with the given number of images.
func testTasks(n, images int) []task.Task {
	var list []task.Task
	for i := range n {
		list = append(list, task.Task{
			ID: fmt.Sprintf("task-%d", i), Checksum: fmt.Sprintf("sha256:%d", i), Steps: []task.Step{{}},
			Environment: task.Environment{Image: fmt.Sprintf("image-%d", i%images)},
		})
	}
	return list
}

func testSpec(list []task.Task) batch.Spec {
	return batch.Spec{Backend: "fake", Tasks: batch.NewSpecTasks(list), Agents: []string{batch.Nop}, Attempts: 1}
}

// trialOf returns a trial that takes a time, appends its name to the file at log, and
// has an outcome that depends only on its key.
func trialOf(d time.Duration, log string) batch.RunTrial {
	return func(ctx context.Context, t batch.Trial, dir string, _ *int64) batch.Result {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return batch.Result{Outcome: batch.Cancelled}
		}
		err := os.WriteFile(filepath.Join(dir, "file"), []byte(t.Task), 0o644)
		if log != "" {
			f, openErr := os.OpenFile(log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
			must := errors.Join(err, openErr)
			if must == nil {
				_, must = fmt.Fprintln(f, t.Key.Name(), t.Definition.Environment.Image)
				must = errors.Join(must, f.Close())
			}
			err = must
		}
		if err != nil {
			return batch.Result{Outcome: batch.Infrastructure, Class: batch.Machine, Cause: err.Error()}
		}
		h := fnv.New32()
		fmt.Fprint(h, t.Key)
		return batch.Result{Outcome: []batch.Outcome{batch.Passed, batch.Failed, batch.Limit}[h.Sum32()%3]}
	}
}

// startServer starts a NATS server with JetStream, in a cluster if routes is set.
func startServer(t testing.TB, name string, cluster int, routes string) *server.Server {
	t.Helper()
	o := &server.Options{
		ServerName: name, Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), SyncAlways: true, NoSigs: true, NoLog: true,
	}
	if routes != "" {
		o.Cluster = server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: cluster}
		o.Routes = server.RoutesFromStr(routes)
	}
	s, err := server.NewServer(o)
	must(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}

func startCluster(t testing.TB) (list []*server.Server, urls string) {
	t.Helper()
	var ports []int
	var routes []string
	for range 3 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", ports[len(ports)-1]))
		must(t, l.Close())
	}
	var clients []string
	for i, port := range ports {
		s := startServer(t, fmt.Sprintf("n%d", i), port, strings.Join(routes, ","))
		list = append(list, s)
		clients = append(clients, s.ClientURL())
	}
	deadline := time.Now().Add(time.Minute)
	for !slices.ContainsFunc(list, func(s *server.Server) bool { return s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == 3 }) {
		if time.Now().After(deadline) {
			t.Fatal("the cluster has no leader with three peers")
		}
		time.Sleep(20 * time.Millisecond)
	}
	return list, strings.Join(clients, ",")
}

func connect(t testing.TB, urls string) *nats.Conn {
	t.Helper()
	c, err := Connect(urls, "", "test", func(string) {})
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// testBatch is a batch with a coordinator.
type testBatch struct {
	t      testing.TB
	urls   string
	store  results.Store
	tasks  []task.Task
	ledger *batch.Ledger
	log    string
	trial  time.Duration
	// results counts what the coordinator has collected.
	results atomic.Int64
	maxCost int64
	report  func(text string) // of workers; nil logs
	idle    func()            // of the coordinator
}

func newBatch(t testing.TB, urls string, list []task.Task) *testBatch {
	t.Helper()
	s, err := results.Open(t.Context(), filepath.Join(t.TempDir(), "store"), os.LookupEnv)
	must(t, err)
	b := &testBatch{t: t, urls: urls, store: s, tasks: list, log: filepath.Join(t.TempDir(), "log"), trial: 50 * time.Millisecond}
	b.ledger, err = batch.OpenLedger(filepath.Join(t.TempDir(), "out"), testSpec(list))
	must(t, err)
	t.Cleanup(func() { _ = b.ledger.Close() })
	return b
}

func (b *testBatch) coordinate(ctx context.Context) (batch.Totals, error) {
	return Coordinate(ctx, CoordinatorOptions{
		Conn: connect(b.t, b.urls), Store: b.store, Ledger: b.ledger, Spec: testSpec(b.tasks), Paths: []string{"/tasks"},
		Trials: batch.Plan(b.tasks, []string{batch.Nop}, 1, batch.Shard{}), Interval: 50 * time.Millisecond, AckWait: 2 * time.Second,
		MaxCostMicroUSD: b.maxCost, OnResult: func(batch.Result) { b.results.Add(1) }, Report: func(text string) { b.t.Log(text) }, OnIdle: b.idle,
	})
}

func waitRun(ctx context.Context, s results.Store) (Run, error) {
	for {
		r, _, err := LatestRun(ctx, s)
		if !errors.Is(err, ErrNoRun) {
			return r, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (b *testBatch) work(ctx context.Context, name string, width int, run batch.RunTrial) error {
	r, err := waitRun(ctx, b.store)
	if err != nil {
		return err
	}
	report := b.report
	if report == nil {
		report = func(text string) { b.t.Log(name + ": " + text) }
	}
	return Work(ctx, WorkerOptions{
		Conn: connect(b.t, b.urls), Store: b.store, Run: r, Tasks: b.tasks, RunTrial: run, Name: name, Dir: filepath.Join(b.t.TempDir(), name),
		Capacity: batch.Capacity{Trials: width}, Idle: 50 * time.Millisecond, Report: report,
	})
}

// check compares the results with one machine's, and checks each trial's files.
func (b *testBatch) check() {
	b.t.Helper()
	trials := batch.Plan(b.tasks, []string{batch.Nop}, 1, batch.Shard{})
	l, err := batch.OpenLedger(filepath.Join(b.t.TempDir(), "one"), testSpec(b.tasks))
	must(b.t, err)
	_, err = batch.Run(b.t.Context(), batch.Options{Ledger: l, Trials: trials, Capacity: batch.Capacity{Trials: 50}, Run: trialOf(0, "")})
	must(b.t, err)
	want, got := map[batch.Key]batch.Outcome{}, map[batch.Key]batch.Outcome{}
	one, err := batch.ReadResults(l.Dir())
	must(b.t, err)
	for _, r := range one {
		want[r.Key] = r.Outcome
	}
	must(b.t, l.Close())
	list, err := batch.ReadResults(b.ledger.Dir())
	must(b.t, err)
	for _, r := range list {
		got[r.Key] = r.Outcome
		text, err := os.ReadFile(filepath.Join(b.ledger.Dir(), batch.TrialsDir, r.Key.Name(), "file"))
		if err != nil || string(text) != r.Task {
			b.t.Errorf("%s: %q, %v", r.Key.Describe(), text, err)
		}
		if info, err := os.Stat(filepath.Join(b.ledger.Dir(), batch.TrialsDir, r.Key.Name())); err != nil || info.Mode().Perm() != 0o700 {
			b.t.Errorf("%s: %v, %v", r.Key.Describe(), info.Mode(), err)
		}
	}
	if d := cmp.Diff(want, got); d != "" || len(list) != len(trials) {
		b.t.Errorf("%d results (-one machine +fleet):\n%s", len(list), d)
	}
}

// readLog returns how often each trial ran.
func readLog(t testing.TB, paths ...string) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			n[strings.Fields(line)[0]]++
		}
	}
	return n
}

// TestFleet: three workers have one machine's results, each trial runs once, the
// workers end with the run, and a finished run does nothing.
func TestFleet(t *testing.T) {
	s := startServer(t, "one", 0, "")
	b := newBatch(t, s.ClientURL(), testTasks(60, 4))
	var workers sync.WaitGroup
	for i := range 3 {
		workers.Go(func() {
			if err := b.work(t.Context(), fmt.Sprint("w", i), 2, trialOf(b.trial, b.log)); err != nil {
				t.Error(err)
			}
		})
	}
	totals, err := b.coordinate(t.Context())
	must(t, err)
	workers.Wait()
	if totals.Ran != 60 || len(totals.NotRun) > 0 {
		t.Errorf("%+v", totals)
	}
	b.check()
	for name, n := range readLog(t, b.log) {
		if n != 1 {
			t.Errorf("%s ran %d times", name, n)
		}
	}
	if totals, err = b.coordinate(t.Context()); err != nil || totals.Kept != 60 || totals.Ran != 0 {
		t.Errorf("again: %+v, %v", totals, err)
	}
}

// TestIdle: a coordinator reports that no worker takes trials, unless one does.
func TestIdle(t *testing.T) {
	s := startServer(t, "one", 0, "")
	for _, works := range []bool{false, true} {
		b := newBatch(t, s.ClientURL(), testTasks(3, 1))
		b.trial = time.Second
		ctx, cancel := context.WithCancelCause(t.Context())
		var idle atomic.Int64
		var took atomic.Bool
		b.idle = func() {
			if works && !took.Load() {
				return // the worker is only starting
			}
			idle.Add(1)
			cancel(nil)
		}
		run := trialOf(b.trial, b.log)
		var worker sync.WaitGroup
		if works {
			worker.Go(func() {
				_ = b.work(t.Context(), "w", 1, func(ctx context.Context, trial batch.Trial, dir string, budget *int64) batch.Result {
					took.Store(true)
					return run(ctx, trial, dir, budget)
				})
			})
		}
		totals, err := b.coordinate(ctx)
		must(t, err)
		worker.Wait()
		if (idle.Load() == 0) != works || (totals.Ran == 3) != works {
			t.Errorf("with a worker %v: reported %d times, %+v", works, idle.Load(), totals)
		}
		cancel(nil)
	}
}

// TestMaxCost: each trial may cost what is left when it starts, and the queue is
// emptied when nothing is left.
func TestMaxCost(t *testing.T) {
	s := startServer(t, "one", 0, "")
	b := newBatch(t, s.ClientURL(), testTasks(100, 1))
	b.maxCost = 100
	var budgets []int64
	var workers sync.WaitGroup
	workers.Go(func() {
		_ = b.work(t.Context(), "w", 1, func(_ context.Context, _ batch.Trial, _ string, budget *int64) batch.Result {
			budgets = append(budgets, *budget)
			before := b.results.Load()
			for start := time.Now(); len(budgets) > 1 && b.results.Load() == before && time.Since(start) < 200*time.Millisecond; time.Sleep(10 * time.Millisecond) {
			}
			r := batch.Result{Outcome: batch.Passed, Model: "m"}
			r.Usage.CostMicroUSD = new(int64(30))
			return r
		})
	})
	totals, err := b.coordinate(t.Context())
	must(t, err)
	workers.Wait()
	if totals.Reached == "" || totals.Ran < 4 || totals.Ran > 8 || totals.Ran+len(totals.NotRun) != 100 {
		t.Errorf("ran %d, %d not, %v", totals.Ran, len(totals.NotRun), totals.Reached)
	}
	if !slices.IsSortedFunc(budgets, func(a, b int64) int { return int(b - a) }) || budgets[0] != 100 || slices.Min(budgets) > 40 || slices.Min(budgets) <= 0 {
		t.Errorf("budgets %v", budgets)
	}
}

// TestTooLittleLeft: a trial for which too little is left ends the run. Its cost
// counts, but it has no result.
func TestTooLittleLeft(t *testing.T) {
	s := startServer(t, "one", 0, "")
	b := newBatch(t, s.ClientURL(), testTasks(5, 1))
	b.maxCost = 100
	var workers sync.WaitGroup
	ran := 0
	workers.Go(func() {
		_ = b.work(t.Context(), "w", 1, func(context.Context, batch.Trial, string, *int64) batch.Result {
			for ran++; ran > 1 && b.results.Load() == 0; time.Sleep(time.Millisecond) { // the first is collected
			}
			r := batch.Result{Outcome: batch.Passed, Model: "m"}
			if r.Usage.CostMicroUSD = new(int64(30)); ran > 1 {
				r.Outcome, r.Cause = batch.NotRun, "too little"
			}
			return r
		})
	})
	totals, err := b.coordinate(t.Context())
	must(t, err)
	workers.Wait()
	if cost := b.ledger.CostMicroUSD(); totals.Reached == "" || totals.Ran != 1 || len(totals.NotRun) != 4 || ran != 2 || cost != 60 {
		t.Errorf("%+v, ran %d, cost %d", totals, ran, cost)
	}
}

// TestCostWithoutCoordinator: if the cost is bounded, no trial starts while the
// coordinator doesn't answer.
func TestCostWithoutCoordinator(t *testing.T) {
	s := startServer(t, "one", 0, "")
	w := worker{WorkerOptions: WorkerOptions{Conn: connect(t, s.ClientURL()), Run: Run{Batch: "B", MaxCostMicroUSD: 5}}}
	if left, err := w.askCost(t.Context()); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("no coordinator: %d, %v", left, err)
	}
	for answer, want := range map[string]int64{"3": 3, "5": 5, "7": 5, "0": 0, "-1": 0, "": 0, "1e9": 0, "99999999999999999999": 0} {
		conn := connect(t, s.ClientURL())
		c, err := conn.Subscribe(w.Run.costSubject(), func(m *nats.Msg) { _ = m.Respond([]byte(answer)) })
		must(t, errors.Join(err, conn.Flush()))
		if left, err := w.askCost(t.Context()); left != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v", answer, left, err)
		}
		must(t, errors.Join(c.Unsubscribe(), conn.Flush()))
	}
	w.Run.MaxCostMicroUSD = 0
	if left, err := w.askCost(t.Context()); left != 0 || err != nil {
		t.Errorf("no bound: %d, %v", left, err)
	}
}

// BenchmarkWorkers measures trials that sleep for a second, eight at a time on each
// worker: 8, 16 and 24 per second are possible.
func BenchmarkWorkers(b *testing.B) {
	for n := 1; n <= 3; n++ {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				_, urls := startCluster(b)
				batch := newBatch(b, urls, testTasks(80*n, 4))
				b.StartTimer()
				var workers sync.WaitGroup
				for i := range n {
					workers.Go(func() { _ = batch.work(b.Context(), fmt.Sprint(i), 8, trialOf(time.Second, "")) })
				}
				start := time.Now()
				if _, err := batch.coordinate(b.Context()); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(80*n)/time.Since(start).Seconds(), "trials/s")
				workers.Wait()
			}
		})
	}
}
