package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/runner/batch/results"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/tools/workspace"
)

// WorkerOptions configures [Work]. Conn, Store, Run, Tasks, RunTrial, Name and Dir are
// required.
type WorkerOptions struct {
	Conn  *Conn
	Store results.Store
	Run   Run
	// Tasks are the run's tasks as this machine has them.
	Tasks    []task.Task
	RunTrial batch.RunTrial
	// Name is unique among workers.
	Name string
	// Dir is for running trials. Only this process may use it.
	Dir string
	// Capacity bounds what the worker's trials use together. Its Trials must be
	// positive.
	Capacity batch.Capacity
	// Retries and RetryDelay are as in [batch.Options].
	Retries    int
	RetryDelay time.Duration
	// Idle is the time between two looks into an empty queue; zero means a second.
	Idle time.Duration
	// OnStart is as in [batch.Options]. OnResult is called once a result is stored, and
	// Report with faults that are retried. All may be nil.
	OnStart  func(k batch.Key)
	OnResult func(r batch.Result)
	Report   func(text string)
}

// maxTries bounds how often workers begin a trial, so that one which always ends its
// worker doesn't end all of them.
const maxTries = 10

// TaskError reports a task that is missing or different on this machine.
type TaskError struct {
	ID string
	// Want and Have are checksums. Have is "" if the task is missing.
	Want, Have string
}

func (e *TaskError) Error() string {
	if e.Have == "" {
		return fmt.Sprintf("task %q of the run is missing here", e.ID)
	}
	return fmt.Sprintf("task %q has checksum %s here: want %s", e.ID, e.Have, e.Want)
}

// Work runs trials until the run has ended, another one has begun, or ctx ends. A trial
// that ctx stops goes back to the queue. The error is a [TaskError] if the tasks are
// not the run's, and a [batch.EndError] if no more trials can run here. Faults of NATS
// and the store are retried indefinitely.
func Work(ctx context.Context, o WorkerOptions) error {
	w := &worker{
		WorkerOptions: o, admission: batch.NewAdmission(o.Capacity), slots: make(chan struct{}, o.Capacity.Trials),
		tasks: map[string]*task.Task{}, consumers: map[int]jetstream.Consumer{}, running: map[string]bool{},
	}
	w.Idle = cmp.Or(w.Idle, time.Second)
	w.Report = limitReports(w.Report)
	if err := w.findTasks(); err != nil {
		return err
	}
	var err error
	if w.js, err = jetstream.New(o.Conn, jetstream.WithDefaultTimeout(requestTime)); err != nil {
		return err
	}
	w.orderBuckets()
	own, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	w.stop = stop
	w.takeAll(own)
	w.handlers.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(own)
}

type worker struct {
	WorkerOptions
	js        jetstream.JetStream
	stop      context.CancelCauseFunc // ends the worker
	admission *batch.Admission
	slots     chan struct{}
	handlers  sync.WaitGroup
	tasks     map[string]*task.Task
	// buckets are in the order in which the worker looks for trials.
	buckets   []int
	consumers map[int]jetstream.Consumer
	refused   int // messages that are no trials

	mu      sync.Mutex
	running map[string]bool
}

// findTasks finds the run's tasks. This machine may have more.
func (w *worker) findTasks() error {
	here := map[string]*task.Task{}
	for i := range w.Tasks {
		here[w.Tasks[i].ID] = &w.Tasks[i]
	}
	for _, want := range w.Run.Spec.Tasks {
		if len(want.Unsupported) > 0 {
			continue
		}
		have, ok := here[want.ID]
		if !ok {
			return &TaskError{want.ID, want.Checksum, ""}
		}
		if have.Checksum != want.Checksum {
			return &TaskError{want.ID, want.Checksum, have.Checksum}
		}
		w.tasks[want.ID] = have
	}
	return nil
}

// orderBuckets makes workers start with different buckets.
func (w *worker) orderBuckets() {
	w.buckets = w.Run.list()
	weight := func(b int) uint32 {
		h := fnv.New32a()
		fmt.Fprint(h, w.Name, b)
		return h.Sum32()
	}
	slices.SortFunc(w.buckets, func(a, b int) int { return cmp.Or(cmp.Compare(weight(a), weight(b)), cmp.Compare(a, b)) })
}

