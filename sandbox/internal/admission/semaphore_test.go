package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fakeMachine struct{ total, available atomic.Int64 }

func (m *fakeMachine) readMemory() (Memory, error) {
	return Memory{Total: m.total.Load(), Available: m.available.Load()}, nil
}

func newMachine(total int64) *fakeMachine {
	m := &fakeMachine{}
	m.total.Store(total)
	m.available.Store(total)
	return m
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func makeStateDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	return dir
}

func newSemaphore(t testing.TB, o Options) *Semaphore {
	t.Helper()
	if o.StateDir == "" {
		o.StateDir = makeStateDir(t)
	}
	if o.Group == "" {
		o.Group = "runc"
	}
	return New(o)
}

func acquire(t testing.TB, s *Semaphore) *Lease {
	t.Helper()
	l, err := s.Acquire(t.Context(), Request{MemoryBytes: 2 << 30})
	must(t, err)
	t.Cleanup(l.Close)
	return l
}

// Two processes start 64 sessions: one semaphore each over one directory.
func TestStartsAreBounded(t *testing.T) {
	dir := makeStateDir(t)
	o := Options{StateDir: dir, Starts: 3, Memory: newMachine(16 << 30).readMemory}
	semaphores := []*Semaphore{newSemaphore(t, o), newSemaphore(t, o)}
	var starting, most atomic.Int64
	// The first start lasts until a second one runs beside it.
	var first, second sync.Once
	two, late := make(chan struct{}), time.After(time.Minute)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			l, err := semaphores[i%2].Acquire(t.Context(), Request{MemoryBytes: 1})
			if err != nil {
				t.Error(err)
				return
			}
			n := starting.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			if n == 2 {
				second.Do(func() { close(two) })
			}
			time.Sleep(time.Millisecond) // a start
			first.Do(func() {
				select {
				case <-two:
				case <-late: // no second start: the test fails below
				}
			})
			starting.Add(-1)
			l.FinishStart()
			l.FinishStart() // idempotent
			l.Close()
		})
	}
	all.Wait()
	if n := most.Load(); n > 3 || n < 2 {
		t.Errorf("%d started at once, want 2 or 3", n)
	}
	// Files are reused: there are as many as were held at once.
	files, err := os.ReadDir(semaphores[0].dir)
	must(t, err)
	if len(files) > 1+3+1+64 {
		t.Errorf("%d files", len(files))
	}
	if _, held, err := semaphores[0].sumReservations(); err != nil || held != (reservations{}) {
		t.Errorf("reservations are left: %+v, %v", held, err)
	}
}

func TestOrderWithinProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSemaphore(t, Options{Starts: 1})
		held := acquire(t, s)
		var order []int
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				l, err := s.Acquire(t.Context(), Request{MemoryBytes: 1})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				l.Close()
			})
			synctest.Wait()
		}
		held.FinishStart()
		all.Wait()
		for i, n := range order {
			if i != n {
				t.Fatalf("order %v", order)
			}
		}
	})
}

func TestWaitReportsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSemaphore(t, Options{Starts: 1, Wait: time.Minute})
		acquire(t, s)
		var notified []string
		_, err := s.Acquire(t.Context(), Request{Notify: func(text string) { notified = append(notified, text) }})
		if !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "it waited 1m0s for other sandboxes to start: 1 at once") {
			t.Errorf("error %v", err)
		}
		if len(notified) != 1 || notified[0] != "waiting for other sandboxes to start: 1 at once" {
			t.Errorf("notified %q", notified)
		}
	})
}

func TestShortWaitIsNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSemaphore(t, Options{Starts: 1})
		held := acquire(t, s)
		time.AfterFunc(quietTime/2, held.FinishStart)
		l, err := s.Acquire(t.Context(), Request{Notify: func(text string) { t.Errorf("notified %q", text) }})
		must(t, err)
		l.Close()
	})
}

func TestCancelledWait(t *testing.T) {
	cause := errors.New("the user left")
	synctest.Test(t, func(t *testing.T) {
		s := newSemaphore(t, Options{Starts: 1})
		held := acquire(t, s)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		var all sync.WaitGroup
		// One call waits for the slot, the other one for this process's queue.
		for range 2 {
			all.Go(func() {
				if _, err := s.Acquire(ctx, Request{}); !errors.Is(err, cause) {
					t.Errorf("error %v", err)
				}
			})
		}
		all.Wait()
		// Neither call keeps anything.
		held.FinishStart()
		acquire(t, s).Close()
	})
}

