//go:build linux

package runner

import (
	"context"
	"encoding/json"
	"testing"

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

// TestToolsOfAnAdministrator has two users take turns in one session: the tool
// runs in the administrator's turns only.
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
		started, err := s.StartFor(turn.user, "go")
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
	for _, p := range of[TurnStarted](t, records) {
		started = append(started, p.Client)
	}
	if len(started) != 3 || started[0] != "http:boss" || started[1] != "http:other" {
		t.Errorf("turns are recorded as started by %q", started)
	}
	if got := of[SessionCreated](t, records)[0].Client; got != "http:boss" {
		t.Errorf("the session is recorded as started by %q", got)
	}
	if ended := of[SessionEnded](t, records)[0]; ended.Client != "http:closer" || len(ended.Denials) != 1 {
		t.Errorf("the session is recorded as ended by %q, with the denials %v", ended.Client, ended.Denials)
	}
}

// TestWhoCancelledATurn ends a turn in each way that there is.
func TestWhoCancelledATurn(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(*Session, *Turn)
		want TurnCancelled
	}{
		"a user":          {func(_ *Session, t *Turn) { t.Cancel(&CancelledByUser{"http:alice"}) }, TurnCancelled{Reason: "cancelled", By: "user", Client: "http:alice"}},
		"a signal":        {func(_ *Session, t *Turn) { t.Cancel(&Interrupted{Signal: 15}) }, TurnCancelled{Reason: "terminated", By: "signal"}},
		"a user's ending": {func(s *Session, _ *Turn) { s.CloseFor("http:alice") }, TurnCancelled{Reason: "cancelled", By: "user", Client: "http:alice"}},
		"the session":     {func(s *Session, _ *Turn) { s.Close() }, TurnCancelled{Reason: "cancelled", By: "session"}},
	} {
		b := newBench(t, "")
		model := &blockedModel{make(chan struct{})}
		b.opts.Model = model
		s := b.opened()
		turn, err := s.Start("one")
		if err != nil {
			t.Fatal(err)
		}
		<-model.asked
		c.end(s, turn)
		turn.Report()
		got := of[TurnCancelled](t, b.records(s.Close()))
		if len(got) != 1 || got[0].Reason != c.want.Reason || got[0].By != c.want.By || got[0].Client != c.want.Client {
			t.Errorf("cancelled by %s: recorded %+v", name, got)
		}
	}
}
