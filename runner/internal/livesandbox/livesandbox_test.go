package livesandbox

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// containerBench is a sandbox without a session, and what it reports.
type containerBench struct {
	*Sandbox
	boxes *fakesandbox.Backend

	reports  sync.Mutex
	kinds    []record.Kind
	payloads []record.Payload
	ends     []error // that ended the run
	refuse   error   // what writing a record fails with
}

func newContainerBench(t *testing.T) *containerBench {
	t.Helper()
	f := &fakesandbox.Backend{}
	b := &containerBench{Sandbox: New(t.Context(), Options{Backend: f}), boxes: f}
	b.opts.Record = func(p record.Payload) error {
		b.reports.Lock()
		defer b.reports.Unlock()
		if b.refuse == nil {
			b.kinds, b.payloads = append(b.kinds, p.Kind()), append(b.payloads, p)
		}
		return b.refuse
	}
	b.opts.Fail = func(err error) {
		b.reports.Lock()
		defer b.reports.Unlock()
		b.ends = append(b.ends, err)
	}
	t.Cleanup(b.StopAndDestroy)
	return b
}

// runningBox returns the running generation, which it starts if necessary, and its sandbox.
func (b *containerBench) runningBox(t *testing.T) (*generation, *fakesandbox.Sandbox) {
	t.Helper()
	g, err := b.waitRunning(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return g, g.sandbox.(*fakesandbox.Sandbox)
}

// requireReports fails the test unless exactly these records were written and that many errors ended
// the run.
func (b *containerBench) requireReports(t *testing.T, ends int, kinds ...record.Kind) {
	t.Helper()
	b.reports.Lock()
	defer b.reports.Unlock()
	if !slices.Equal(b.kinds, kinds) || len(b.ends) != ends {
		t.Errorf("records %v and the ends %v, want %v and %d", b.kinds, b.ends, kinds, ends)
	}
}

func lastPayload[T record.Payload](t *testing.T, b *containerBench) T {
	t.Helper()
	b.reports.Lock()
	defer b.reports.Unlock()
	p, ok := b.payloads[len(b.payloads)-1].(T)
	if !ok {
		t.Fatalf("the last record is %T", b.payloads[len(b.payloads)-1])
	}
	return p
}

// requireReplaced fails the test unless err tells the model of a new sandbox.
func requireReplaced(t *testing.T, err error, text string) {
	t.Helper()
	e, ok := errors.AsType[*tools.Error](err)
	if !ok || e.Class != tools.ErrorExecution || e.Reason != ReplacedReason || !e.Visible || !strings.Contains(e.Message, text) {
		t.Errorf("the call ended with %+v", err)
	}
}

func TestContainerStartsOnce(t *testing.T) {
	b := newContainerBench(t)
	starts := 0
	b.opts.OnStart = func() { starts++ }
	if !b.IsUntouched() {
		t.Error("touched before the start")
	}
	b.EnsureStarted()
	b.EnsureStarted()
	g, box := b.runningBox(t)
	if again, _ := b.runningBox(t); again != g || starts != 1 || len(b.boxes.Sandboxes) != 1 || b.IsUntouched() || box.Spec.Workspace.Unguarded {
		t.Errorf("%d starts of %d boxes, untouched %v, unguarded %v", starts, len(b.boxes.Sandboxes), b.IsUntouched(), box.Spec.Workspace.Unguarded)
	}
	att, restarts, left := b.EndFacts()
	if att == nil || att.Container != "fake-0" || restarts != 0 || len(left) != 0 {
		t.Errorf("facts %+v, %d, %v", att, restarts, left)
	}
	b.requireReports(t, 0, record.KindSandboxStarted)
}

func TestContainerPreparesItsSpec(t *testing.T) {
	b := newContainerBench(t)
	b.opts.Prepare = func(_ context.Context, spec *sandbox.Spec) { spec.Session = "prepared" }
	if _, box := b.runningBox(t); box.Spec.Session != "prepared" {
		t.Errorf("spec %+v", box.Spec)
	}
}

// TestContainerTellsOfAFailedStart: a waiting call returns the error. Without one it is a warning, and
// at the session's end nothing.
func TestContainerTellsOfAFailedStart(t *testing.T) {
	t.Run("no call waits", func(t *testing.T) {
		b := newContainerBench(t)
		fail := make(chan struct{})
		b.boxes.OnCreate = func(context.Context, int) error { <-fail; return sandbox.ErrUnavailable }
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("the caller is gone")
		time.AfterFunc(10*time.Millisecond, func() { cancel(gone) })
		if _, err := b.waitRunning(ctx); !errors.Is(err, gone) {
			t.Errorf("a cancelled call: %v", err)
		}
		if _, err := b.waitRunning(ctx); !errors.Is(err, gone) {
			t.Errorf("a call that was cancelled before: %v", err)
		}
		b.WaitStarted(ctx)
		close(fail)
		b.WaitStarted(t.Context())
		b.requireReports(t, 0, record.KindWarning)
		if !b.IsUntouched() {
			t.Error("touched after a failed start")
		}
		if _, err := b.waitRunning(t.Context()); !errors.Is(err, tools.ErrSandboxStart) || !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("a later call: %v", err)
		}
		b.KillCurrent()
		b.StopAndDestroy()
		b.requireReports(t, 0, record.KindWarning)
	})
	t.Run("a call waits", func(t *testing.T) {
		b := newContainerBench(t)
		b.boxes.OnCreate = func(ctx context.Context, _ int) error {
			for waits := false; !waits && ctx.Err() == nil; time.Sleep(time.Millisecond) {
				b.mu.Lock()
				waits = b.waiting == 1
				b.mu.Unlock()
			}
			return sandbox.ErrUnavailable
		}
		if _, err := b.waitRunning(t.Context()); !errors.Is(err, sandbox.ErrUnavailable) {
			t.Errorf("the call: %v", err)
		}
		b.requireReports(t, 0)
	})
	t.Run("the session ends", func(t *testing.T) {
		b := newContainerBench(t)
		b.boxes.OnCreate = func(ctx context.Context, _ int) error { <-ctx.Done(); return context.Cause(ctx) }
		b.EnsureStarted()
		b.KillCurrent() // there is nothing yet
		b.StopAndDestroy()
		b.requireReports(t, 0)
	})
}

