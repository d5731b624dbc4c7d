//go:build linux

package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// asking runs a session whose one command runs until the returned function is
// called, and calls ask once it runs.
func (b *bench) asking(ask func(stateDir string)) (Report, []Record) {
	b.t.Helper()
	running, release := make(chan struct{}), make(chan struct{})
	b.opts.Model = player(b.t, "  - calls: [{tool: shell, input: {command: wait}}]\n  - text: Done.\n")
	b.backend.scripts["wait"] = func(ctx context.Context, _ *fakeBox, _ sandbox.Command) sandbox.ExitStatus {
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
		ask(filepath.Dir(filepath.Dir(b.opts.Folder.Dir)))
		close(release)
	}()
	r, records := b.run(b.t.Context())
	<-asked
	return r, records
}

// command asks for one of the backend's scripts.
func (b *bench) command(stateDir, script string) (out string, r UserResult, err error) {
	var stdout bytes.Buffer
	r, err = RunUserCommand(b.t.Context(), stateDir, b.opts.Folder.Session, UserCommand{
		Argv: []string{"run", "--key", testKey, script}, Stdout: &stdout, Stderr: io.Discard,
	})
	return stdout.String(), r, err
}

// A user's command runs beside the agent's, and is recorded before and after as
// the user's, without the session's secrets.
func TestUserCommand(t *testing.T) {
	b := newBench(t, "")
	b.backend.scripts["hello"] = func(_ context.Context, _ *fakeBox, cmd sandbox.Command) sandbox.ExitStatus {
		fmt.Fprint(cmd.Stdout, "hello")
		return sandbox.ExitStatus{Code: 7}
	}
	report, records := b.asking(func(stateDir string) {
		if !Listens(stateDir, b.opts.Folder.Session) || Listens(stateDir, "ses_none") {
			t.Error("who listens is told wrongly")
		}
		if out, r, err := b.command(stateDir, "hello"); err != nil || out != "hello" || r.Status.Code != 7 {
			t.Errorf("%q, %+v, %v", out, r, err)
		}
	})
	if report.ExitStatus != 0 {
		t.Errorf("the session ended with %d: %v", report.ExitStatus, report.Err)
	}
	var kinds []Kind
	for _, r := range records {
		if r.Kind != KindUserCommandStarted && r.Kind != KindUserCommandEnded {
			continue
		}
		kinds = append(kinds, r.Kind)
		if r.Actor != ActorUser || bytes.Contains(r.Payload, []byte(testKey)) {
			t.Errorf("record %+v", r)
		}
		if r.Kind == KindUserCommandEnded {
			var p UserCommandEnded
			if err := json.Unmarshal(r.Payload, &p); err != nil || p.ExitCode != 7 || p.Stdout.Bytes != 5 || p.ExecID == "" {
				t.Errorf("ended: %+v, %v", p, err)
			}
		}
	}
	if len(kinds) != 2 || kinds[0] != KindUserCommandStarted {
		t.Errorf("records: %v", kinds)
	}
	if Listens(filepath.Dir(filepath.Dir(b.opts.Folder.Dir)), b.opts.Folder.Session) {
		t.Error("the socket is left")
	}
}

// A sandbox that is lost under a user's command is 45 for the user, never an
// exit of the command, and ends the session as any loss does.
func TestUserCommandMeetsALoss(t *testing.T) {
	b := newBench(t, "")
	b.backend.scripts["die"] = func(_ context.Context, box *fakeBox, _ sandbox.Command) sandbox.ExitStatus {
		box.die(fmt.Errorf("gone: %w", sandbox.ErrLost))
		return sandbox.ExitStatus{}
	}
	report, records := b.asking(func(stateDir string) {
		_, r, err := b.command(stateDir, "die")
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != ExitSandboxLost || e.Mend == "" {
			t.Errorf("%+v, %v", r, err)
		}
	})
	if report.ExitStatus != ExitSandboxLost {
		t.Errorf("the session ended with %d", report.ExitStatus)
	}
	if ended := of[UserCommandEnded](t, records); len(ended) != 1 || ended[0].Error == "" || ended[0].ExitCode != -1 {
		t.Errorf("ended: %+v", ended)
	}
}

// A user's command ends with its session, which does not wait for it.
func TestUserCommandEndsWithItsSession(t *testing.T) {
	b := newBench(t, "")
	begun := make(chan struct{})
	b.backend.scripts["stay"] = func(ctx context.Context, _ *fakeBox, _ sandbox.Command) sandbox.ExitStatus {
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

// What nobody owns is 42, with what to do.
func TestUserCommandOfNoSession(t *testing.T) {
	for _, session := range []string{"ses_none", "../.."} {
		_, err := RunUserCommand(t.Context(), t.TempDir(), session, UserCommand{Argv: []string{"true"}, Stdout: io.Discard, Stderr: io.Discard})
		if e, ok := errors.AsType[*Error](err); !ok || e.Status != ExitInput || e.Mend == "" {
			t.Errorf("%s: %v", session, err)
		}
	}
}
