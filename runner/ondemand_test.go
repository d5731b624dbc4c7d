package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/internal/tracker"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	readTurn  = "  - calls: [{tool: read_file, input: {path: notes.txt}}]\n"
	shellTurn = "  - calls: [{tool: shell, input: {command: work}}]\n"
	lastTurn  = "  - text: done\n"

	patchNotes = `  - calls: [{tool: apply_patch, input: {patch: "*** Begin Patch\n*** Update File: notes.txt\n@@\n-what the file holds\n+patched\n*** End Patch"}}]
`
)

// countStarts makes a session that plays turns, and counts its sandbox's starts, which fail with err.
func countStarts(t *testing.T, turns string, err error) (*bench, *atomic.Int32) {
	t.Helper()
	b := newBench(t, turns)
	b.file("notes.txt", "what the file holds\n")
	b.backend.Scripts["work"] = fakesandbox.WriteText("worked\n")
	starts := new(atomic.Int32)
	b.backend.OnCreate = func(context.Context, int) error {
		starts.Add(1)
		return err
	}
	return b, starts
}

func usePolicy(t *testing.T, b *bench, name string) {
	t.Helper()
	policy, err := policy.Preset(name)
	if err != nil {
		t.Fatal(err)
	}
	b.opts.Policy = policy
}

// TestStartsOfTheSandbox counts a session's starts. Rows with a start are the control of the others.
func TestStartsOfTheSandbox(t *testing.T) {
	twoWrites := `  - calls:
      - {tool: write_file, input: {path: a, content: a}}
      - {tool: write_file, input: {path: b, content: b}}
`
	for name, tc := range map[string]struct {
		policy   string
		onDemand bool
		overlay  bool
		turns    string
		starts   int32
	}{
		"readonly":                            {"readonly", false, false, readTurn + lastTurn, 0},
		"readonly in overlay":                 {"readonly", false, true, readTurn + lastTurn, 0},
		"readonly refuses a command":          {"readonly", false, false, shellTurn + lastTurn, 0},
		"a command may come":                  {"ci", false, false, readTurn + lastTurn, 1},
		"on demand, none":                     {"ci", true, false, readTurn + lastTurn, 0},
		"on demand, none in overlay":          {"ci", true, true, readTurn + lastTurn, 0},
		"on demand, a command":                {"ci", true, false, readTurn + shellTurn + readTurn + shellTurn + lastTurn, 1},
		"on demand, two at once":              {"ci", true, false, twoWrites + lastTurn, 1},
		"on demand with a command in overlay": {"ci", true, true, readTurn + shellTurn + readTurn + lastTurn, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b, starts := countStarts(t, tc.turns, nil)
			usePolicy(t, b, tc.policy)
			b.opts.startOnDemand = tc.onDemand
			if tc.overlay {
				b = b.overlaid()
			}
			r, records := b.run(t.Context())
			if starts.Load() != tc.starts || r.ExitStatus != 0 || len(of[record.SandboxStarted](t, records)) != int(tc.starts) || (r.Attestation != nil) != (tc.starts > 0) {
				t.Errorf("%d starts, want %d; ended %d with %+v", starts.Load(), tc.starts, r.ExitStatus, r.Problem)
			}
			if strings.Contains(tc.turns, "read_file") && !strings.Contains(told(records), "what the file holds") {
				t.Error("the file was not read")
			}
			if tc.overlay && (r.Overlay == nil || r.Overlay.State != "empty") {
				t.Errorf("overlay %+v", r.Overlay)
			}
		})
	}
}

