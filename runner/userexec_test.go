package runner

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/execapi"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// asking runs a session whose only command runs until the returned function is called, and calls ask
// meanwhile.
func (b *bench) asking(ask func(stateDir string)) (Report, []record.Record) {
	b.t.Helper()
	running, release := make(chan struct{}), make(chan struct{})
	b.opts.Profiles = []loop.Profile{{Model: player(b.t, "  - calls: [{tool: shell, input: {command: wait}}]\n  - text: Done.\n")}}
	b.backend.Scripts["wait"] = func(ctx context.Context, _ *fakesandbox.Sandbox, _ sandbox.Command) sandbox.ExitStatus {
		close(running)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return sandbox.ExitStatus{}
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		<-running
		ask(filepath.Dir(filepath.Dir(b.opts.Dir.Path)))
		close(release)
	}()
	r, records := b.run(b.t.Context())
	<-asked
	return r, records
}

// command runs one of the backend's scripts as a user.
func (b *bench) command(stateDir, script string) (out string, r UserResult, err error) {
	var stdout bytes.Buffer
	r, err = RunUserCommand(b.t.Context(), stateDir, b.opts.Dir.Session, UserCommand{
		Argv: []string{"run", "--key", testKey, script}, Stdout: &stdout, Stderr: io.Discard, Timeout: time.Hour,
	})
	return stdout.String(), r, err
}

// A user's command runs beside the agent's, and is recorded before and after as the user's, without
// the session's secrets.
func TestUserCommand(t *testing.T) {
	b := newBench(t, "")
	b.backend.Scripts["hello"] = func(_ context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		fmt.Fprint(cmd.Stdout, "hello")
		return sandbox.ExitStatus{Code: 7}
	}
	b.opts.MaxCommandTime = time.Minute
	var timeout time.Duration
	b.backend.OnStart = func(_ context.Context, cmd sandbox.Command) error {
		if cmd.Argv[len(cmd.Argv)-1] == "hello" {
			timeout = cmd.Timeout
		}
		return nil
	}
	b.backend.Shortages = map[string]sandbox.Shortage{"hello": {PIDsLimitHit: true, Full: []string{"/tmp"}}}
	report, records := b.asking(func(stateDir string) {
		if !Listens(stateDir, b.opts.Dir.Session) || Listens(stateDir, "ses_none") {
			t.Error("who listens is told wrongly")
		}
		if out, r, err := b.command(stateDir, "hello"); err != nil || out != "hello" || r.Status.Code != 7 || !r.PIDsLimitHit || len(r.Full) != 1 {
			t.Errorf("%q, %+v, %v", out, r, err)
		}
	})
	if report.ExitStatus != 0 {
		t.Errorf("the session ended with %d: %v", report.ExitStatus, report.Err)
	}
	var kinds []record.Kind
	for _, r := range records {
		if r.Kind != record.KindUserCommandStarted && r.Kind != record.KindUserCommandEnded {
			continue
		}
		kinds = append(kinds, r.Kind)
		if r.Actor != record.ActorUser || bytes.Contains(r.Payload, []byte(testKey)) {
			t.Errorf("record %+v", r)
		}
		if r.Kind == record.KindUserCommandEnded {
			var p record.UserCommandEnded
			if err := json.Unmarshal(r.Payload, &p); err != nil || p.Code != 7 || p.Stdout.Bytes != 5 || p.ExecID == "" || !p.PIDsLimitHit || len(p.Full) != 1 {
				t.Errorf("ended: %+v, %v", p, err)
			}
		}
	}
	if timeout != time.Minute {
		t.Errorf("the command may take %s, want what is allowed", timeout)
	}
	if len(kinds) != 2 || kinds[0] != record.KindUserCommandStarted {
		t.Errorf("records: %v", kinds)
	}
	if Listens(filepath.Dir(filepath.Dir(b.opts.Dir.Path)), b.opts.Dir.Session) {
		t.Error("the socket is left")
	}
}

