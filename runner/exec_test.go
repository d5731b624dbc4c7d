package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// Exec starts the sandbox of a session without a model. Its commands are recorded as the user's,
// and end with the session.
func TestExecWithoutTurns(t *testing.T) {
	b := newBench(t, "")
	b.opts.User = User{Name: "http:alice"}
	b.file("a.txt", "old\n")
	b.backend.Scripts["copy"] = func(_ context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		text, err := io.ReadAll(cmd.Stdin)
		if err := errors.Join(err, os.WriteFile(filepath.Join(box.Dir.Name(), "a.txt"), text, 0o600)); err != nil {
			t.Error(err)
		}
		fmt.Fprint(cmd.Stdout, "copied")
		fmt.Fprint(cmd.Stderr, "err")
		return sandbox.ExitStatus{Code: 7}
	}
	started := make(chan struct{})
	b.backend.Scripts["stay"] = fakesandbox.WaitForEnd(started)
	s := b.opened()
	var out, errOut bytes.Buffer
	r, err := s.Exec(t.Context(), UserCommand{Argv: []string{"run", testKey, "copy"}, Stdin: strings.NewReader("new\n"), Stdout: &out, Stderr: &errOut})
	if err != nil || r.Status.Code != 7 || out.String() != "copied" || errOut.String() != "err" {
		t.Errorf("%+v, %v: %q, %q", r, err, &out, &errOut)
	}
	if d, err := s.Differences(t.Context()); err != nil || len(d.Changed) != 1 {
		t.Errorf("differences: %+v, %v", d, err)
	}
	if _, r, err := b.command(filepath.Dir(filepath.Dir(b.opts.Dir.Path)), "none"); err != nil || r.Status.Code != 127 {
		t.Errorf("a command of another process: %+v, %v", r, err)
	}
	ended := make(chan struct{})
	out.Reset()
	go func() {
		defer close(ended)
		if r, err := s.Exec(context.Background(), UserCommand{Argv: []string{"stay"}, Stdout: &out}); err != nil || !r.Status.Cancelled || out.String() != "so far\n" {
			t.Errorf("when the session ends: %+v, %v, %q", r, err, &out)
		}
	}()
	<-started
	report := s.Close()
	<-ended
	b.backend.RequireGone(t)
	if report.Reason != StopNoTurn || report.ExitStatus != OutcomeDone || len(report.Changed) != 1 {
		t.Errorf("%+v", report)
	}
	if _, err := s.Exec(t.Context(), UserCommand{Argv: []string{"stay"}}); !errors.Is(err, ErrOver) {
		t.Errorf("after the end: %v", err)
	}
	var clients []string
	for _, rec := range b.records(report) {
		if bytes.Contains(rec.Payload, []byte(testKey)) {
			t.Errorf("a secret in %s", rec.Payload)
		}
		if rec.Kind == record.KindUserCommandStarted && rec.Actor != record.ActorUser {
			t.Errorf("recorded as the command of %s", rec.Actor)
		}
	}
	for _, c := range of[record.UserCommandStarted](t, b.records(report)) {
		clients = append(clients, c.Client)
	}
	if want := fmt.Sprint([]string{"http:alice", LocalUser(), "http:alice"}); fmt.Sprint(clients) != want {
		t.Errorf("clients %v, want %v", clients, want)
	}
	if n := len(of[record.UserCommandEnded](t, b.records(report))); n != 3 {
		t.Errorf("%d commands ended", n)
	}
}

// Exec runs a command beside a turn, and only its own context ends it.
func TestExecBesideATurn(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: agent}}]\n  - text: Done.\n")
	agent, user := make(chan struct{}), make(chan struct{})
	release := make(chan struct{})
	b.backend.Scripts["agent"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		close(agent)
		<-release
		return sandbox.ExitStatus{}
	}
	b.backend.Scripts["user"] = fakesandbox.WaitForEnd(user)
	s := b.opened()
	turn, err := s.Start("go")
	if err != nil {
		t.Fatal(err)
	}
	<-agent
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-user
		cancel()
	}()
	var out bytes.Buffer
	if r, err := s.Exec(ctx, UserCommand{Argv: []string{"user"}, Stdout: &out}); err != nil || !r.Status.Cancelled || out.String() != "so far\n" {
		t.Errorf("%+v, %v, %q", r, err, &out)
	}
	close(release)
	if r := turn.Report(); r.Answer != "Done." {
		t.Errorf("the turn: %+v", r)
	}
}