func (w *worker) takeAll(ctx context.Context) {
	for {
		select {
		case w.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		var m jetstream.Msg
		var wait time.Duration
		if _, err := w.askCost(ctx); err == nil {
			m, wait = w.takeMessage(ctx)
		} else {
			reportFault(ctx, w.Report, "%v", err)
			w.pause(ctx)
		}
		if m == nil {
			<-w.slots
			if ctx.Err() != nil || w.hasEnded(ctx) {
				return
			}
			continue
		}
		t, err := w.readMessage(m)
		if err != nil {
			<-w.slots
			w.refuse(m, err)
			continue
		}
		stop := keepAlive(m, wait)
		release, err := w.admit(ctx, t)
		if err != nil {
			stop()
			<-w.slots
			reportFault(ctx, w.Report, "%v", err)
			_ = m.NakWithDelay(wait) // it is delivered again anyhow
			continue
		}
		w.handlers.Go(func() {
			defer func() { <-w.slots }()
			defer release()
			defer stop()
			if err := w.runMessage(ctx, m, t); err != nil {
				reportFault(ctx, w.Report, "%s goes back to the queue: %v", t.Key.Describe(), err)
				_ = m.NakWithDelay(w.Idle)
			}
		})
	}
}

// hasEnded reports whether the run has no more trials.
func (w *worker) hasEnded(ctx context.Context) bool {
	last, ended, err := LatestRun(ctx, w.Store)
	if err != nil {
		reportFault(ctx, w.Report, "the run can't be read, which is tried again: %v", err)
		return false
	}
	return ended || last.number != w.Run.number
}

// takeMessage returns the queue's next trial and the time in which to acknowledge it,
// or nil if there is none now. It looks into the last successful bucket first, because
// its image is already here.
func (w *worker) takeMessage(ctx context.Context) (jetstream.Msg, time.Duration) {
	for i, b := range w.buckets {
		c, err := w.consumer(ctx, b)
		if err != nil {
			continue
		}
		m := firstMessage(ctx)(c.FetchNoWait(1))
		if m == nil && i == len(w.buckets)-1 {
			m = firstMessage(ctx)(c.Fetch(1, jetstream.FetchMaxWait(max(w.Idle, time.Millisecond))))
		}
		if m != nil {
			w.buckets = slices.Insert(slices.Delete(w.buckets, i, i+1), 0, b)
			return m, c.CachedInfo().Config.AckWait
		}
	}
	w.pause(ctx)
	return nil, 0
}

func (w *worker) pause(ctx context.Context) {
	select {
	case <-time.After(w.Idle):
	case <-ctx.Done():
	}
}

func firstMessage(ctx context.Context) func(jetstream.MessageBatch, error) jetstream.Msg {
	return func(b jetstream.MessageBatch, err error) jetstream.Msg {
		if err != nil {
			return nil
		}
		select {
		case m := <-b.Messages():
			return m
		case <-ctx.Done():
			return nil
		}
	}
}

func (w *worker) consumer(ctx context.Context, bucket int) (jetstream.Consumer, error) {
	if c, ok := w.consumers[bucket]; ok {
		return c, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, requestTime, errRequestTime)
	defer cancel()
	c, err := w.js.Consumer(ctx, w.Run.stream(), consumerName(bucket))
	if err == nil {
		w.consumers[bucket] = c
	}
	return c, err
}

// keepAlive sends heartbeats for a trial until stop is called.
func keepAlive(m jetstream.Msg, wait time.Duration) (stop func()) {
	done := make(chan struct{})
	go func() {
		tick := time.NewTicker(max(wait/3, time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = m.InProgress() // the next one may arrive
			case <-done:
				return
			}
		}
	}()
	return sync.OnceFunc(func() { close(done) })
}

// readMessage returns a message's trial. Others may be able to write to the queue, so
// the trial must be one of the run, at its own subject.
func (w *worker) readMessage(m jetstream.Msg) (t batch.Trial, err error) {
	if err := json.Unmarshal(m.Data(), &t.Key); err != nil {
		return t, err
	}
	t.Definition = w.tasks[t.Task]
	switch {
	case t.Definition == nil, !slices.Contains(w.Run.Spec.Agents, t.Agent), t.Attempt < 1, t.Attempt > w.Run.Spec.Attempts:
		return t, fmt.Errorf("%.200s is no trial of the run", t.Key.Describe())
	case m.Subject() != w.Run.subject(t.Key):
		return t, fmt.Errorf("%.200s is at the subject of another trial", t.Key.Describe())
	}
	return t, nil
}

// refuse removes a message that is no trial. It reports the number of these when it is
// a power of two.
func (w *worker) refuse(m jetstream.Msg, err error) {
	_ = m.Term() // otherwise it is delivered again
	w.refused++
	if bits.OnesCount(uint(w.refused)) == 1 {
		w.Report(fmt.Sprintf("removed a message from the queue that is not a trial (%d so far): %v", w.refused, err))
	}
}

func (w *worker) admit(ctx context.Context, t batch.Trial) (release func(), err error) {
	if err := w.Capacity.Check(t.Definition.Environment); err != nil {
		return nil, fmt.Errorf("%s is left to other workers: %w", t.Key.Describe(), err)
	}
	return w.admission.Acquire(ctx, t.Definition.Environment)
}

// runMessage runs a trial that has no result yet, and acknowledges it once the result
// is stored.
func (w *worker) runMessage(ctx context.Context, m jetstream.Msg, t batch.Trial) error {
	name := t.Key.Name()
	w.mu.Lock()
	again := w.running[name]
	w.running[name] = true
	w.mu.Unlock()
	if again { // its heartbeats were lost; the next delivery finds the result
		return nil
	}
	defer func() {
		w.mu.Lock()
		delete(w.running, name)
		w.mu.Unlock()
	}()
	has, err := w.Store.Has(ctx, objectOf(t.Key))
	if err != nil {
		return err
	}
	if !has {
		if err := w.runTrial(ctx, t); err != nil {
			return err
		}
	}
	ackCtx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), requestTime, errRequestTime)
	defer cancel()
	if err := m.DoubleAck(ackCtx); err != nil { // the next delivery finds the result
		reportFault(ctx, w.Report, "%s is stored and not acknowledged: %v", t.Key.Describe(), err)
	}
	return nil
}