// TestContainerEndsTheRunWithoutARecord: no sandbox stays whose record is missing.
func TestContainerEndsTheRunWithoutARecord(t *testing.T) {
	b := newContainerBench(t)
	b.refuse = tools.ErrRecord
	if _, err := b.waitRunning(t.Context()); !errors.Is(err, tools.ErrRecord) || b.boxes.Sandboxes[0].State() != sandbox.StateStopped {
		t.Errorf("the call: %v; the box is %s", err, b.boxes.Sandboxes[0].State())
	}
	b.requireReports(t, 1)
}

func TestContainerRefusesWhatIsLacking(t *testing.T) {
	for _, tc := range []struct {
		refuse bool
		lacks  []string
		want   error
	}{
		{true, []string{"no seccomp filter"}, sandbox.ErrUnsupported},
		{true, nil, nil},
		{false, []string{"no seccomp filter"}, nil},
	} {
		b := newContainerBench(t)
		b.opts.RefuseLost, b.boxes.Lost = tc.refuse, tc.lacks
		_, err := b.waitRunning(t.Context())
		if !errors.Is(err, tc.want) || errors.Is(err, tools.ErrSandboxStart) != (tc.want != nil) {
			t.Errorf("%+v: %v", tc, err)
		}
		if stopped := b.boxes.Sandboxes[0].State() == sandbox.StateStopped; stopped != (tc.want != nil) {
			t.Errorf("%+v: stopped %v", tc, stopped)
		}
		// The one without commands is not refused.
		if err := b.StartUnguarded(); err != nil {
			t.Error(err)
		}
		if _, box := b.runningBox(t); !box.Spec.Workspace.Unguarded {
			t.Errorf("%+v: it is guarded", tc)
		}
	}
}

