package server

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
)

// TestServerStopsAtOnce asks a server to end, and then to end at once, while a
// command does not end, a container is being made, a question waits and a
// session is idle. Nothing is left of any.
func TestServerStopsAtOnce(t *testing.T) {
	force := make(chan struct{})
	w := newTestEnv(t, "  - calls: [{tool: shell, input: {command: cling}}]\n  - text: Never said.\n", func(o *Options) { o.Force = force })
	w.backend.clings = make(chan struct{})
	idle := w.startSession("bind")
	asking := w.startSession("bind")
	w.startTurn(asking, "go")
	w.waitForConfirmation(asking, w.followEvents(asking, ""))
	w.policy = "sandboxed"
	busy := w.startSession("bind")
	w.startTurn(busy, "go")
	<-w.backend.clings // it runs
	making := make(chan struct{})
	w.backend.OnCreate = func(ctx context.Context, _ int) error {
		close(making)
		<-ctx.Done()
		return context.Cause(ctx)
	}
	begins := w.startSession("bind")
	w.startTurn(begins, "go")
	<-making

	live := w.server.sessions.liveSession(busy)
	stopped := make(chan error, 1)
	go func() { stopped <- w.stop() }()
	<-w.backend.clings // it was asked to end
	for _, id := range []string{idle, asking, begins} {
		if s := w.server.sessions.liveSession(id); s != nil { // nothing holds it up
			<-s.closed
		}
	}
	// Control: a command that does not end outlasts the first request.
	select {
	case <-live.closed:
		t.Error("the session ended though its command didn't")
	case err := <-stopped:
		t.Errorf("the server ended though a command didn't: %v", err)
	default:
	}
	close(force)
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	w.backend.RequireGone(t)
	for _, id := range []string{idle, asking, busy, begins} {
		records := w.trace(id)
		if last := records[len(records)-1]; last.Kind != record.KindSessionEnded || len(payload[record.SessionEnded](t, last).Left) > 0 {
			t.Errorf("the trace of %s ends with %s", id, last.Payload)
		}
	}
	if ran := w.backend.commands(); len(ran) != 1 {
		t.Errorf("ran %q", ran)
	}
}

// A request that waits for something of its session, such as an image, does not
// hold up the end.
func TestServerStopsWhatIsBeingMade(t *testing.T) {
	waits := make(chan struct{})
	w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) {
		o.Prepare = func(ctx context.Context, _ NewSession) (runner.Options, func(), error) {
			close(waits)
			<-ctx.Done()
			return runner.Options{}, nil, context.Cause(ctx)
		}
	})
	var requests sync.WaitGroup
	requests.Go(func() {
		a, err := send(context.WithoutCancel(t.Context()), http.DefaultClient, w.base, aliceToken, "POST", "/sessions", fmt.Sprintf(`{"workspace":%q}`, w.dir))
		if err != nil {
			t.Error(err)
			return
		}
		a.requireProblem(t, 503, "stopping")
	})
	<-waits
	if err := w.stop(); err != nil {
		t.Error(err)
	}
	requests.Wait()
}

// If the server is asked to end, changes that are being applied are applied
// whole. If it is asked to end at once, they are cut short.
func TestServerStopsBehindAnApply(t *testing.T) {
	needRoot(t)
	for name, forced := range map[string]bool{"waits": false, "at once": true} {
		t.Run(name, func(t *testing.T) {
			force, applies, leave := make(chan struct{}), make(chan struct{}), make(chan struct{})
			w := newTestEnv(t, writes, func(o *Options) {
				o.Force = force
				o.Settle = func(ctx context.Context, _ string) error {
					close(applies)
					select {
					case <-leave:
						return nil
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				}
			})
			w.policy = "sandboxed"
			id := w.startSession("overlay")
			w.waitForTurn(id, w.startTurn(id, "go"))
			var applied answer
			var requests sync.WaitGroup
			requests.Go(func() {
				var err error
				if applied, err = send(context.WithoutCancel(t.Context()), http.DefaultClient, w.base, aliceToken, "POST", "/sessions/"+id+"/apply", "{}"); err != nil {
					t.Error(err)
				}
			})
			<-applies
			stopped := make(chan error, 1)
			go func() { stopped <- w.stop() }()
			<-w.server.sessions.ctx.Done()
			select {
			case err := <-stopped:
				t.Errorf("the server ended beside an apply: %v", err)
			default:
			}
			if forced {
				close(force)
			} else {
				close(leave)
			}
			if err := <-stopped; err != nil {
				t.Error(err)
			}
			requests.Wait()
			if want := map[bool]string{false: "new\n", true: ""}[forced]; w.read("a.txt") != want || (applied.status == 200) == forced {
				t.Errorf("a.txt is %q, want %q; answered %d %s", w.read("a.txt"), want, applied.status, applied.text)
			}
		})
	}
}

// A session whose preparation panics takes no slot, and the server can still
// stop.
func TestPanicOfPrepare(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) {
		prepare, first := o.Prepare, true
		o.MaxSessions = 1
		o.Prepare = func(ctx context.Context, in NewSession) (runner.Options, func(), error) {
			if first {
				first = false
				panic("by the test")
			}
			return prepare(ctx, in)
		}
	})
	w.post("/sessions", fmt.Sprintf(`{"workspace":%q}`, w.dir)).requireProblem(t, 500, "internal")
	w.startSession("bind")
	if err := w.stop(); err != nil {
		t.Error(err)
	}
}