func TestMemory(t *testing.T) {
	const gib = 1 << 30
	for _, tt := range []struct {
		name      string
		running   int
		available int64
		limit     int64
		want      string // a part of the reason; "" if it is admitted
	}{
		{"room", 8, 16 * gib, 2 * gib, ""},
		{"the machine is full", 2, gib, 2 * gib, "1.2 GiB are to be available and 2 other sandboxes run"},
		{"all is set aside", 60, 16 * gib, 2 * gib, "60 sandboxes run, for which 15.0 GiB of 16.0 GiB are set aside"},
		{"alone", 0, 0, 64 * gib, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(16 * gib)
				s := newSemaphore(t, Options{Starts: 100, Wait: time.Minute, Memory: m.readMemory})
				for range tt.running {
					acquire(t, s).FinishStart()
				}
				m.available.Store(tt.available)
				var notified string
				l, err := s.Acquire(t.Context(), Request{MemoryBytes: tt.limit, Notify: func(text string) { notified = text }})
				l.Close()
				if (tt.want == "") != (err == nil) || !strings.Contains(notified, tt.want) || err != nil && !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error %v, notified %q", err, notified)
				}
			})
		})
	}
}

// In a small job, what is kept back is a part of its memory, so that several
// sandboxes fit.
func TestSmallMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSemaphore(t, Options{Starts: 100, Wait: time.Minute, Memory: newMachine(1 << 30).readMemory})
		for range 3 { // 256 MiB each, of 768
			acquire(t, s).FinishStart()
		}
		if _, err := s.Acquire(t.Context(), Request{MemoryBytes: 2 << 30}); !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("a fourth sandbox: %v", err)
		}
	})
}

func TestThreads(t *testing.T) {
	sum := func(list ...int64) (h reservations) {
		for _, n := range list {
			h.add(fmt.Sprintf("1 %d\n", n))
		}
		return h
	}
	want := Job{LeastThreads: 150, MostThreads: 600}
	for _, tt := range []struct {
		name    string
		job     Threads
		request Job
		held    reservations
		granted int64
		reason  string // a part of the reason to wait, or of the error
	}{
		{name: "no limit", job: Threads{Used: 900}, request: want},
		{name: "room for all", job: Threads{Limit: 4096, Used: 20, Idle: 80}, request: want, granted: 600},
		{name: "room for less", job: Threads{Limit: 400, Used: 20, Idle: 80}, request: want, granted: 400 - 20 - spareThreads},
		{name: "just enough", job: Threads{Limit: 178, Used: 20, Idle: 80}, request: want, granted: 150},
		{name: "too little", job: Threads{Limit: 177, Used: 20, Idle: 80}, request: want, reason: "needs 158 processes and threads, and this job may have 177, of which 20 are in use"},
		{name: "beside another", job: Threads{Limit: 1000, Used: 120, Idle: 80}, request: want, held: sum(600), granted: 1000 - 40 - 600 - spareThreads},
		{name: "beside one of another backend", job: Threads{Limit: 1000, Used: 500, Idle: 80}, request: want, held: sum(0), granted: 1000 - 500 - spareThreads},
		{name: "too little beside others", job: Threads{Limit: 1000, Used: 300, Idle: 80}, request: want, held: sum(600, 200), reason: "other sandboxes have 800 of the 1000 processes and threads that this job may have"},
	} {
		granted, reason, err := tt.job.fit(tt.request, tt.held)
		if err != nil {
			reason = err.Error()
		}
		if granted != tt.granted || !strings.Contains(reason, tt.reason) || tt.reason == "" && reason != "" || (err != nil) != (tt.name == "too little") {
			t.Errorf("%s: granted %d, reason %q", tt.name, granted, reason)
		}
		if err != nil && !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// A sandbox gets what the others leave of a job's threads. When they end, the
// next one gets all.
func TestThreadsAreReserved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		job, memory := Threads{Limit: 1000, Used: 20, Idle: 80}, Memory{Total: 4 << 30, Available: 4 << 30}
		s := newSemaphore(t, Options{Starts: 100, Wait: time.Minute, Memory: newMachine(64 << 30).readMemory})
		request := Request{MemoryBytes: 2 << 30, Job: &Job{LeastThreads: 150, MostThreads: 600, Read: func(machine Memory) (Memory, Threads) {
			if machine.Total != 64<<30 {
				t.Errorf("the machine has %+v", machine)
			}
			return memory, job
		}}}
		start := func(want int64) *Lease {
			t.Helper()
			l, err := s.Acquire(t.Context(), request)
			if err != nil || l.Threads() != want {
				t.Fatalf("%d threads, %v; want %d", l.Threads(), err, want)
			}
			return l
		}
		first := start(600)
		job.Used = 100
		second := start(1000 - 20 - 600 - spareThreads)
		job.Used = 180
		var notified string
		request.Notify = func(text string) { notified = text }
		_, err := s.Acquire(t.Context(), request)
		if !errors.Is(err, sandbox.ErrUnavailable) || !strings.HasPrefix(notified, "waiting for processes: ") {
			t.Errorf("a third sandbox: %v, notified %q", err, notified)
		}
		first.Close()
		memory.Available = 0
		if _, err := s.Acquire(t.Context(), request); !errors.Is(err, sandbox.ErrUnavailable) || !strings.HasPrefix(notified, "waiting for memory: ") {
			t.Errorf("in a job without memory: %v, notified %q", err, notified)
		}
		second.Close()
		job.Used = 20
		start(600).Close()
		job.Limit = 100
		request.Notify = func(text string) { t.Errorf("waits %s", text) }
		if _, err := s.Acquire(t.Context(), request); !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("in a job without room: %v", err)
		}
	})
}

