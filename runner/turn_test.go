package runner

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// opened opens the bench's session, which the test closes.
func (b *bench) opened() *Session {
	b.t.Helper()
	s, err := Open(b.t.Context(), b.opts)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { s.Close() })
	return s
}

func (b *bench) records(r Report) []record.Record {
	b.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.Dir, record.TraceFile))
	if err != nil {
		b.t.Fatal(err)
	}
	trace, err := record.ReadTrace(bytes.NewReader(text))
	if err != nil {
		b.t.Fatal(err)
	}
	return trace.Records
}

// takes gives a session the bench's task and closes it.
func (b *bench) takes(s *Session) Report {
	b.t.Helper()
	startTurn(b.t, s, b.opts.Task)
	return s.Close()
}

func startTurn(t *testing.T, s *Session, message string) TurnReport {
	t.Helper()
	turn, err := s.Start(message)
	if err != nil {
		t.Fatal(err)
	}
	return turn.Report()
}

func TestTurnsShareOneSandboxAndHistory(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: echo}}]\n  - text: First.\n  - text: Second.\n")
	s := b.opened()
	first, second := startTurn(t, s, "one"), startTurn(t, s, "two")
	if first.Answer != "First." || second.Answer != "Second." || first.Usage.Rounds != 2 || second.Usage.Rounds != 1 {
		t.Errorf("turns gave %+v and %+v", first, second)
	}
	r := s.Close()
	b.backend.RequireGone(t)
	if r.Answer != "Second." || r.ExitStatus != 0 || r.Usage.Rounds != 3 {
		t.Errorf("session ended %s (%d), %d rounds: %q", r.Reason, r.ExitStatus, r.Usage.Rounds, r.Answer)
	}
	records := b.records(r)
	if n := len(of[record.SandboxStarted](t, records)); n != 1 {
		t.Errorf("%d sandboxes", n)
	}
	var texts []string
	for _, m := range of[record.Message](t, records) {
		for _, block := range m.Blocks {
			if m.Role == loop.RoleUser && block.Text != nil {
				texts = append(texts, block.Text.Text)
			}
		}
	}
	if diff := cmp.Diff([]string{"one", "two"}, texts); diff != "" {
		t.Errorf("users' messages (-want +got):\n%s", diff)
	}
	ended := of[record.TurnCompleted](t, records)
	if len(ended) != 2 || ended[0].ModelCalls != 2 || ended[0].ToolCalls != 1 || ended[1].ModelCalls != 1 || ended[1].ToolCalls != 0 {
		t.Errorf("turns are recorded as %+v", ended)
	}
}

func TestOneTurnAtATime(t *testing.T) {
	b := newBench(t, "")
	model := &blockedModel{make(chan struct{})}
	b.opts.Profiles = []loop.Profile{{Model: model}}
	s := b.opened()
	turn, err := s.Start("one")
	if err != nil {
		t.Fatal(err)
	}
	<-model.asked
	if _, err := s.Start("two"); !errors.Is(err, ErrBusy) {
		t.Errorf("a second turn: %v", err)
	}
	if st := s.Status(); st.Turn != turn.ID {
		t.Errorf("status %+v", st)
	}
	turn.Cancel(errors.New("user cancelled"))
	if got := turn.Report(); got.Reason != loop.StopCancelled {
		t.Errorf("ended %s", got.Reason)
	}
	// The session continues after a cancelled turn.
	b.opts.Profiles, s.opts.Profiles = nil, []loop.Profile{{Model: player(t, "  - text: Yes.\n")}}
	if got := startTurn(t, s, "still there?"); got.Answer != "Yes." {
		t.Errorf("answered %q (%s)", got.Answer, got.Reason)
	}
}

// awaitedContext closes awaited when somebody first waits for its end.
type awaitedContext struct {
	context.Context
	once    sync.Once
	awaited chan struct{}
}

func (c *awaitedContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.awaited) })
	return c.Context.Done()
}