// TestFailedStart: a failed start is an error of the calls that need the sandbox, with cause and hint,
// and of no read. It is reported once.
func TestFailedStart(t *testing.T) {
	for name, tc := range map[string]struct {
		onDemand, overlay, lacks bool
		turns                    string
		status, starts           int
		warned                   bool
	}{
		"nothing needs it":                {turns: readTurn + lastTurn, starts: 1, warned: true},
		"nothing needs it in overlay":     {overlay: true, turns: readTurn + lastTurn, starts: 1, warned: true},
		"refused for what it lacks":       {lacks: true, overlay: true, turns: readTurn + lastTurn, starts: 1, warned: true},
		"on demand, nothing needs it":     {onDemand: true, turns: readTurn + lastTurn},
		"on demand, a command":            {onDemand: true, turns: readTurn + shellTurn + readTurn + lastTurn, status: 44, starts: 1},
		"on demand, refused":              {onDemand: true, lacks: true, turns: readTurn + shellTurn + lastTurn, status: 44, starts: 1},
		"on demand, two at once":          {onDemand: true, turns: "  - calls:\n      - {tool: write_file, input: {path: a, content: a}}\n      - {tool: write_file, input: {path: b, content: b}}\n" + lastTurn, status: 44, starts: 1},
		"on demand, a patch":              {onDemand: true, turns: patchNotes + lastTurn, status: 44, starts: 1},
		"on demand, a command in overlay": {onDemand: true, overlay: true, turns: readTurn + shellTurn + lastTurn, status: 44, starts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			cause := errors.Join(sandbox.ErrNotFound, errors.New("no such image"))
			if tc.lacks {
				cause = nil
			}
			b, starts := countStarts(t, tc.turns, cause)
			if tc.lacks {
				b.backend.Lost, b.opts.RefuseLost = []string{"no such image"}, true
			}
			b.opts.startOnDemand = tc.onDemand
			if tc.overlay {
				b = b.overlaid()
			}
			r, records := b.run(t.Context())
			if r.ExitStatus != tc.status || int(starts.Load()) != tc.starts {
				t.Errorf("ended %s (%d) after %d starts: %+v", r.Reason, r.ExitStatus, starts.Load(), r.Problem)
			}
			if tc.status == 44 && (r.Reason != loop.StopSandboxStart || !strings.Contains(r.Problem.Cause, "no such image") || r.Problem.Hint == "") {
				t.Errorf("ended %s: %+v", r.Reason, r.Problem)
			}
			if got := strings.Contains(warnings(t, records), "no such image"); got != tc.warned {
				t.Errorf("warned: %v: %s", got, warnings(t, records))
			}
			if strings.Contains(tc.turns, "read_file") && !strings.Contains(told(records), "what the file holds") {
				t.Error("the file was not read")
			}
		})
	}
}

// TestHintOfAFailedStart: a sandbox without namespaces, or whose guest is on a noexec file system, has
// a hint for that, for runs and for users' commands, and the caller can word it. The control is
// another cause.
func TestHintOfAFailedStart(t *testing.T) {
	for want, cause := range map[string]error{
		"Use the backend gvisor with isolation process": fmt.Errorf("runc run: %w: %w", sandbox.ErrNoNamespaces, syscall.EPERM),
		"Mount that file system without noexec":         fmt.Errorf("copy guest binary: %w: %w", sandbox.ErrUnavailable, &programs.NoExecError{Path: "/state/guest"}),
		"Check the engine or runtime":                   sandbox.ErrUnavailable,
		"The caller's hint.":                            os.ErrNotExist,
	} {
		hint := Fault.Hint
		if errors.Is(cause, os.ErrNotExist) {
			hint = func(f Fault) string {
				if f.Kind != FaultSandboxStart || !errors.Is(f.Err, cause) {
					t.Errorf("%+v", f)
				}
				return "The caller's hint."
			}
		}
		b, _ := countStarts(t, shellTurn+lastTurn, cause)
		b.opts.startOnDemand, b.opts.Hint = true, hint
		r, _ := b.run(t.Context())
		f := (&userCommands{hint: hint}).notRun(&livesandbox.StartError{Cause: cause})
		for _, hint := range []string{r.Problem.Hint, f.Hint} {
			if !strings.HasPrefix(hint, want) || r.ExitStatus != OutcomeSandboxStart || f.Kind != FaultSandboxStart {
				t.Errorf("%v: %q (%d), want %q", cause, hint, r.ExitStatus, want)
			}
		}
	}
}

// TestACallAfterTheStartFailed: reads work before and after the failure, and then a command meets it.
func TestACallAfterTheStartFailed(t *testing.T) {
	b, _ := countStarts(t, readTurn+readTurn+shellTurn+lastTurn, nil)
	failed := make(chan struct{})
	b.backend.OnCreate = func(context.Context, int) error { return sandbox.ErrUnavailable }
	b.opts.Mirror = func(r record.Record, _ []byte) {
		if r.Kind == record.KindWarning {
			close(failed)
		}
	}
	b.opts.Profiles = []loop.Profile{{Model: &waitingModel{Model: b.opts.Profiles[0].Model, until: failed}}}
	r, records := b.run(t.Context())
	if r.ExitStatus != 44 || len(of[record.ToolCompleted](t, records)) != 2 || len(of[record.ToolFailed](t, records)) != 1 {
		t.Errorf("ended %d with %v", r.ExitStatus, kinds(records))
	}
}

