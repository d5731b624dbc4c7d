package runner

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
)

func TestSandboxIsAwaitedWhereNoToolNeedsIt(t *testing.T) {
	b := newBench(t, "  - text: Nothing to do.\n")
	answered := make(chan struct{})
	b.opts.Mirror = func(r record.Record, _ []byte) {
		if r.Kind == record.KindTurnCompleted {
			close(answered)
		}
	}
	b.backend.OnCreate = func(ctx context.Context, _ int) error {
		<-answered
		select {
		case <-time.After(20 * time.Millisecond): // in which the session would end
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r, records := b.run(t.Context())
	if r.ExitStatus != 0 || r.Attestation == nil || len(of[record.SandboxStarted](t, records)) != 1 {
		t.Errorf("ended %d with %+v", r.ExitStatus, r.Attestation)
	}
}

// blockedModel answers only when cancelled.
type blockedModel struct{ asked chan struct{} }

func (m *blockedModel) Info() loop.ModelInfo {
	return loop.ModelInfo{Provider: "fake", Model: "blocked"}
}

func (m *blockedModel) Complete(ctx context.Context, _ loop.Request, _ func(loop.Delta)) (loop.Response, error) {
	close(m.asked)
	<-ctx.Done()
	return loop.Response{}, &loop.ModelError{Class: loop.ModelCancelled, Err: context.Cause(ctx)}
}

func TestLossOfTheSandbox(t *testing.T) {
	call := "  - calls: [{tool: shell, input: {command: die}}]\n"
	ok := "  - calls: [{tool: shell, input: {command: echo}}]\n"
	for name, tc := range map[string]struct {
		turns        string
		ofLimits     bool
		status       int
		restarts     int
		lost, boxes  int
		wantInResult string
	}{
		"of its limits, once":       {call + ok + "  - text: done\n", true, 0, 1, 1, 2, "memory, 2048 MiB"},
		"of its limits, four times": {call + call + call + call + ok + "  - text: done\n", true, 45, 3, 4, 4, ""},
		"otherwise":                 {call + ok + "  - text: done\n", false, 45, 0, 1, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tc.turns)
			b.backend.Scripts["die"] = fakesandbox.EndSandbox(tc.ofLimits)
			b.backend.Scripts["echo"] = fakesandbox.WriteText("alive")
			r, records := b.run(t.Context())
			lost := of[record.SandboxLost](t, records)
			got := []int{r.ExitStatus, r.Restarts, len(lost), len(b.backend.Sandboxes), len(of[record.SandboxRestarted](t, records))}
			if diff := cmp.Diff([]int{tc.status, tc.restarts, tc.lost, tc.boxes, tc.restarts}, got); diff != "" {
				t.Errorf("status, restarts, lost, boxes, restarted (-want +got):\n%s", diff)
			}
			if !strings.Contains(resultTexts(t, records), tc.wantInResult) {
				t.Errorf("the model was not told %q: %s", tc.wantInResult, resultTexts(t, records))
			}
			for _, box := range b.backend.Sandboxes {
				if n := len(slices.DeleteFunc(slices.Clone(box.Ran), func(s string) bool { return s != "die" })); n > 1 {
					t.Errorf("sandbox %d ran the command %d times", box.Number, n)
				}
			}
		})
	}
}

func resultTexts(t *testing.T, records []record.Record) string {
	t.Helper()
	var text strings.Builder
	for _, m := range of[record.Message](t, records) {
		for _, block := range m.Blocks {
			if block.ToolResult != nil {
				for _, c := range block.ToolResult.Content {
					text.WriteString(c.Text + "\n")
				}
			}
		}
	}
	return text.String()
}

func TestCancellation(t *testing.T) {
	turns := "  - calls: [{tool: shell, input: {command: hang}}]\n  - text: done\n"
	for name, tc := range map[string]struct {
		signal int
		status int
		reason string
	}{"SIGINT": {2, 130, "interrupted"}, "SIGTERM": {15, 143, "terminated"}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, turns)
			started := make(chan struct{})
			b.backend.Scripts["hang"] = fakesandbox.WaitForEnd(started)
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				<-started
				cancel(&Interrupted{Signal: tc.signal})
			}()
			r, records := b.run(ctx)
			if r.ExitStatus != tc.status || r.Reason != loop.StopCancelled || r.Signal != tc.signal {
				t.Errorf("ended %s (%d), signal %d", r.Reason, r.ExitStatus, r.Signal)
			}
			failed := of[record.ToolFailed](t, records)
			if len(failed) != 1 || failed[0].Class != tools.ErrorCancelled || !strings.Contains(failed[0].Partial, "so far") {
				t.Errorf("tool.failed %+v", failed)
			}
			if c := of[record.TurnCancelled](t, records); len(c) != 1 || c[0].Reason != tc.reason {
				t.Errorf("turn.cancelled %+v", c)
			}
		})
	}
}

