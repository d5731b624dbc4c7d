package runner

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
)

// adminProbe is a tool that requires an administrator.
type adminProbe struct{ ran *int }

func (adminProbe) Definition() tools.Definition {
	return tools.Definition{
		Name: "admin_probe", Description: "Probes.", Class: tools.ClassNone, Runs: tools.PlaceHost, EnabledByDefault: true, RequiresAdmin: true,
		InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
	}
}

func (p *adminProbe) Execute(context.Context, *tools.Call) (tools.Output, error) {
	*p.ran++
	return tools.Output{Success: true, Content: []tools.Block{{Text: "ran"}}}, nil
}

// TestToolsOfAnAdministrator lets two users take turns in one session: the tool runs only in the
// administrator's.
func TestToolsOfAnAdministrator(t *testing.T) {
	call := "  - calls: [{tool: admin_probe, input: {}}]\n  - text: Done.\n"
	b := newBench(t, call+call+call)
	b.opts.User = User{Name: "http:boss", Admin: true}
	s := b.opened()
	ran := 0
	if err := s.tools.Register(func() tools.Tool { return &adminProbe{&ran} }); err != nil {
		t.Fatal(err)
	}
	for i, turn := range []struct {
		user User
		want int
	}{{User{Name: "http:boss", Admin: true}, 1}, {User{Name: "http:other"}, 1}, {User{Name: "http:boss", Admin: true}, 2}} {
		started, err := s.StartFor(turn.user, "go", TurnOptions{})
		if err != nil {
			t.Fatal(err)
		}
		started.Report()
		if ran != turn.want {
			t.Errorf("after turn %d of %s it ran %d times, want %d", i+1, turn.user.Name, ran, turn.want)
		}
	}
	r := s.CloseFor("http:closer")
	records := b.records(r)
	var started []string
	for _, p := range of[record.TurnStarted](t, records) {
		started = append(started, p.Client)
	}
	if len(started) != 3 || started[0] != "http:boss" || started[1] != "http:other" {
		t.Errorf("turns are recorded as started by %q", started)
	}
	if got := of[record.SessionCreated](t, records)[0].Client; got != "http:boss" {
		t.Errorf("the session is recorded as started by %q", got)
	}
	if ended := of[record.SessionEnded](t, records)[0]; ended.Client != "http:closer" || len(ended.Denials) != 1 {
		t.Errorf("the session is recorded as ended by %q, with the denials %v", ended.Client, ended.Denials)
	}
}

// TestConcurrencyIsSettable lets a model make three calls at once, and counts how many run.
func TestConcurrencyIsSettable(t *testing.T) {
	for limit, want := range map[int]int{1: 1, 3: 3} {
		b := newBench(t, "  - calls: [{tool: together, input: {}}, {tool: together, input: {}}, {tool: together, input: {}}]\n  - text: Done.\n")
		b.opts.Concurrency = limit
		s := b.opened()
		p := &together{want: want, full: make(chan struct{})}
		if err := s.tools.Register(func() tools.Tool { return &togetherCall{p} }); err != nil {
			t.Fatal(err)
		}
		startTurn(t, s, "go")
		s.Close()
		if p.most != want {
			t.Errorf("with a concurrency of %d, %d calls ran at once", limit, p.most)
		}
	}
}

// together counts the calls that run at once. Each waits for the wanted number.
type together struct {
	mu              sync.Mutex
	now, most, want int
	full            chan struct{}
}

type togetherCall struct{ *together }

func (togetherCall) Definition() tools.Definition {
	return tools.Definition{
		Name: "together", Description: "Waits for others.", Class: tools.ClassNone, Runs: tools.PlaceHost, EnabledByDefault: true,
		InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
	}
}

func (p *togetherCall) Execute(ctx context.Context, _ *tools.Call) (tools.Output, error) {
	p.mu.Lock()
	p.now++
	if p.most = max(p.most, p.now); p.now == p.want && p.most == p.want {
		select {
		case <-p.full:
		default:
			close(p.full)
		}
	}
	p.mu.Unlock()
	select {
	case <-p.full:
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now--
	return tools.Output{Success: true}, nil
}

// TestWhoCancelledATurn ends a turn in each possible way.
func TestWhoCancelledATurn(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*Session, *Turn)
		want record.TurnCancelled
	}{
		"a user":          {func(_ *Session, t *Turn) { t.Cancel(&CancelledByUser{"http:alice"}) }, record.TurnCancelled{Reason: "cancelled", By: "user", Client: "http:alice"}},
		"a signal":        {func(_ *Session, t *Turn) { t.Cancel(&Interrupted{Signal: 15}) }, record.TurnCancelled{Reason: "terminated", By: "signal"}},
		"a user's ending": {func(s *Session, _ *Turn) { s.CloseFor("http:alice") }, record.TurnCancelled{Reason: "cancelled", By: "user", Client: "http:alice"}},
		"the session":     {func(s *Session, _ *Turn) { s.Close() }, record.TurnCancelled{Reason: "cancelled", By: "session"}},
	} {
		b := newBench(t, "")
		model := &blockedModel{make(chan struct{})}
		b.opts.Profiles = []loop.Profile{{Model: model}}
		s := b.opened()
		turn, err := s.Start("one")
		if err != nil {
			t.Fatal(err)
		}
		<-model.asked
		c.end(s, turn)
		turn.Report()
		got := of[record.TurnCancelled](t, b.records(s.Close()))
		if len(got) != 1 || got[0].Reason != c.want.Reason || got[0].By != c.want.By || got[0].Client != c.want.Client {
			t.Errorf("cancelled by %s: recorded %+v", name, got)
		}
	}
}