// TestUserCommandNeedsPreset checks that a failed command without a network tells which preset it
// needed.
func TestUserCommandNeedsPreset(t *testing.T) {
	for _, c := range []struct {
		name, want string
		network    bool
		code       int
	}{
		{name: "npm", want: "npm", code: 1},
		{name: "npm that succeeds", code: 0},
		{name: "npm with a network", code: 1, network: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, "")
			b.backend.Scripts["npm"] = func(_ context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
				fmt.Fprint(cmd.Stderr, strings.Repeat("npm warn old\n", 5000)+"npm error code ENOT")
				fmt.Fprint(cmd.Stderr, "CACHED\n")
				return sandbox.ExitStatus{Code: c.code}
			}
			s, err := Open(t.Context(), b.opts)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			s.users.offline = s.users.offline && !c.network
			r, err := s.Exec(t.Context(), UserCommand{Argv: []string{"run", "npm"}})
			if err != nil || r.NeedsPreset != c.want {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// A sandbox that is lost during a user's command is 45 for the user, never a command's exit status, and
// ends the session like any loss.
func TestUserCommandMeetsALoss(t *testing.T) {
	b := newBench(t, "")
	b.backend.Scripts["die"] = func(_ context.Context, box *fakesandbox.Sandbox, _ sandbox.Command) sandbox.ExitStatus {
		box.End(fmt.Errorf("gone: %w", sandbox.ErrLost))
		return sandbox.ExitStatus{}
	}
	report, records := b.asking(func(stateDir string) {
		_, r, err := b.command(stateDir, "die")
		if e, ok := errors.AsType[*UserCommandError](err); !ok || e.Kind != FaultCommandLost || e.Hint == "" {
			t.Errorf("%+v, %v", r, err)
		}
	})
	if report.ExitStatus != OutcomeSandboxLost {
		t.Errorf("the session ended with %d", report.ExitStatus)
	}
	if ended := of[record.UserCommandEnded](t, records); len(ended) != 1 || ended[0].Error == "" || ended[0].Code != -1 {
		t.Errorf("ended: %+v", ended)
	}
}

// A user's command ends with its session, which does not wait for it.
func TestUserCommandEndsWithItsSession(t *testing.T) {
	b := newBench(t, "")
	begun := make(chan struct{})
	b.backend.Scripts["stay"] = func(ctx context.Context, _ *fakesandbox.Sandbox, _ sandbox.Command) sandbox.ExitStatus {
		close(begun)
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), errEnding) {
			t.Errorf("cancelled with %v", context.Cause(ctx))
		}
		return sandbox.ExitStatus{Code: -1, Signal: 15}
	}
	ended := make(chan struct{})
	report, _ := b.asking(func(stateDir string) {
		go func() {
			defer close(ended)
			if _, r, err := b.command(stateDir, "stay"); err != nil || !r.Status.Cancelled {
				t.Errorf("%+v, %v", r, err)
			}
		}()
		<-begun
	})
	<-ended
	if report.ExitStatus != 0 {
		t.Errorf("the session ended with %d", report.ExitStatus)
	}
}

// TestUserCommandWhoseOwnerIsLost: its end is unknown.
func TestUserCommandWhoseOwnerIsLost(t *testing.T) {
	state := t.TempDir()
	dir := filepath.Join(sessiondir.Path(state, "ses_x"), sessiondir.SandboxDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	server, err := execapi.Listen(t.Context(), dir, sandbox.ExecSocket, execapi.Handlers{Run: func(ctx context.Context, _ execapi.Request, _ io.Reader, _, _ io.Writer) execapi.Result {
		<-ctx.Done()
		return execapi.Result{}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close(errEnding)
	abandon := make(chan struct{})
	close(abandon)
	_, err = RunUserCommand(t.Context(), state, "ses_x", UserCommand{Argv: []string{"true"}, Stdout: io.Discard, Stderr: io.Discard, Abandon: abandon})
	if e, ok := errors.AsType[*UserCommandError](err); !ok || e.Kind != FaultEndUnknown || !strings.HasPrefix(e.Cause, "the command's end is not known: ") {
		t.Errorf("%v", err)
	}
}

// TestUserCommandsAreRecordedFirst: a command is on disk before it starts, and does not start if that
// fails. A failed record of its end is logged.
func TestUserCommandsAreRecordedFirst(t *testing.T) {
	failed := errors.New("no space")
	for name, c := range map[string]struct {
		closed       bool // the trace, before the command or after it
		closes       bool
		sync         error
		starts, logs int
	}{
		"recorded":             {starts: 1},
		"not recorded":         {closed: true},
		"not synced":           {sync: failed},
		"its end not recorded": {closes: true, starts: 1, logs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			rec, err := record.NewRecorder(record.RecorderOptions{Dir: t.TempDir(), Session: "ses_01JD0000000000000000000000"})
			if err != nil {
				t.Fatal(err)
			}
			defer rec.Close()
			end := func() {
				if err := rec.Close(); err != nil {
					t.Error(err)
				}
			}
			backend := &fakesandbox.Backend{Scripts: map[string]fakesandbox.Script{"run": func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
				if c.closes {
					end()
				}
				return sandbox.ExitStatus{}
			}}}
			x := newTestExecutor(t, backend, nil)
			synced, starts := 0, 0
			backend.OnStart = func(_ context.Context, cmd sandbox.Command) error {
				if starts++; cmd.Timeout != 1500*time.Millisecond || synced != 1 {
					t.Errorf("started with a timeout of %v, after %d syncs", cmd.Timeout, synced)
				}
				return nil
			}
			core, logged := observer.New(zap.ErrorLevel)
			u := &userCommands{exec: x, hint: Fault.Hint, events: newEventRecorder(rec, nil), log: zap.New(core), sync: func() error {
				synced++
				return c.sync
			}}
			if c.closed {
				end()
			}
			r := u.serveRequest(t.Context(), execapi.Request{Argv: [][]byte{[]byte("run")}, TimeoutMS: 1500}, nil, io.Discard, io.Discard)
			if (r.Failure == nil) != (c.starts == 1) || starts != c.starts || logged.Len() != c.logs {
				t.Errorf("%+v; started %d times, logged %d entries", r.Failure, starts, logged.Len())
			}
		})
	}
}

// A command for an unowned session is 42, with a hint.
func TestUserCommandOfNoSession(t *testing.T) {
	for _, session := range []string{"ses_none", "../.."} {
		_, err := RunUserCommand(t.Context(), t.TempDir(), session, UserCommand{Argv: []string{"true"}, Stdout: io.Discard, Stderr: io.Discard})
		if e, ok := errors.AsType[*UserCommandError](err); !ok || e.Kind != FaultNotLive || e.Cause != "no process owns a live sandbox of session "+session {
			t.Errorf("%s: %v", session, err)
		}
	}
}

// TestFailuresOfUserCommands: each reason why a command has no end has a kind and a hint.
func TestFailuresOfUserCommands(t *testing.T) {
	disk := &limits.ExceededError{Kind: limits.KindDisk}
	u := &userCommands{hint: Fault.Hint}
	for want, errs := range map[FaultKind][]error{
		FaultOther:        {errors.New("any"), &limits.ExceededError{Kind: limits.KindMemory}, &tools.Error{Reason: "cwd"}},
		FaultDisk:         {disk},
		FaultRecords:      {fmt.Errorf("a: %w", tools.ErrRecord)},
		FaultSandboxStart: {fmt.Errorf("a: %w", tools.ErrSandboxStart)},
		FaultCommandLost:  {tools.ErrSandboxLost, sandbox.ErrLost, sandbox.ErrState},
		FaultReplaced:     {&tools.Error{Reason: livesandbox.ReplacedReason, Message: "replaced"}},
		FaultCommand:      {fmt.Errorf("a: %w", sandbox.ErrInvalid)},
	} {
		for _, err := range errs {
			f := u.notRun(err)
			if f.Kind != want || !errors.Is(f, err) || f.Hint == "" || want == FaultDisk && !strings.Contains(f.Hint, "disk") || (f.Hint == "The session's records have the details.") != (want == FaultOther) {
				t.Errorf("%v: %+v, want %s", err, f, want)
			}
			if e, ok := errors.AsType[*tools.Error](err); ok && (f.Cause == "replaced") != (e.Reason == livesandbox.ReplacedReason) {
				t.Errorf("%v: %q", err, f.Cause)
			}
		}
	}
	if got := recordTexts([]string{"a", "\xff"}); len(got) != 2 || got[0] != "a" || got[1] != `"\xff"` || recordTexts(nil) == nil {
		t.Errorf("recorded as %q", got)
	}
}

// brokenWriter is a client that is gone.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestCountedOutput: the records describe what the user received.
func TestCountedOutput(t *testing.T) {
	var out bytes.Buffer
	c := &counted{to: &out, sum: sha256.New()}
	for _, piece := range []string{"ab", "c"} {
		if n, err := c.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Error(n, err)
		}
	}
	c.recordStream()
	if got := c.recordStream(); got.Bytes != 3 || got.SHA256 != fmt.Sprintf("%x", sha256.Sum256([]byte("abc"))) {
		t.Errorf("%+v", got)
	}
	if _, err := (&counted{to: brokenWriter{}, sum: sha256.New()}).Write([]byte("x")); err == nil {
		t.Error("a reader that is gone is not reported")
	}
}