// TestContainerIsReplaced as often as is allowed.
func TestContainerIsReplaced(t *testing.T) {
	b := newContainerBench(t)
	want := []record.Kind{record.KindSandboxStarted}
	for n := range maxRestarts {
		g, box := b.runningBox(t)
		if box.Number != n {
			t.Fatalf("box %d runs, want %d", box.Number, n)
		}
		err := b.retireSandbox(g, 2)
		requireReplaced(t, err, "could not be killed")
		if again := b.checkLoss(g, sandbox.ErrLost); !errors.Is(again, err) {
			t.Errorf("a second call that met it: %v", again)
		}
		if box.State() != sandbox.StateStopped {
			t.Errorf("box %d still runs", n)
		}
		if lost := lastLoss(t, b); lost.Container != box.ID() || lost.Cause != "2 processes could not be killed" || !lost.Restarting {
			t.Errorf("recorded %+v", lost)
		}
		b.runningBox(t)
		if p := lastPayload[record.SandboxRestarted](t, b); p.Restart != n+1 {
			t.Errorf("recorded %+v", p)
		}
		want = append(want, record.KindSandboxLost, record.KindSandboxRestarted)
	}
	g, _ := b.runningBox(t)
	err := b.retireSandbox(g, 1)
	if !errors.Is(err, tools.ErrSandboxLost) || errors.Is(err, sandbox.ErrLost) || err.Error() != "sandbox lost: 1 processes could not be killed" {
		t.Errorf("the last one: %v", err)
	}
	b.requireReports(t, 1, append(want, record.KindSandboxLost)...)
	if lost := lastPayload[record.SandboxLost](t, b); lost.Restarting {
		t.Errorf("recorded %+v", lost)
	}
	if _, restarts, _ := b.EndFacts(); restarts != maxRestarts || len(b.boxes.Sandboxes) != maxRestarts+1 {
		t.Errorf("%d restarts, %d boxes", restarts, len(b.boxes.Sandboxes))
	}
	b.boxes.RequireGone(t)
}

// lastLoss returns the last record of a loss; one of a start may follow.
func lastLoss(t *testing.T, b *containerBench) record.SandboxLost {
	t.Helper()
	b.reports.Lock()
	defer b.reports.Unlock()
	for _, p := range slices.Backward(b.payloads) {
		if lost, ok := p.(record.SandboxLost); ok {
			return lost
		}
	}
	t.Fatal("no loss is recorded")
	return record.SandboxLost{}
}

// TestContainerFailsToBeReplaced: it is not forgotten that something ran in the first one.
func TestContainerFailsToBeReplaced(t *testing.T) {
	b := newContainerBench(t)
	g, _ := b.runningBox(t)
	b.boxes.OnCreate = func(context.Context, int) error { return sandbox.ErrUnavailable }
	requireReplaced(t, b.retireSandbox(g, 1), "")
	b.WaitStarted(t.Context())
	if b.IsUntouched() {
		t.Error("untouched")
	}
	b.requireReports(t, 0, record.KindSandboxStarted, record.KindSandboxLost, record.KindWarning)
}

