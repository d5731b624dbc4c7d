package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/caisson-run/caisson/runner/batch"
)

// TestTrialOfADeadWorker: if a worker sends no heartbeats, its trial is delivered to
// another one.
func TestTrialOfADeadWorker(t *testing.T) {
	s := startServer(t, "one", 0, "")
	b := newBatch(t, s.ClientURL(), testTasks(1, 1))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { _, err := b.coordinate(ctx); done <- err }()
	run, err := waitRun(ctx, b.store)
	must(t, err)
	js, err := jetstream.New(connect(t, b.urls))
	must(t, err)
	for taken := false; !taken; time.Sleep(10 * time.Millisecond) {
		if c, err := js.Consumer(ctx, run.stream(), consumerName(run.Buckets["task-0"])); err == nil {
			taken = firstMessage(ctx)(c.Fetch(1, jetstream.FetchMaxWait(time.Second))) != nil
		}
	}
	begun := time.Now()
	var workers sync.WaitGroup
	workers.Go(func() { _ = b.work(ctx, "w", 1, trialOf(0, b.log)) })
	must(t, <-done)
	if d := time.Since(begun); d < 1500*time.Millisecond || d > 10*time.Second {
		t.Errorf("delivered again after %s, want 2 s", d)
	}
	workers.Wait()
	b.check()
}

// TestRefusedKey: a worker with a refused key ends, and others run its trials.
func TestRefusedKey(t *testing.T) {
	s := startServer(t, "one", 0, "")
	b := newBatch(t, s.ClientURL(), testTasks(3, 1))
	var workers sync.WaitGroup
	workers.Go(func() {
		err := b.work(t.Context(), "refused", 1, func(context.Context, batch.Trial, string, *int64) batch.Result {
			return batch.Result{Outcome: batch.Infrastructure, Class: batch.ProviderAuth, Cause: "401"}
		})
		if end, ok := errors.AsType[*batch.EndError](err); !ok || end.Class != batch.ProviderAuth {
			t.Errorf("the worker ends with %v", err)
		}
		_ = b.work(t.Context(), "w", 1, trialOf(0, b.log))
	})
	_, err := b.coordinate(t.Context())
	must(t, err)
	workers.Wait()
	b.check()
}

// TestHeartbeat: a trial that takes longer than AckWait runs once.
func TestHeartbeat(t *testing.T) {
	s := startServer(t, "one", 0, "")
	b := newBatch(t, s.ClientURL(), testTasks(2, 1))
	var workers sync.WaitGroup
	for i := range 2 {
		workers.Go(func() { _ = b.work(t.Context(), fmt.Sprint(i), 2, trialOf(5*time.Second, b.log)) })
	}
	_, err := b.coordinate(t.Context())
	must(t, err)
	workers.Wait()
	b.check()
	for name, n := range readLog(t, b.log) {
		if n != 1 {
			t.Errorf("%s ran %d times", name, n)
		}
	}
}

// TestInterruptedWorker: trials of an interrupted worker run elsewhere at once.
func TestInterruptedWorker(t *testing.T) {
	s := startServer(t, "one", 0, "")
	b := newBatch(t, s.ClientURL(), testTasks(2, 1))
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan struct{}, 2)
	var workers sync.WaitGroup
	workers.Go(func() {
		_ = b.work(ctx, "slow", 2, func(ctx context.Context, _ batch.Trial, _ string, _ *int64) batch.Result {
			started <- struct{}{}
			<-ctx.Done()
			return batch.Result{Outcome: batch.Passed}
		})
	})
	done := make(chan error, 1)
	go func() { _, err := b.coordinate(t.Context()); done <- err }()
	<-started
	<-started
	cancel()
	workers.Wait()
	interrupted := time.Now()
	workers.Go(func() { _ = b.work(t.Context(), "fast", 2, trialOf(0, b.log)) })
	must(t, <-done)
	if d := time.Since(interrupted); d > 1500*time.Millisecond { // and not after the time to acknowledge
		t.Errorf("they ran %s later", d)
	}
	workers.Wait()
	b.check()
}

