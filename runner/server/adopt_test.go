package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools/approval"
)

// conversation is a session that the test runs as a terminal does, and the server that
// adopted it.
type conversation struct {
	*testEnv
	id     string
	run    *runner.Session
	broker *approval.Broker
	// person answers on the terminal: it gets each question, and the cause with which
	// it is withdrawn.
	person    chan approval.Confirmation
	answers   chan approval.Answer
	withdrawn chan error

	mu      sync.Mutex
	running *runner.Turn
	mirror  func(record.Record, []byte)
	live    func(runner.Delta)
}

func (c *conversation) Approve(ctx context.Context, q approval.Confirmation) (approval.Answer, error) {
	c.person <- q
	select {
	case a := <-c.answers:
		return a, nil
	case <-ctx.Done():
		c.withdrawn <- context.Cause(ctx)
		return approval.Answer{}, context.Cause(ctx)
	}
}

func (c *conversation) start(u runner.User, message string, o runner.TurnOptions) (*runner.Turn, error) {
	t, err := c.run.StartFor(u, message, o)
	if err == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.running = t
	}
	return t, err
}

// newConversation opens a session.
func newConversation(t *testing.T, policy, turns string) *conversation {
	t.Helper()
	c := &conversation{testEnv: newTestEnv(t, turns), broker: approval.NewBroker(approval.BrokerOptions{}), person: make(chan approval.Confirmation, 1), answers: make(chan approval.Answer), withdrawn: make(chan error, 1)}
	c.policy = policy
	c.broker.Attach("terminal", c)
	o, done, err := c.prepare(t.Context(), NewSession{Workspace: c.dir, Mode: "bind"})
	if err != nil {
		t.Fatal(err)
	}
	o.Broker = c.broker
	o.Mirror = func(r record.Record, line []byte) {
		c.mu.Lock()
		mirror := c.mirror
		c.mu.Unlock()
		if mirror != nil {
			mirror(r, line)
		}
	}
	if c.run, err = runner.Open(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	c.id = o.Dir.Session
	t.Cleanup(func() {
		c.run.Close()
		done()
	})
	return c
}

// adopt serves the session from now on.
func (c *conversation) adopt() {
	c.t.Helper()
	if err := c.stop(); err != nil { // the server of testEnv
		c.t.Fatal(err)
	}
	srv, err := Adopt(Adoption{
		StateDir: c.state, ID: c.id, Dir: sessiondir.Path(c.state, c.id), Session: c.run, Broker: c.broker, Token: Token{"alice", aliceToken, []Role{RoleAdmin}},
		Running: func() *runner.Turn {
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.running
		},
		Start: c.start,
		Install: func(mirror func(record.Record, []byte), live func(runner.Delta)) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.mirror, c.live = mirror, live
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	l, err := Listen(c.t.Context(), "127.0.0.1:0", false)
	if err != nil {
		c.t.Fatal(err)
	}
	c.server, c.base = srv, "http://"+l.Addr().String()
	ctx, cancel := context.WithCancelCause(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, l) }()
	c.stop = sync.OnceValue(func() error {
		cancel(errors.New("the conversation ends"))
		return <-ended
	})
}

const asksTwice = `
  - calls: [{tool: shell, input: {command: "write one.txt hello"}}]
  - calls: [{tool: shell, input: {command: "write two.txt hello"}}]
  - text: Done.
`

// A question that waits when the session is adopted is listed, and disappears from the
// terminal when it is answered over HTTP, with the client's name. Later ones are
// answered on the terminal, and are then no longer listed.
func TestAdoptedQuestions(t *testing.T) {
	c := newConversation(t, "default", asksTwice)
	turn, err := c.start(runner.User{Name: "terminal", Admin: true}, "go", runner.TurnOptions{})
	if err != nil {
		t.Fatal(err)
	}
	asked := <-c.person
	c.adopt()
	var list ConfirmationList
	c.get("/sessions/"+c.id+"/confirmations").requireStatus(t, 200).decodeInto(t, &list)
	if len(list.Confirmations) != 1 || list.Confirmations[0].ID != asked.ID || list.Confirmations[0].Turn != turn.ID {
		t.Fatalf("listed %+v, asked %s in turn %s", list, asked.ID, turn.ID)
	}
	path := "/sessions/" + c.id + "/turns/" + turn.ID + "/confirmations/"
	c.post(path+asked.ID, `{"decision":"allow"}`).requireStatus(t, 200)
	late, ok := errors.AsType[*approval.ResolvedError](<-c.withdrawn)
	if !ok || late.Resolution.Client != "http:alice" || late.Resolution.Decision != approval.DecisionAllow {
		t.Errorf("the terminal hears of %+v", late)
	}
	second := <-c.person
	for c.waiting() == 0 { // its record may not be written yet
		time.Sleep(time.Millisecond)
	}
	c.answers <- approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}
	p := c.post(path+second.ID, `{"decision":"allow"}`).requireProblem(t, 409, "resolved")
	if p.Resolution == nil || p.Resolution.Client != "terminal" || p.Resolution.Decision != approval.DecisionDeny {
		t.Errorf("the late answer got %+v", p)
	}
	if n := c.waiting(); n != 0 {
		t.Errorf("%d questions wait", n)
	}
	if r := turn.Report(); r.Answer != "Done." || !slices.Equal(c.backend.commands(), []string{"write one.txt hello"}) {
		t.Errorf("the turn ended as %+v after %q", r, c.backend.commands())
	}
	if err := c.stop(); err != nil {
		t.Error(err)
	}
}

func (c *conversation) waiting() int {
	c.t.Helper()
	var v Session
	c.get("/sessions/"+c.id).requireStatus(c.t, 200).decodeInto(c.t, &v)
	return v.Waiting
}

// The server of an adopted session shows it from its first record on, takes messages and
// stops turns. It shows and starts nothing else, and leaves the session to the terminal.
func TestAdoptedSession(t *testing.T) {
	c := newConversation(t, "sandboxed", "  - text: First.\n  - text: Second.\n  - calls: [{tool: shell, input: {command: hang}}]\n  - text: Fourth.\n")
	other := c.startSession("bind")
	terminal := runner.User{Name: "terminal", Admin: true}
	first, err := c.start(terminal, "begin\nhere", runner.TurnOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first.Report()
	c.adopt()
	var v Session
	c.get("/sessions/"+c.id).requireStatus(t, 200).decodeInto(t, &v)
	if v.State != StateIdle || v.Title != "begin …" || v.Workspace != c.dir || v.Mode != "bind" || *v.Turns != 1 || v.Seq < 5 || v.Begun.IsZero() || time.Since(v.Begun) > time.Minute {
		t.Errorf("shown as %+v", v)
	}
	var past Turn
	c.get("/sessions/"+c.id+"/turns/"+first.ID).requireStatus(t, 200).decodeInto(t, &past)
	if past.Answer != "First." || past.State != TurnEnded {
		t.Errorf("the turn before: %+v", past)
	}
	var list SessionList
	c.get("/sessions").requireStatus(t, 200).decodeInto(t, &list)
	if len(list.Sessions) != 1 || list.Sessions[0].ID != c.id {
		t.Errorf("listed %+v", list)
	}
	if ids, err := c.server.Sessions(); err != nil || !slices.Equal(ids, []string{c.id}) {
		t.Errorf("sessions %q, %v", ids, err)
	}
	workspace := fmt.Sprintf(`{"workspace":%q}`, c.dir)
	for _, refused := range []struct {
		method, path, body string
		status             int
		code               string
	}{
		{"GET", "/sessions/" + other, "", 404, "no_session"},
		{"GET", "/sessions/" + other + "/events", "", 404, "no_session"},
		{"POST", "/sessions/" + other + "/resume", "{}", 404, "no_session"},
		{"POST", "/sessions", workspace, 409, "terminal"},
		{"POST", "/sandboxes", workspace, 409, "terminal"},
		{"POST", "/sessions/" + c.id + "/resume", "{}", 409, "live"},
		{"POST", "/sessions/" + c.id + "/apply", "{}", 409, "terminal"},
		{"POST", "/sessions/" + c.id + "/turns", `{"continue":true}`, 409, "terminal"},
		{"DELETE", "/sessions/" + c.id, "", 409, "terminal"},
		{"DELETE", "/sandboxes/" + c.id, "", 404, "no_sandbox"},
	} {
		c.do(aliceToken, refused.method, refused.path, refused.body).requireProblem(t, refused.status, refused.code)
	}
	if got := c.waitForTurn(c.id, c.startTurn(c.id, "from the page")); got.Answer != "Second." {
		t.Errorf("a turn from the page: %+v", got)
	}
	hanging, err := c.start(terminal, "hang", runner.TurnOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f := c.followEvents(c.id, "")
	f.until(record.KindToolCalled)
	c.post("/sessions/"+c.id+"/turns", `{"message":"more"}`).requireProblem(t, 409, "busy")
	c.post("/sessions/"+c.id+"/turns/trn_00000000000000000000000000/cancel", "").requireProblem(t, 404, "no_turn")
	c.post("/sessions/"+c.id+"/turns/"+hanging.ID+"/cancel", "").requireStatus(t, 200)
	if r := hanging.Report(); r.Reason != "cancelled" {
		t.Errorf("the turn of the terminal ended as %+v", r)
	}
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	last, err := c.start(terminal, "on the terminal", runner.TurnOptions{})
	if err != nil || last.Report().Answer != "Fourth." {
		t.Errorf("after the server's end: %v", err)
	}
	c.run.Close()
	by := []string{}
	for _, r := range c.trace(c.id) {
		switch r.Kind {
		case record.KindTurnStarted:
			by = append(by, payload[record.TurnStarted](t, r).Client)
		case record.KindTurnCancelled:
			by = append(by, "cancelled by "+payload[record.TurnCancelled](t, r).Client)
		}
	}
	if want := []string{"terminal", "http:alice", "terminal", "cancelled by http:alice", "terminal"}; !slices.Equal(by, want) {
		t.Errorf("recorded %q, want %q", by, want)
	}
}

// Records that are written while the earlier ones are read come once, in order.
func TestRecordsAreJoined(t *testing.T) {
	c := newConversation(t, "default", strings.Repeat("  - text: Again.\n", 3))
	for range 3 {
		turn, err := c.start(runner.User{Name: "terminal"}, "go", runner.TurnOptions{})
		if err != nil {
			t.Fatal(err)
		}
		turn.Report()
	}
	records := c.trace(c.id)
	n := len(records)
	live := newSession(c.server.diagnostics, "", client{})
	live.dir = sessiondir.Path(c.state, c.id)
	sub, leave := live.feed.subscribe()
	defer leave()
	j := &joinedRecords{live: live}
	later := func(seq int64) record.Record { r := records[n-1]; r.Seq = seq; return r }
	j.observe(records[n-1], nil) // it is in the file, too
	j.observe(later(int64(n+1)), nil)
	if got := live.feed.lastSeq(); got != 0 {
		t.Errorf("record %d came before those of the file", got)
	}
	if err := j.load(); err != nil {
		t.Fatal(err)
	}
	if got := live.feed.lastSeq(); got != int64(n+1) || len(sub.wake) != 1 || !live.begun.Equal(records[0].Time) {
		t.Errorf("the last record is %d of %d, begun %s", got, n+1, live.begun)
	}
	j.observe(later(int64(n+2)), nil)
	j.observe(later(int64(n+1)), nil)
	if got := live.feed.lastSeq(); got != int64(n+2) {
		t.Errorf("after that, the last record is %d", got)
	}

	// After a failure, nobody needs the records.
	live.dir = t.TempDir()
	j = &joinedRecords{live: live}
	j.observe(later(int64(n+3)), nil)
	if err := j.load(); err == nil {
		t.Error("records that don't exist are loaded")
	}
	j.observe(later(int64(n+4)), nil)
	if got := live.feed.lastSeq(); got != int64(n+2) || len(j.waiting) > 0 {
		t.Errorf("after a failure the last record is %d, and %d wait", got, len(j.waiting))
	}
}