// TestContainerIsLost ends a sandbox in each way, before a call.
func TestContainerIsLost(t *testing.T) {
	memory := &limits.ExceededError{Kind: limits.KindMemory, Limit: 64 << 20}
	state := &sandbox.StateError{Action: "start", State: sandbox.StateStopped}
	t.Run("other errors", func(t *testing.T) {
		b := newContainerBench(t)
		g, _ := b.runningBox(t)
		other := errors.New("no such file")
		if !errors.Is(b.checkLoss(g, other), other) || b.checkLoss(g, nil) != nil {
			t.Error("an error without a loss is changed")
		}
		b.requireReports(t, 0, record.KindSandboxStarted)
	})
	t.Run("of a limit", func(t *testing.T) {
		b := newContainerBench(t)
		g, box := b.runningBox(t)
		box.End(errors.Join(sandbox.ErrLost, memory))
		requireReplaced(t, b.checkLoss(g, sandbox.ErrLost), "memory, 64 MiB")
		if lost := lastLoss(t, b); lost.Limit == nil || !lost.Restarting || lost.Container != "fake-0" {
			t.Errorf("recorded %+v", lost)
		}
		if _, box := b.runningBox(t); box.Number != 1 {
			t.Errorf("box %d runs", box.Number)
		}
		b.requireReports(t, 0, record.KindSandboxStarted, record.KindSandboxLost, record.KindSandboxRestarted)
	})
	t.Run("seen by the next call", func(t *testing.T) {
		b := newContainerBench(t)
		_, box := b.runningBox(t)
		box.End(errors.Join(sandbox.ErrLost, memory))
		_, err := b.waitRunning(t.Context())
		requireReplaced(t, err, "memory, 64 MiB")
	})
	t.Run("of a crash", func(t *testing.T) {
		b := newContainerBench(t)
		g, box := b.runningBox(t)
		box.End(sandbox.ErrLost)
		for _, met := range []error{state, sandbox.ErrLost} {
			if err := b.checkLoss(g, met); !errors.Is(err, tools.ErrSandboxLost) || errors.Is(err, sandbox.ErrState) {
				t.Errorf("the call: %v", err)
			}
		}
		if lost := lastPayload[record.SandboxLost](t, b); lost.Limit != nil || lost.Restarting || lost.Cause == "" {
			t.Errorf("recorded %+v", lost)
		}
		b.requireReports(t, 1, record.KindSandboxStarted, record.KindSandboxLost)
	})
	t.Run("killed", func(t *testing.T) {
		b := newContainerBench(t)
		b.boxes.DestroyErr = errors.New("mount busy")
		b.KillCurrent() // there is nothing yet
		_, box := b.runningBox(t)
		b.KillCurrent()
		if box.State() != sandbox.StateStopped {
			t.Error("the box still runs")
		}
		b.KillCurrent()
		if _, err := b.waitRunning(t.Context()); !errors.Is(err, tools.ErrSandboxLost) || !strings.Contains(err.Error(), sandbox.ErrLost.Error()) {
			t.Errorf("the next call: %v", err)
		}
		b.StopAndDestroy()
		b.requireReports(t, 1, record.KindSandboxStarted, record.KindSandboxLost)
		_, _, left := b.EndFacts()
		if diff := cmp.Diff([]string{"mount busy"}, left); diff != "" {
			t.Errorf("left (-want +got):\n%s", diff)
		}
	})
	t.Run("without a record", func(t *testing.T) {
		b := newContainerBench(t)
		g, box := b.runningBox(t)
		b.refuse = tools.ErrRecord
		box.End(errors.Join(sandbox.ErrLost, memory))
		if err := b.checkLoss(g, sandbox.ErrLost); !errors.Is(err, tools.ErrRecord) {
			t.Errorf("the call: %v", err)
		}
		if _, restarts, _ := b.EndFacts(); restarts != 0 || len(b.boxes.Sandboxes) != 1 {
			t.Errorf("%d restarts", restarts)
		}
	})
	t.Run("while the session ends", func(t *testing.T) {
		b := newContainerBench(t)
		g, _ := b.runningBox(t)
		b.stop(errors.New("over"))
		b.KillCurrent()
		if err := b.checkLoss(g, sandbox.ErrLost); !errors.Is(err, tools.ErrSandboxLost) {
			t.Errorf("the call: %v", err)
		}
		b.requireReports(t, 0, record.KindSandboxStarted)
	})
}