func TestWallTimeIsALimit(t *testing.T) {
	t.Parallel() // it mostly waits
	b := newBench(t, "  - calls: [{tool: shell, input: {command: hang}}]\n  - text: done\n")
	b.backend.Scripts["hang"] = fakesandbox.WaitForEnd(make(chan struct{}))
	b.opts.Budget.WallTime = new(5 * time.Second) // in which the command begins on a busy machine too
	r, records := b.run(t.Context())
	if r.ExitStatus != 53 || r.Limit == nil || r.Limit.Kind != limits.KindWallTime {
		t.Errorf("ended %s (%d): %+v", r.Reason, r.ExitStatus, r.Limit)
	}
	if failed := of[record.ToolFailed](t, records); len(failed) != 1 || !strings.Contains(failed[0].Partial, "so far") {
		t.Errorf("tool.failed %+v", failed)
	}
}

func TestForceDestroysTheSandboxAtOnce(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: stubborn}}]\n  - text: done\n")
	started := make(chan struct{})
	b.backend.Scripts["stubborn"] = func(_ context.Context, box *fakesandbox.Sandbox, _ sandbox.Command) sandbox.ExitStatus {
		close(started)
		<-box.Done() // only the sandbox's end ends it
		return sandbox.ExitStatus{Code: -1, Signal: 9}
	}
	force := make(chan struct{})
	b.opts.Force = force
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-started
		cancel(&Interrupted{Signal: 2})
		close(force)
	}()
	if r, _ := b.run(ctx); r.ExitStatus != 130 {
		t.Errorf("ended %s (%d)", r.Reason, r.ExitStatus)
	}
}

func TestNobodyToAsk(t *testing.T) {
	turns := "  - calls: [{tool: shell, input: {command: echo}}]\n  - text: went on\n"
	for name, tc := range map[string]struct {
		onPrompt dispatch.OnPrompt
		status   int
		reason   loop.StopReason
		ran      int
		denials  int
	}{
		"deny":  {dispatch.OnPromptDeny, 56, loop.StopAnswered, 0, 1},
		"fail":  {dispatch.OnPromptFail, 56, loop.StopNoApprover, 0, 1},
		"allow": {dispatch.OnPromptAllow, 0, loop.StopAnswered, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, turns)
			b.backend.Scripts["echo"] = fakesandbox.WriteText("hi")
			b.opts.OnPrompt = tc.onPrompt
			var err error
			if b.opts.Policy, err = policy.Preset("default"); err != nil {
				t.Fatal(err)
			}
			r, _ := b.run(t.Context())
			got := []any{r.ExitStatus, r.Reason, len(b.backend.Sandboxes[0].Ran), len(r.Denials)}
			if diff := cmp.Diff([]any{tc.status, tc.reason, tc.ran, tc.denials}, got); diff != "" {
				t.Errorf("status, reason, ran, denials (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPolicyThatDeniesIsNoMissingApprover(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: echo}}]\n  - text: went on\n")
	b.opts.Policy.Tools = map[string]policy.Mode{"shell": policy.ModeDeny, "shel": policy.ModeDeny}
	r, records := b.run(t.Context())
	if w := of[record.Warning](t, records); len(w) != 1 || !strings.Contains(w[0].Message, `"shel" matches no tool`) {
		t.Errorf("warnings %+v", w)
	}
	if r.ExitStatus != 0 || len(r.Denials) != 1 || len(b.backend.Sandboxes[0].Ran) != 0 {
		t.Errorf("ended %d, denials %+v", r.ExitStatus, r.Denials)
	}
}

func TestNothingRunsThatCannotBeRecorded(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: echo}}]\n  - text: done\n")
	b.backend.Scripts["echo"] = fakesandbox.WriteText("hi")
	closed := false
	b.opts.Mirror = func(r record.Record, _ []byte) { closed = closed || r.Kind == record.KindModelCallCompleted }
	b.opts.writeTrace = func(f *os.File, line []byte) (int, error) {
		if closed {
			return 0, os.ErrClosed
		}
		return f.Write(line)
	}
	s, err := Open(t.Context(), b.opts)
	if err != nil {
		t.Fatal(err)
	}
	r := b.takes(s)
	b.backend.RequireGone(t)
	if r.Reason != loop.StopTraceUnwritable || r.ExitStatus != 54 || r.Problem == nil {
		t.Errorf("ended %s (%d): %+v", r.Reason, r.ExitStatus, r.Problem)
	}
	for _, box := range b.backend.Sandboxes {
		if len(box.Ran) > 0 {
			t.Errorf("%q ran without a record", box.Ran)
		}
	}
}

func TestWhatIsLeftBehindIsAFailure(t *testing.T) {
	b := newBench(t, "  - text: done\n")
	b.backend.DestroyErr = errors.New("mount busy")
	r, records := b.run(t.Context())
	ended := of[record.SessionEnded](t, records)[0]
	if r.ExitStatus != 1 || r.Reason != loop.StopAnswered || len(ended.Left) != 1 || ended.Problem == nil {
		t.Errorf("ended %s (%d), left %v: %+v", r.Reason, r.ExitStatus, ended.Left, ended.Problem)
	}
}