// runTrial runs a trial and stores its result. If ctx ends, there is no result.
func (w *worker) runTrial(ctx context.Context, t batch.Trial) (err error) {
	dir := filepath.Join(w.Dir, t.Key.Name())
	if err := workspace.RemoveTree(dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, workspace.RemoveTree(dir)) }()
	left, err := w.askCost(ctx)
	if err != nil {
		return err
	}
	run := w.RunTrial
	claimed, err := w.claim(ctx, t.Key)
	if err != nil {
		return err
	}
	if !claimed {
		run = func(context.Context, batch.Trial, string, *int64) batch.Result {
			return batch.Result{Outcome: batch.Infrastructure, Class: batch.Machine, Cause: fmt.Sprintf("%d workers began the trial, and none of them finished it", maxTries)}
		}
	}
	ledger, err := batch.OpenLedger(dir, w.Run.Spec)
	if err != nil {
		return err
	}
	totals, err := batch.Run(ctx, batch.Options{Ledger: ledger, Trials: []batch.Trial{t}, Run: run, MaxCostMicroUSD: left, Retries: w.Retries, RetryDelay: w.RetryDelay, OnStart: w.OnStart})
	_, ok := ledger.Ending(t.Key)
	if !ok && left > 0 {
		w.reportDropped(ctx, droppedTrial{ledger.CostMicroUSD(), totals.Reached != ""})
	}
	if err = errors.Join(err, ledger.Close()); err != nil {
		w.stop(err) // it would affect the next trial too
		return err
	}
	if !ok {
		return cmp.Or(context.Cause(ctx), errCost)
	}
	r, err := batch.ReadResult(filepath.Join(dir, batch.TrialsDir, t.Key.Name()))
	if err != nil {
		return err
	}
	err = w.storeTrial(ctx, t.Key, dir)
	if errors.Is(err, results.ErrExists) {
		w.Report(fmt.Sprintf("%s has a result already, which counts", t.Key.Describe()))
		return nil
	}
	if err == nil && w.OnResult != nil {
		w.OnResult(r)
	}
	return err
}