// A session whose commands had no sandbox, lost it or were cancelled ends with that.
func TestEndOfExecsWithoutTurns(t *testing.T) {
	interrupted := &Interrupted{Signal: 15}
	for name, c := range map[string]struct {
		create error
		script func(*fakesandbox.Sandbox, context.CancelCauseFunc)
		kind   FaultKind
		cause  error
		reason loop.StopReason
		status int
	}{
		"no sandbox": {create: sandbox.ErrUnavailable, kind: FaultSandboxStart, cause: tools.ErrSandboxStart, reason: loop.StopSandboxStart, status: OutcomeSandboxStart},
		"no mount": {
			create: &sandbox.MountError{Err: errors.New("the image has no directory /usr/x")}, kind: FaultSandboxStart, cause: sandbox.ErrInvalid,
			reason: loop.StopSandboxStart, status: OutcomeInput,
		},
		"no user":      {create: sandbox.ImageError(&images.UserError{User: "ghost"}), kind: FaultSandboxStart, cause: sandbox.ErrInvalid, reason: loop.StopSandboxStart, status: OutcomeInput},
		"lost sandbox": {script: func(box *fakesandbox.Sandbox, _ context.CancelCauseFunc) { box.End(sandbox.ErrLost) }, kind: FaultCommandLost, cause: tools.ErrSandboxLost, reason: loop.StopSandboxLost, status: OutcomeSandboxLost},
		"cancelled":    {script: func(_ *fakesandbox.Sandbox, end context.CancelCauseFunc) { end(interrupted) }, reason: loop.StopCancelled, status: 128 + 15},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "")
			ctx, end := context.WithCancelCause(t.Context())
			b.backend.OnCreate = func(context.Context, int) error { return c.create }
			b.backend.Scripts["run"] = func(ctx context.Context, box *fakesandbox.Sandbox, _ sandbox.Command) sandbox.ExitStatus {
				c.script(box, end)
				if c.kind == "" {
					<-ctx.Done()
				}
				return sandbox.ExitStatus{}
			}
			s, err := Open(ctx, b.opts)
			if err != nil {
				t.Fatal(err)
			}
			r, err := s.Exec(context.Background(), UserCommand{Argv: []string{"run"}})
			if e, ok := errors.AsType[*UserCommandError](err); ok != (c.kind != "") || ok && (e.Kind != c.kind || !errors.Is(err, c.cause)) || !ok && !r.Status.Cancelled {
				t.Errorf("%+v, %v", r, err)
			}
			if report := s.Close(); report.Reason != c.reason || report.ExitStatus != c.status {
				t.Errorf("ended %s with %d: %v", report.Reason, report.ExitStatus, report.Err)
			}
			b.backend.RequireGone(t)
			if _, err := s.Exec(t.Context(), UserCommand{Argv: []string{"run"}}); !errors.Is(err, ErrOver) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

// Beside begins after the first record, its warnings are recorded, and it is over before the last
// one. Forks don't repeat it.
func TestBeside(t *testing.T) {
	b := newBench(t, "").overlaid()
	b.backend.Scripts["work"] = func(context.Context, *fakesandbox.Sandbox, sandbox.Command) sandbox.ExitStatus {
		return sandbox.ExitStatus{}
	}
	begun, end, ended := make(chan struct{}, 2), make(chan struct{}), make(chan struct{})
	b.opts.Mirror = func(r record.Record, _ []byte) {
		if r.Kind == "session.ended" {
			close(ended)
		}
	}
	b.opts.Beside = func(context.Context) []string {
		begun <- struct{}{}
		<-end
		select {
		case <-ended:
			t.Error("the session has ended before")
		case <-time.After(200 * time.Millisecond):
		}
		return []string{"old changes are gone"}
	}
	s := b.opened()
	<-begun
	if r, err := s.Exec(t.Context(), UserCommand{Argv: []string{"work"}}); err != nil || r.Status.Code != 0 {
		t.Errorf("a command beside it: %+v, %v", r, err)
	}
	forks, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	forks[0].Close() // which would wait for it
	close(end)
	records := b.records(s.Close())
	if w := of[record.Warning](t, records); !slices.ContainsFunc(w, func(w record.Warning) bool { return w.Message == "old changes are gone" }) {
		t.Errorf("warnings: %+v", w)
	}
	if first, last := records[0].Kind, records[len(records)-1].Kind; first != "session.created" || last != "session.ended" {
		t.Errorf("the records begin with %s and end with %s", first, last)
	}
	if len(begun) > 0 {
		t.Error("the fork does it again")
	}
}