// waitingModel waits before its first answer.
type waitingModel struct {
	loop.Model
	until <-chan struct{}
}

func (m *waitingModel) Complete(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Response, error) {
	select {
	case <-m.until:
	case <-ctx.Done():
	}
	return m.Model.Complete(ctx, req, delta)
}

// TestReadsWhileTheSandboxStarts: the start ends only after the read.
func TestReadsWhileTheSandboxStarts(t *testing.T) {
	for _, overlay := range []bool{false, true} {
		b, _ := countStarts(t, readTurn+shellTurn+lastTurn, nil)
		if overlay {
			b = b.overlaid()
		}
		read := make(chan struct{})
		b.backend.OnCreate = func(ctx context.Context, _ int) error {
			select {
			case <-read:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		b.opts.Mirror = func(r record.Record, _ []byte) {
			if r.Kind == record.KindToolCompleted && strings.Contains(string(r.Payload), "read_file") {
				close(read)
			}
		}
		r, records := b.run(t.Context())
		if r.ExitStatus != 0 || !strings.Contains(told(records), "what the file holds") {
			t.Errorf("overlay %v: ended %d: %+v", overlay, r.ExitStatus, r.Problem)
		}
		order := kinds(records)
		if started, completed := slices.Index(order, record.KindSandboxStarted), slices.Index(order, record.KindToolCompleted); started < completed {
			t.Errorf("overlay %v: %v", overlay, order)
		}
	}
}

// TestOverlayReadsSeeWhatCommandsChanged, also after the sandbox was replaced.
func TestOverlayReadsSeeWhatCommandsChanged(t *testing.T) {
	turns := readTurn + shellTurn + readTurn + "  - calls: [{tool: shell, input: {command: die}}]\n" + readTurn + lastTurn
	for _, onDemand := range []bool{false, true} {
		b, starts := countStarts(t, turns, nil)
		b = b.overlaid()
		b.opts.startOnDemand = onDemand
		b.backend.Scripts["work"] = bash(t, "echo changed by a command > notes.txt")
		b.backend.Scripts["die"] = fakesandbox.EndSandbox(true)
		r, records := b.run(t.Context())
		var reads []string
		for text := range strings.SplitSeq(resultTexts(t, records), "\n") {
			for _, content := range []string{"what the file holds", "changed by a command"} {
				if strings.Contains(text, content) {
					reads = append(reads, content)
				}
			}
		}
		want := []string{"what the file holds", "changed by a command", "changed by a command"}
		if diff := cmp.Diff(want, reads); diff != "" || r.ExitStatus != 0 || starts.Load() != 2 {
			t.Errorf("ended %d after %d starts; read (-want +got):\n%s", r.ExitStatus, starts.Load(), diff)
		}
		if b.read("notes.txt") != "what the file holds\n" {
			t.Error("the folder changed")
		}
	}
}

// TestChangesBeforeTheStartAreNotTheSessions: a session whose sandbox starts late lists commands'
// changes, and guards the repositories of that time.
func TestChangesBeforeTheStartAreNotTheSessions(t *testing.T) {
	b, _ := countStarts(t, readTurn+shellTurn+lastTurn, nil)
	b.opts.startOnDemand = true
	var once bool
	b.opts.Mirror = func(r record.Record, _ []byte) {
		if r.Kind == record.KindToolCompleted && !once {
			once = true
			b.file("users.txt", "the user's\n")
			b.file("users/.git/config", "")
		}
	}
	b.backend.Scripts["work"] = func(_ context.Context, _ *fakesandbox.Sandbox, _ sandbox.Command) sandbox.ExitStatus {
		b.file("agents.txt", "the agent's\n")
		b.file("agents/.git/config", "")
		return sandbox.ExitStatus{}
	}
	r, _ := b.run(t.Context())
	if len(r.Quarantined) != 1 || r.Quarantined[0].Path != "agents/.git" || b.exists("agents/.git") || !b.exists("users/.git") {
		t.Errorf("quarantined %+v", r.Quarantined)
	}
	for _, c := range r.Changed {
		if strings.HasPrefix(c.Path, "users") {
			t.Errorf("%s is listed as the session's", c.Path)
		}
	}
	if !slices.ContainsFunc(r.Changed, func(c record.Changed) bool { return c.Path == "agents.txt" }) {
		t.Errorf("changed %+v", r.Changed)
	}
}

// TestInterruptedStart: an interruption ends a start, whether it began beside the model call or with
// a call, and shows as such.
func TestInterruptedStart(t *testing.T) {
	for _, onDemand := range []bool{false, true} {
		b, starts := countStarts(t, readTurn+shellTurn+lastTurn, nil)
		b.opts.startOnDemand = onDemand
		ctx, cancel := context.WithCancelCause(t.Context())
		b.backend.OnCreate = func(making context.Context, _ int) error {
			starts.Add(1)
			cancel(&Interrupted{Signal: int(syscall.SIGINT)})
			<-making.Done()
			return context.Cause(making)
		}
		r, records := b.run(ctx)
		if r.ExitStatus != 130 || starts.Load() != 1 || len(of[record.SandboxStarted](t, records)) != 0 || len(of[record.Warning](t, records)) != 0 {
			t.Errorf("on demand %v: ended %d after %d starts: %s", onDemand, r.ExitStatus, starts.Load(), warnings(t, records))
		}
	}
}

// unrecorded is a tracker that could not record the workspace.
type unrecorded struct {
	tracker.Tracker
	err error
}

func (u unrecorded) WaitRecorded(context.Context) error { return u.err }

// TestNothingRunsInAWorkspaceThatIsNotRecorded. The control is the second call.
func TestNothingRunsInAWorkspaceThatIsNotRecorded(t *testing.T) {
	b, _ := countStarts(t, lastTurn, nil)
	s, err := Open(t.Context(), b.opts)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.sandbox.EnsureStarted()
	s.sandbox.WaitStarted(t.Context())
	recorded := s.tracker
	if err := recorded.WaitRecorded(t.Context()); err != nil {
		t.Fatal(err)
	}
	op := workspace.Op{Kind: workspace.OpWrite, Path: "made", Content: []byte("made")}
	s.tracker = unrecorded{recorded, tools.ErrSandboxStart}
	if _, err := s.exec.Apply(t.Context(), op); !errors.Is(err, tools.ErrSandboxStart) || b.exists("made") {
		t.Errorf("applied: %v", err)
	}
	s.tracker = recorded
	if _, err := s.exec.Apply(t.Context(), op); err != nil || !b.exists("made") {
		t.Errorf("control: %v", err)
	}
}

// TestSessionIsOverAfterAFailedStart once a call has met it. Until then, turns go on.
func TestSessionIsOverAfterAFailedStart(t *testing.T) {
	b, _ := countStarts(t, readTurn+lastTurn+shellTurn+lastTurn, sandbox.ErrUnavailable)
	s, err := Open(t.Context(), b.opts)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []loop.StopReason{loop.StopAnswered, loop.StopSandboxStart} {
		turn, err := s.Start("go on")
		if err != nil {
			t.Fatal(err)
		}
		if got := turn.Report().Reason; got != want {
			t.Errorf("turn %d ended %s, want %s", i, got, want)
		}
	}
	if _, err := s.Start("go on"); !errors.Is(err, ErrOver) {
		t.Errorf("a third turn: %v", err)
	}
	if r := s.Close(); r.ExitStatus != 44 {
		t.Errorf("ended %d", r.ExitStatus)
	}
}

// TestNothingIsQuarantinedWhereNothingRan: others' changes don't concern a session whose sandbox can't
// start. The control is one that starts.
func TestNothingIsQuarantinedWhereNothingRan(t *testing.T) {
	for _, fails := range []bool{true, false} {
		b, _ := countStarts(t, readTurn+lastTurn, nil)
		s, err := Open(t.Context(), b.opts)
		if err != nil {
			t.Fatal(err)
		}
		b.backend.OnCreate = func(context.Context, int) error {
			if err := s.tracker.WaitRecorded(t.Context()); err != nil {
				return err
			}
			b.file("users/.git/config", "")
			b.file("users/file", "")
			if fails {
				return sandbox.ErrUnavailable
			}
			return nil
		}
		turn, err := s.Start("read")
		if err != nil {
			t.Fatal(err)
		}
		turn.Report()
		r := s.Close()
		if r.ExitStatus != 0 || b.exists("users/.git") != fails || (len(r.Quarantined) == 0) != fails || (len(r.Changed) == 0) != fails {
			t.Errorf("fails %v: ended %d, quarantined %+v, changed %+v", fails, r.ExitStatus, r.Quarantined, r.Changed)
		}
		if left, err := filepath.Glob(filepath.Join(r.Dir, "repositories*")); err != nil || len(left) > 0 {
			t.Errorf("fails %v: the inventory is left", fails)
		}
	}
}