// A smaller sandbox must not overtake the one that waits.
func TestFreedMemoryAdmitsNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(4 << 30)
		s := newSemaphore(t, Options{Memory: m.readMemory})
		first, err := s.Acquire(t.Context(), Request{MemoryBytes: 24 << 30})
		must(t, err)
		first.FinishStart()
		var order []int64
		var mu sync.Mutex
		var all sync.WaitGroup
		// Beside the larger one there is no room for the smaller one.
		for _, limit := range []int64{24 << 30, 8 << 30} {
			all.Go(func() {
				l, err := s.Acquire(t.Context(), Request{MemoryBytes: limit})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, limit)
				mu.Unlock()
				l.Close()
			})
			synctest.Wait()
		}
		time.Sleep(time.Second)
		mu.Lock()
		if len(order) > 0 {
			t.Errorf("admitted without enough memory: %v", order)
		}
		mu.Unlock()
		first.Close()
		all.Wait()
		if len(order) != 2 || order[0] < order[1] {
			t.Errorf("order %v", order)
		}
	})
}

// The locks of a killed process are gone, but its files are not.
func TestFreeReservationsDoNotCount(t *testing.T) {
	m := newMachine(1 << 30)
	s := newSemaphore(t, Options{Memory: m.readMemory, Wait: time.Second})
	must(t, s.makeDir())
	for i := range 50 {
		must(t, os.WriteFile(filepath.Join(s.dir, fmt.Sprintf("%d.memory", i)), []byte("1073741824\n"), 0o600))
	}
	must(t, os.WriteFile(filepath.Join(s.dir, "runc-0.slot"), nil, 0o600))
	acquire(t, s)
	free, held, err := s.sumReservations()
	must(t, err)
	must(t, free.Release())
	if held.count != 1 || held.memory != expectedUse(2<<30) {
		t.Errorf("reservations %+v", held)
	}
}

func TestUnsafeStateDir(t *testing.T) {
	s := newSemaphore(t, Options{})
	must(t, os.Chmod(s.opts.StateDir, 0o777))
	if _, err := s.Acquire(t.Context(), Request{}); err == nil {
		t.Error("no error for a state directory that others can write to")
	}
}

func TestNilLease(*testing.T) {
	var l *Lease
	l.FinishStart()
	l.Close()
}

func BenchmarkAcquire(b *testing.B) {
	s := newSemaphore(b, Options{Memory: newMachine(16 << 30).readMemory})
	for b.Loop() {
		l, err := s.Acquire(b.Context(), Request{MemoryBytes: 2 << 30})
		must(b, err)
		l.Close()
	}
}