func TestClosingASession(t *testing.T) {
	t.Run("without a turn", func(t *testing.T) {
		b := newBench(t, "  - text: Never asked.\n")
		b.opts.Force = make(chan struct{}) // TestMain finds a goroutine that still waits for it
		s := b.opened()
		r := s.Close()
		if r.Reason != StopNoTurn || r.ExitStatus != 0 || len(b.records(r)) != 2 {
			t.Errorf("ended %s (%d) with %d records", r.Reason, r.ExitStatus, len(b.records(r)))
		}
		if _, err := s.Start("late"); !errors.Is(err, ErrOver) {
			t.Errorf("a turn after the end: %v", err)
		}
		if cause := context.Cause(s.ctx); !errors.Is(cause, errClosed) {
			t.Errorf("the session's context ended with %v", cause)
		}
		if again := s.Close(); again.Session != r.Session || s.Status().Over == "" {
			t.Errorf("closed again: %+v", again)
		}
	})
	t.Run("while a turn runs", func(t *testing.T) {
		b := newBench(t, "")
		model := &blockedModel{make(chan struct{})}
		b.opts.Profiles = []loop.Profile{{Model: model}}
		s := b.opened()
		if _, err := s.Start("one"); err != nil {
			t.Fatal(err)
		}
		<-model.asked
		if r := s.Close(); r.Reason != loop.StopCancelled {
			t.Errorf("ended %s", r.Reason)
		}
		b.backend.RequireGone(t)
	})
	t.Run("while others look", func(t *testing.T) {
		b, _ := countStarts(t, readTurn+lastTurn, nil)
		usePolicy(t, b, "readonly") // no sandbox starts, so that the look waits
		s := b.opened()
		startTurn(t, s, "one")
		looks := &awaitedContext{Context: s.calls.closing, awaited: make(chan struct{})}
		s.calls.closing = looks
		looked := make(chan error)
		go func() {
			_, err := s.Differences(context.Background())
			looked <- err
		}()
		<-looks.awaited
		s.calls.running.Add(1) // another one, which does not end yet
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			s.Close()
		}()
		if err := <-looked; !errors.Is(err, ErrOver) {
			t.Errorf("the look ended with %v", err)
		}
		select {
		case <-closed:
			t.Error("closed before the looks ended")
		case <-time.After(50 * time.Millisecond):
		}
		s.calls.running.Done()
		<-closed
	})
}