func TestATraceThatCanNotBeBegunEndsTheSession(t *testing.T) {
	b := newBench(t, "  - text: done\n")
	b.opts.writeTrace = func(*os.File, []byte) (int, error) { return 0, syscall.ENOSPC }
	_, err := Open(t.Context(), b.opts)
	e, ok := errors.AsType[Fault](err)
	if !ok || e.Kind != FaultRecords || e.Dir == "" || len(b.backend.Sandboxes) != 0 {
		t.Errorf("began with %v and %d sandboxes", e, len(b.backend.Sandboxes))
	}
}

func TestALossThatNoCallMeetsIsRecorded(t *testing.T) {
	b := newBench(t, "  - text: done\n")
	b.backend.OnCreated = func(box *fakesandbox.Sandbox) { box.End(sandbox.ErrLost) }
	r, records := b.run(t.Context())
	if lost := of[record.SandboxLost](t, records); r.ExitStatus != 0 || len(lost) != 1 || lost[0].Restarting {
		t.Errorf("ended %d, lost %+v", r.ExitStatus, lost)
	}
}

func TestASandboxThatHoldsWhatCanNotBeKilledIsReplaced(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: stick}}]\n  - calls: [{tool: shell, input: {command: echo}}]\n  - text: done\n")
	b.backend.Scripts["stick"] = fakesandbox.WriteText("stuck\n")
	b.backend.Scripts["echo"] = fakesandbox.WriteText("alive\n")
	b.backend.Unkillable = map[string]int{"stick": 2}
	r, records := b.run(t.Context())
	if r.ExitStatus != 0 || r.Restarts != 1 || len(b.backend.Sandboxes) != 2 || len(b.backend.Sandboxes[1].Ran) != 1 {
		t.Errorf("ended %d after %d restarts", r.ExitStatus, r.Restarts)
	}
	if lost := of[record.SandboxLost](t, records); len(lost) != 1 || !strings.Contains(lost[0].Cause, "2 processes could not be killed") {
		t.Errorf("lost %+v", lost)
	}
}

func TestWhatASandboxLacksCanBeRefused(t *testing.T) {
	for name, refuse := range map[string]bool{"refused": true, "accepted": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "  - calls: [{tool: shell, input: {command: echo}}]\n  - text: done\n")
			b.backend.Scripts["echo"] = fakesandbox.WriteText("hi")
			b.backend.Lost = []string{"no limit of memory"}
			b.opts.RefuseLost = refuse
			r, _ := b.run(t.Context())
			want := map[bool][]int{true: {44, 0}, false: {0, 1}}[refuse]
			if diff := cmp.Diff(want, []int{r.ExitStatus, len(b.backend.Sandboxes[0].Ran)}); diff != "" {
				t.Errorf("status, commands (-want +got):\n%s", diff)
			}
			if refuse && !strings.Contains(r.Problem.Cause, "no limit of memory") {
				t.Errorf("problem %+v", r.Problem)
			}
		})
	}
}

func TestACancelledCallIsAbandonedAfterHalfAMinute(t *testing.T) {
	for grace, want := range map[time.Duration]time.Duration{0: 30 * time.Second, time.Second: 30 * time.Second, time.Minute: 85 * time.Second} {
		if got := (SandboxOptions{Setup: sandbox.Setup{Grace: grace}}).abandonTime(); got != want {
			t.Errorf("grace %v: %v, want %v", grace, got, want)
		}
	}
}

// TestNothingRunsWhoseApprovalCannotBeRecorded fills the disk after a person has allowed a command:
// it must not run, since the audit would lack the approval.
func TestNothingRunsWhoseApprovalCannotBeRecorded(t *testing.T) {
	device, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	for _, name := range []string{"no room to write", "not on the disk"} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "  - calls: [{tool: shell, input: {command: echo}}]\n  - text: went on\n")
			b.backend.Scripts["echo"] = fakesandbox.WriteText("hi")
			var err error
			if b.opts.Policy, err = policy.Preset("strict"); err != nil {
				t.Fatal(err)
			}
			b.opts.Broker = approval.NewBroker(approval.BrokerOptions{})
			defer b.opts.Broker.Attach("terminal", answerer("allow"))()
			var asked atomic.Bool
			b.opts.Mirror = func(r record.Record, _ []byte) {
				if r.Kind == record.KindConfirmationRequested {
					asked.Store(true)
				}
			}
			if name == "no room to write" {
				b.opts.writeTrace = func(f *os.File, line []byte) (int, error) {
					if asked.Load() {
						return device.Write(line)
					}
					return f.Write(line)
				}
			} else {
				b.opts.syncTrace = func(f *os.File) error {
					if asked.Load() {
						return syscall.EIO
					}
					return f.Sync()
				}
			}
			s, err := Open(t.Context(), b.opts)
			if err != nil {
				t.Fatal(err)
			}
			r := b.takes(s)
			b.backend.RequireGone(t)
			if !asked.Load() || r.Reason != loop.StopTraceUnwritable || r.ExitStatus != 54 {
				t.Errorf("asked %v, ended %s (%d): %+v", asked.Load(), r.Reason, r.ExitStatus, r.Problem)
			}
			for _, box := range b.backend.Sandboxes {
				if len(box.Ran) > 0 {
					t.Errorf("%q ran", box.Ran)
				}
			}
		})
	}
}