// TestContainerRunsAgainAfterTheTurns starts a sandbox again, and one in which nothing is guarded.
func TestContainerRunsAgainAfterTheTurns(t *testing.T) {
	t.Run("revived", func(t *testing.T) {
		b := newContainerBench(t)
		b.runningBox(t)
		b.KillCurrent()
		if err := b.startAgain(); err != nil {
			t.Fatal(err)
		}
		if g, box := b.runningBox(t); box.Number != 1 || g.unguarded {
			t.Errorf("box %d runs", box.Number)
		}
		b.requireReports(t, 0, record.KindSandboxStarted, record.KindSandboxRestarted)
		b.StopAndDestroy()
		if err := b.startAgain(); !errors.Is(err, tools.ErrSandboxLost) {
			t.Errorf("after the end: %v", err)
		}
		if _, restarts, _ := b.EndFacts(); restarts != 1 {
			t.Errorf("%d restarts", restarts)
		}
	})
	t.Run("renewed", func(t *testing.T) {
		b := newContainerBench(t)
		first, box := b.runningBox(t)
		if err := b.StartUnguarded(); err != nil {
			t.Fatal(err)
		}
		if box.State() != sandbox.StateStopped {
			t.Error("the first box still runs")
		}
		if err := b.checkLoss(first, sandbox.ErrLost); !errors.Is(err, tools.ErrSandboxLost) {
			t.Errorf("a call of the first box: %v", err)
		}
		if g, box := b.runningBox(t); box.Number != 1 || !g.unguarded || !box.Spec.Workspace.Unguarded {
			t.Errorf("box %d runs, guarded %v", box.Number, !g.unguarded)
		}
		b.requireReports(t, 0, record.KindSandboxStarted, record.KindSandboxRestarted)
		if att, restarts, _ := b.EndFacts(); att.Container != "fake-0" || restarts != 1 {
			t.Errorf("attested %s, %d restarts", att.Container, restarts)
		}
		b.StopAndDestroy()
		if err := b.StartUnguarded(); !errors.Is(err, tools.ErrSandboxLost) || len(b.boxes.Sandboxes) != 2 {
			t.Errorf("after the end: %v", err)
		}
		if _, restarts, _ := b.EndFacts(); restarts != 1 {
			t.Errorf("%d restarts", restarts)
		}
	})
	t.Run("renewed while it starts", func(t *testing.T) {
		b := newContainerBench(t)
		b.boxes.OnCreate = func(_ context.Context, number int) error {
			if number == 0 {
				time.Sleep(20 * time.Millisecond)
			}
			return nil
		}
		b.EnsureStarted()
		if err := b.StartUnguarded(); err != nil {
			t.Fatal(err)
		}
		b.StopAndDestroy()
		b.boxes.RequireGone(t)
	})
	t.Run("renewed after a crash", func(t *testing.T) {
		b := newContainerBench(t)
		_, box := b.runningBox(t)
		box.End(sandbox.ErrLost)
		if err := b.StartUnguarded(); err != nil {
			t.Fatal(err)
		}
		b.runningBox(t)
		b.requireReports(t, 0, record.KindSandboxStarted, record.KindSandboxLost, record.KindSandboxRestarted)
	})
	t.Run("renewed after a failed start", func(t *testing.T) {
		b := newContainerBench(t)
		b.boxes.OnCreate = func(context.Context, int) error { return sandbox.ErrUnavailable }
		if _, err := b.waitRunning(t.Context()); err == nil {
			t.Fatal("control: it started")
		}
		b.boxes.OnCreate = nil
		if err := b.StartUnguarded(); err != nil {
			t.Fatal(err)
		}
		b.runningBox(t)
	})
}