var errCost = errors.New("all trials together have cost what they may")

// askCost returns what a trial that starts now may cost, in millionths of a dollar, or
// 0 without a bound. Only the coordinator knows, so no trial starts without its answer.
func (w *worker) askCost(ctx context.Context) (int64, error) {
	if w.Run.MaxCostMicroUSD == 0 {
		return 0, nil
	}
	return w.requestCost(ctx, nil)
}

type droppedTrial struct {
	// MicroUSD is its cost, in millionths of a dollar.
	MicroUSD int64 `json:"micro_usd"`
	// Short means that too little of the cost bound was left.
	Short bool `json:"short"`
}

// reportDropped reports a trial without a result, even after ctx has ended.
func (w *worker) reportDropped(ctx context.Context, d droppedTrial) {
	text, err := json.Marshal(d)
	if err == nil && d != (droppedTrial{}) {
		_, err = w.requestCost(context.WithoutCancel(ctx), text)
	}
	if err != nil && !errors.Is(err, errCost) {
		w.Report(fmt.Sprintf("the coordinator does not know that a trial without a result has cost %d millionths of a dollar: %v", d.MicroUSD, err))
	}
}

func (w *worker) requestCost(ctx context.Context, message []byte) (int64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTime, errRequestTime)
	defer cancel()
	m, err := w.Conn.RequestWithContext(ctx, w.Run.costSubject(), message)
	if err != nil {
		return 0, fmt.Errorf("the coordinator does not answer what trials may still cost: %w", err)
	}
	left, err := strconv.ParseInt(string(m.Data), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("what trials may still cost: %w", err)
	}
	if left <= 0 {
		return 0, errCost
	}
	return min(left, w.Run.MaxCostMicroUSD), nil
}

// claim records an attempt at a trial and reports whether it may begin. It doesn't use
// NATS's count of deliveries, which is wrong after a server crash.
func (w *worker) claim(ctx context.Context, k batch.Key) (bool, error) {
	text, err := json.Marshal(struct {
		Worker string    `json:"worker"`
		Time   time.Time `json:"time"`
	}{w.Name, time.Now().UTC()})
	if err != nil {
		return false, err
	}
	for try := 1; try <= maxTries; try++ {
		err := putBytes(ctx, w.Store, fmt.Sprintf("%s/%s-%d", claimsDir, k.Name(), try), text)
		if !errors.Is(err, results.ErrExists) {
			return err == nil, err
		}
	}
	return false, nil
}

// storeTrial stores a finished trial's directory. The first stored result counts: if
// there is one, the error wraps [results.ErrExists]. Faults of the store are retried,
// because the trial may have been expensive.
func (w *worker) storeTrial(ctx context.Context, k batch.Key, dir string) error {
	f, err := os.Create(filepath.Join(dir, "archive"))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it is removed with its directory
	size, missing, err := packTrial(f, filepath.Join(dir, batch.TrialsDir, k.Name()), filepath.Join(dir, "unpacked"), bounds)
	if err != nil {
		return err
	}
	if missing != "" {
		w.Report(fmt.Sprintf("%s has left more than is stored: %s is missing", k.Describe(), missing))
	}
	for delay := time.Second; ; delay = min(2*delay, 30*time.Second) {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		err := w.putArchive(ctx, k, f, size)
		if err == nil || errors.Is(err, results.ErrExists) {
			return err
		}
		reportFault(ctx, w.Report, "the result of %s can't be stored, which is tried again: %v", k.Describe(), err)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (w *worker) putArchive(ctx context.Context, k batch.Key, f *os.File, size int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, transferTime, errTransferTime)
	defer cancel()
	return w.Store.Put(ctx, objectOf(k), f, size)
}