// TestStartRefusesATurn: a turn needs a message and a session that is not over. A session cancelled
// before its first turn records that in this turn.
func TestStartRefusesATurn(t *testing.T) {
	b := newBench(t, "  - text: First.\n  - text: Never asked.\n")
	ctx, cancel := context.WithCancelCause(t.Context())
	s, err := Open(ctx, b.opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(""); err == nil || errors.Is(err, ErrOver) || errors.Is(err, ErrBusy) {
		t.Errorf("no message: %v", err)
	}
	if got := startTurn(t, s, "one"); got.Reason != loop.StopAnswered {
		t.Fatalf("the first turn: %+v", got)
	}
	if over := s.Status().Over; over != "" {
		t.Errorf("over: %s", over)
	}
	gone := errors.New("the caller is gone")
	cancel(gone)
	if _, err := s.Start("two"); !errors.Is(err, ErrOver) || !errors.Is(err, gone) {
		t.Errorf("a turn of a cancelled session: %v", err)
	}
	if st := s.Status(); st.Over != gone.Error() || st.Turns != 1 {
		t.Errorf("status %+v", st)
	}
	s.Close()
	if over := s.Status().Over; over != "closed" {
		t.Errorf("over: %s", over)
	}

	s, err = Open(ctx, newBench(t, "  - text: Never asked.\n").opts)
	if err != nil {
		t.Fatal(err)
	}
	if got := startTurn(t, s, "one"); got.Reason != loop.StopCancelled {
		t.Errorf("the first turn of a cancelled session: %+v", got)
	}
	s.Close()
}

// TestStatusOfASession checks the status before, between and after turns.
func TestStatusOfASession(t *testing.T) {
	call := "  - calls: [{tool: shell, input: {command: stick}}]\n"
	b := newBench(t, call+call+"  - text: First.\n  - text: Second.\n")
	b.backend.Scripts["stick"] = fakesandbox.WriteText("stuck\n")
	b.backend.Unkillable = map[string]int{"stick": 1}
	s := b.opened()
	if st := s.Status(); st.Turn != "" || st.Turns != 0 || st.Last != nil || st.Attestation != nil || st.Restarts != 0 || st.Over != "" || st.Usage.Rounds != 0 {
		t.Errorf("before: %+v", st)
	}
	first := startTurn(t, s, "one")
	st := s.Status()
	if st.Turn != "" || st.Turns != 1 || st.Last == nil || st.Last.Turn != first.Turn || st.Attestation == nil || st.Restarts != 2 || st.Usage.Rounds != 3 {
		t.Errorf("between: %+v", st)
	}
	second := startTurn(t, s, "two")
	if st := s.Status(); st.Turns != 2 || st.Last.Turn != second.Turn || st.Usage.Rounds != 4 {
		t.Errorf("after: %+v", st)
	}
}

// TestTimeOfTurns: the first turn's time counts from the session's beginning, others' from their own.
func TestTimeOfTurns(t *testing.T) {
	b := newBench(t, "  - text: First.\n  - text: Second.\n")
	b.opts.Budget.WallTime = new(24 * time.Hour)
	s := b.opened()
	s.turns.begun = s.turns.begun.Add(-time.Hour)
	hour := time.Hour.Milliseconds()
	if first, second := startTurn(t, s, "one"), startTurn(t, s, "two"); first.WallMS < hour || second.WallMS >= hour {
		t.Errorf("the turns took %d and %d ms", first.WallMS, second.WallMS)
	}
}

// TestLimitsInRecords checks that each turn's records have its limits: the session's, the rest of
// these, and a client's lower ones.
func TestLimitsInRecords(t *testing.T) {
	call := "  - calls: [{tool: list_dir, input: {path: .}}]\n  - text: Done.\n"
	b := newBench(t, call+"  - text: Done.\n")
	b.opts.Budget = limits.Budget{Rounds: new(int64(50)), Tokens: new(int64(9000)), WallTime: new(time.Hour)}
	b.opts.SessionBudget = limits.Budget{ToolCalls: new(int64(7))}
	s := b.opened()
	startTurn(t, s, "one")
	second, err := s.StartFor(s.opts.User, "two", TurnOptions{Budget: limits.Budget{Rounds: new(int64(5)), WallTime: new(time.Minute)}})
	if err != nil {
		t.Fatal(err)
	}
	second.Report()
	var got []record.Budget
	for _, p := range of[record.TurnStarted](t, b.records(s.Close())) {
		got = append(got, p.Budget)
	}
	want := []record.Budget{
		{Rounds: new(int64(50)), ToolCalls: new(int64(7)), Tokens: new(int64(9000)), WallTimeMS: new(int64(3_600_000))},
		{Rounds: new(int64(5)), ToolCalls: new(int64(6)), Tokens: new(int64(9000)), WallTimeMS: new(int64(60_000))},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
}

// TestModelIsToldOfTheNetwork checks that the system prompt and shell's description agree on whether
// commands have a network.
func TestModelIsToldOfTheNetwork(t *testing.T) {
	for network, p := range map[bool]*rule.Policy{false: nil, true: {}} {
		b := newBench(t, lastTurn)
		b.opts.Egress.Policy = p
		s := b.opened()
		var o loop.Options
		s.configureModel(&o)
		shell, _ := s.tools.Lookup(string(tools.NameShell))
		for _, text := range []string{string(o.System), shell.Description} {
			none := strings.Contains(text, "is no network in it") || strings.Contains(text, "without network")
			if none == network || strings.Contains(text, "network access that the operator allowed") != network {
				t.Errorf("network %t: %s", network, text)
			}
		}
		s.Close()
	}
}