// TestContainerCloses takes down the sandbox, and a later call gets its loss.
func TestContainerCloses(t *testing.T) {
	t.Run("before it starts", func(t *testing.T) {
		b := newContainerBench(t)
		b.StopAndDestroy()
		if _, err := b.waitRunning(t.Context()); !errors.Is(err, tools.ErrSandboxLost) || !b.IsUntouched() {
			t.Errorf("a late call: %v", err)
		}
	})
	t.Run("while it starts", func(t *testing.T) {
		b := newContainerBench(t)
		b.boxes.OnCreate = func(ctx context.Context, _ int) error { <-ctx.Done(); return nil }
		b.EnsureStarted()
		b.StopAndDestroy()
		if len(b.boxes.Sandboxes) != 1 {
			t.Fatalf("%d boxes", len(b.boxes.Sandboxes))
		}
		b.boxes.RequireGone(t)
		b.StopAndDestroy()
	})
	for name, died := range map[string]struct {
		err   error
		kinds []record.Kind
	}{
		"running":    {nil, []record.Kind{record.KindSandboxStarted}},
		"crashed":    {sandbox.ErrLost, []record.Kind{record.KindSandboxStarted, record.KindSandboxLost}},
		"of a limit": {&limits.ExceededError{Kind: limits.KindPIDs, Limit: 5}, []record.Kind{record.KindSandboxStarted, record.KindSandboxLost}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newContainerBench(t)
			g, box := b.runningBox(t)
			if died.err != nil {
				box.End(died.err)
			}
			b.StopAndDestroy()
			b.boxes.RequireGone(t)
			if err := b.checkLoss(g, sandbox.ErrLost); !errors.Is(err, tools.ErrSandboxLost) {
				t.Errorf("a late call: %v", err)
			}
			b.requireReports(t, 0, died.kinds...)
			if lost, ok := b.payloads[len(b.payloads)-1].(record.SandboxLost); ok && (lost.Restarting || (lost.Limit != nil) != (name == "of a limit")) {
				t.Errorf("recorded %+v", lost)
			}
			if _, err := b.waitRunning(t.Context()); err == nil {
				t.Error("a box runs after the end")
			}
		})
	}
	t.Run("killed before", func(t *testing.T) {
		b := newContainerBench(t)
		g, _ := b.runningBox(t)
		b.KillCurrent()
		b.StopAndDestroy()
		if err := b.checkLoss(g, sandbox.ErrLost); !errors.Is(err, tools.ErrSandboxLost) {
			t.Errorf("a late call: %v", err)
		}
		b.requireReports(t, 0, record.KindSandboxStarted)
	})
}

func TestLimitsInWords(t *testing.T) {
	for want, e := range map[string]limits.ExceededError{
		"memory, 64 MiB":               {Kind: limits.KindMemory, Limit: 64 << 20},
		"5 processes and threads":      {Kind: limits.KindPIDs, Limit: 5},
		string(limits.KindDisk) + " 7": {Kind: limits.KindDisk, Limit: 7},
	} {
		if got := limitText(&e); got != want {
			t.Errorf("%+v: %q, want %q", e, got, want)
		}
	}
}

// TestNoStartAfterTheEnd: neither a cancelled call nor one after the end starts a sandbox. The last
// call is the control.
func TestNoStartAfterTheEnd(t *testing.T) {
	var starts atomic.Int32
	backend := &fakesandbox.Backend{OnCreate: func(context.Context, int) error {
		starts.Add(1)
		return nil
	}}
	make := func() *Sandbox {
		return New(t.Context(), Options{
			Backend: backend, Record: func(record.Payload) error { return nil }, Fail: func(err error) { t.Error(err) },
		})
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	c := make()
	if _, err := c.waitRunning(cancelled); !errors.Is(err, context.Canceled) || starts.Load() != 0 {
		t.Errorf("cancelled: %v, %d starts", err, starts.Load())
	}
	c.KillCurrent()
	c.WaitStarted(t.Context())
	c.StopAndDestroy()
	c.EnsureStarted()
	if _, err := c.waitRunning(t.Context()); !errors.Is(err, tools.ErrSandboxLost) || starts.Load() != 0 {
		t.Errorf("closed: %v, %d starts", err, starts.Load())
	}
	c = make()
	if _, err := c.waitRunning(t.Context()); err != nil || starts.Load() != 1 {
		t.Errorf("control: %v, %d starts", err, starts.Load())
	}
	c.StopAndDestroy()
}