// TestFatalTrial: a trial that kills its workers gets a result after some attempts.
func TestFatalTrial(t *testing.T) {
	s := startServer(t, "one", 0, "")
	b := newBatch(t, s.ClientURL(), testTasks(1, 1))
	k := batch.Key{Task: "task-0", Agent: batch.Nop, Attempt: 1}
	for try := 1; try <= maxTries; try++ {
		must(t, putBytes(t.Context(), b.store, fmt.Sprintf("%s/%s-%d", claimsDir, k.Name(), try), nil))
	}
	var workers sync.WaitGroup
	workers.Go(func() { _ = b.work(t.Context(), "w", 1, trialOf(0, b.log)) })
	_, err := b.coordinate(t.Context())
	must(t, err)
	workers.Wait()
	r, err := batch.ReadResult(filepath.Join(b.ledger.Dir(), batch.TrialsDir, k.Name()))
	if must(t, err); r.Outcome != batch.Infrastructure || r.Class != batch.Machine || len(readLog(t, b.log)) > 0 {
		t.Errorf("%+v", r)
	}
}

// TestOtherTasks: a worker with other tasks than the coordinator's runs none.
func TestOtherTasks(t *testing.T) {
	s := startServer(t, "one", 0, "")
	b := newBatch(t, s.ClientURL(), testTasks(2, 1))
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _, _ = b.coordinate(ctx) })
	defer all.Wait()
	defer cancel()
	_, err := waitRun(ctx, b.store)
	must(t, err)
	other := &testBatch{t: t, urls: b.urls, store: b.store, tasks: slices.Clone(b.tasks)}
	other.tasks[1].Checksum = "sha256:other"
	want := &TaskError{}
	if err := other.work(ctx, "w", 1, trialOf(0, "")); !errors.As(err, &want) || want.ID != "task-1" {
		t.Errorf("%v", err)
	}
	other.tasks = b.tasks[:1]
	if err := other.work(ctx, "w", 1, trialOf(0, "")); !errors.As(err, &want) || want.Have != "" {
		t.Errorf("%v", err)
	}
}

// TestOtherPaths: a worker runs trials whose images have other paths than on the
// coordinator.
func TestOtherPaths(t *testing.T) {
	s := startServer(t, "one", 0, "")
	b := newBatch(t, s.ClientURL(), testTasks(8, 8))
	other := &testBatch{t: t, urls: b.urls, store: b.store, tasks: slices.Clone(b.tasks)}
	for i := range other.tasks {
		other.tasks[i].Environment.Image = fmt.Sprint("build:/elsewhere/", i)
	}
	var workers sync.WaitGroup
	workers.Go(func() { _ = other.work(t.Context(), "w", 2, trialOf(0, b.log)) })
	_, err := b.coordinate(t.Context())
	must(t, err)
	workers.Wait()
	b.check()
}

// TestForeignMessages: foreign messages in the queue are removed and counted, and never
// run.
func TestForeignMessages(t *testing.T) {
	s := startServer(t, "one", 0, "")
	b := newBatch(t, s.ClientURL(), testTasks(4, 1))
	b.tasks = append(b.tasks, testTasks(5, 1)[4])
	b.tasks[4].Unsupported = []string{"no"}
	must(t, b.ledger.Load(testSpec(b.tasks)))
	var texts []string
	b.report = func(text string) { texts = append(texts, text) }
	done := make(chan error, 1)
	go func() { _, err := b.coordinate(t.Context()); done <- err }()
	run, err := waitRun(t.Context(), b.store)
	must(t, err)
	js, err := jetstream.New(connect(t, b.urls))
	must(t, err)
	for err := error(jetstream.ErrStreamNotFound); err != nil; time.Sleep(10 * time.Millisecond) {
		_, err = js.Consumer(t.Context(), run.stream(), consumerName(run.Buckets["task-0"]))
	}
	key := func(task, agent string, attempt int) string {
		text, err := json.Marshal(batch.Key{Task: task, Agent: agent, Attempt: attempt})
		must(t, err)
		return string(text)
	}
	bucket := run.Buckets["task-0"]
	junk := []string{
		"", "junk", "[]", "null", "{}", strings.Repeat("[", 60_000), "\xff\x00", strings.Repeat(`{"task":"`, 1000),
		key("task-0", batch.Oracle, 1), key("task-0", "openai/expensive", 1), key("task-0", batch.Nop, 2), key("task-0", batch.Nop, -1), key("task-9", batch.Nop, 1), key("task-4", batch.Nop, 1),
		key("task-0", batch.Nop, 1), key("task-1", batch.Nop, 1), // trials of the run, but at other subjects
	}
	for i, text := range junk {
		_, err := js.Publish(t.Context(), fmt.Sprintf("caisson.%s.%d.junk-%d", run.Batch, bucket, i), []byte(text))
		must(t, err)
	}
	if _, err := js.Publish(t.Context(), fmt.Sprintf("caisson.%s.%d.large", run.Batch, bucket), make([]byte, maxMessage+1)); err == nil {
		t.Error("a large message is in the queue")
	}
	var workers sync.WaitGroup
	workers.Go(func() { _ = b.work(t.Context(), "w", 1, trialOf(0, b.log)) })
	must(t, <-done)
	workers.Wait()
	ran := readLog(t, b.log)
	for name, n := range ran {
		if n != 1 {
			t.Errorf("%s ran %d times", name, n)
		}
	}
	if len(ran) != 4 {
		t.Errorf("ran %v", ran)
	}
	if all := strings.Join(texts, "\n"); !strings.Contains(all, "(8 so far)") {
		t.Errorf("reported:\n%s", all)
	}
}

// TestAffinity: workers keep to images that they have, and idle ones take others'
// trials.
func TestAffinity(t *testing.T) {
	s := startServer(t, "one", 0, "")
	const images, workers = 8, 3
	b := newBatch(t, s.ClientURL(), testTasks(6*images, images))
	var all sync.WaitGroup
	var mu sync.Mutex
	used, trials := map[string]bool{}, map[string]int{}
	for i := range workers {
		name := fmt.Sprint("w", i)
		all.Go(func() {
			_ = b.work(t.Context(), name, 2, func(ctx context.Context, trial batch.Trial, dir string, _ *int64) batch.Result {
				mu.Lock()
				used[name+" "+trial.Definition.Environment.Image] = true
				trials[name]++
				mu.Unlock()
				return trialOf(10*time.Millisecond, "")(ctx, trial, dir, nil)
			})
		})
	}
	_, err := b.coordinate(t.Context())
	must(t, err)
	all.Wait()
	t.Logf("%d of %d pairs of worker and image; trials %v", len(used), images*workers, trials)
	if len(used) > images*workers*2/3 {
		t.Errorf("workers made %d images, of %d that there are", len(used), images)
	}
	one := newBatch(t, s.ClientURL(), testTasks(24, 1))
	clear(trials)
	for i := range workers {
		all.Go(func() {
			_ = one.work(t.Context(), fmt.Sprint("w", i), 1, func(ctx context.Context, trial batch.Trial, dir string, _ *int64) batch.Result {
				mu.Lock()
				trials[fmt.Sprint("w", i)]++
				mu.Unlock()
				return trialOf(20*time.Millisecond, "")(ctx, trial, dir, nil)
			})
		})
	}
	_, err = one.coordinate(t.Context())
	must(t, err)
	all.Wait()
	if len(trials) != workers {
		t.Errorf("with one image: %v", trials)
	}
}
