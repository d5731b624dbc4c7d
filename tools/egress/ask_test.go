package egress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// person answers questions, when the test has said how.
type person struct {
	mu      sync.Mutex
	asked   []Question
	open    int
	maxOpen int
	ended   int // questions whose context ended
	answers chan Answer
}

func (p *person) ask(ctx context.Context, q Question) (Answer, error) {
	p.mu.Lock()
	p.asked = append(p.asked, q)
	p.open++
	p.maxOpen = max(p.maxOpen, p.open)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.open--
		p.mu.Unlock()
	}()
	select {
	case a := <-p.answers:
		return a, nil
	case <-ctx.Done():
		p.mu.Lock()
		p.ended++
		p.mu.Unlock()
		return Answer{Verdict: VerdictAlways}, nil // late
	}
}

func (p *person) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.asked)
}

// tryLocal tries a canary by a name of this machine, as a command.
func (f *fixture) tryLocal(command int, c *canary) outcome {
	conn := f.connectTo(fmt.Sprintf("127.80.0.%d:61080", command), nil)
	defer func() { _ = conn.Close() }()
	at := fmt.Sprintf("localhost:%d", c.port)
	_, _ = fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", at, at)
	return readAnswer(conn)
}

// TestOneQuestion checks that many connections wait for one question, and how far its
// answer reaches.
func TestOneQuestion(t *testing.T) {
	for name, tt := range map[string]struct {
		answer                 Answer
		same, other, otherPort bool // whether later connections are asked about
		reached                bool
	}{
		"once":            {Answer{Verdict: VerdictOnce}, false, true, true, true},
		"always":          {Answer{Verdict: VerdictAlways}, false, false, true, true},
		"deny":            {Answer{Verdict: VerdictDeny}, false, false, true, false},
		"deny, no person": {Answer{Verdict: VerdictDeny, Unasked: true}, true, true, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			first, second := newCanary(t, "127.0.0.1:0"), newCanary(t, "127.0.0.1:0")
			p := &person{answers: make(chan Answer)}
			f := newFixture(t, func(o *Options) { o.Guard, o.Ask = allowLoopback(t), p.ask })
			var wg sync.WaitGroup
			var reached, refused atomic.Int64
			conns := int64(10)
			if tt.answer.Unasked {
				conns = 1 // a later one would be asked about again
			}
			for range conns {
				wg.Go(func() {
					switch got := f.tryLocal(1, first); {
					case got.reached:
						reached.Add(1)
					case got.typed == rule.ReasonAskedDenied:
						refused.Add(1)
					}
				})
			}
			awaitTrue(t, "asked", func() bool { return p.count() == 1 })
			if first.hits.Load() != 0 {
				t.Error("connected before there was an answer")
			}
			tt.answer.Reason = "because"
			p.answers <- tt.answer
			wg.Wait()
			if want := map[bool]int64{true: conns}[tt.reached]; reached.Load() != want || refused.Load() != conns-want || p.count() != 1 {
				t.Errorf("%d reached, %d refused, %d questions", reached.Load(), refused.Load(), p.count())
			}
			q := p.asked[0]
			if q.Host != "localhost" || q.Display != "localhost" || q.Port != first.port || q.Command != 1 || q.Rule != fmt.Sprintf("tcp://localhost:%d", first.port) {
				t.Errorf("asked %+v", q)
			}
			for what, again := range map[string]struct {
				command int
				at      *canary
				asks    bool
			}{"same command": {1, first, tt.same}, "other command": {2, first, tt.other}, "other port": {1, second, tt.otherPort}} {
				before := p.count()
				done := make(chan outcome)
				go func() { done <- f.tryLocal(again.command, again.at) }()
				select {
				case got := <-done:
					if again.asks || got.reached != tt.reached {
						t.Errorf("%s: %+v, asked %v", what, got, p.count() > before)
					}
				case p.answers <- Answer{Verdict: VerdictDeny, Unasked: tt.answer.Unasked}:
					if got := <-done; !again.asks || got.reached {
						t.Errorf("%s was asked about: %+v", what, got)
					}
				}
			}
		})
	}
}

// TestQuestionBounds is attack 28: a flood of questions, and questions that must not
// be asked.
func TestQuestionBounds(t *testing.T) {
	p := &person{answers: make(chan Answer)}
	f := newFixture(t, func(o *Options) {
		o.Guard, o.Ask = allowLoopback(t), p.ask
		o.Policy.Deny = newPolicy(t, "tcp://*.denied.test:*", "https://partly.test/secret/", "tls://named.test:8443").Allow
	})
	connect := func(host string) *http.Response {
		res, _, conn := f.send("CONNECT " + host + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
		_ = conn.Close()
		return res
	}
	for _, host := range []string{"x.denied.test:443", "partly.test:443", "named.test:443", "93.184.216.34:443", "127.0.0.1:80", "[2606:4700::1111]:443", "127.1:80"} {
		if res := connect(host); res.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s", host, res.Status)
		}
	}
	if p.count() != 0 {
		t.Errorf("asked %+v", p.asked)
	}
	var wg sync.WaitGroup
	var tooMany atomic.Int64
	for i := range 10 {
		wg.Go(func() {
			if detailsOf(connect(fmt.Sprintf("h%d.invalid:443", i))) == rule.ReasonTooManyQuestions {
				tooMany.Add(1)
			}
		})
	}
	awaitTrue(t, "four questions, six refusals", func() bool { return p.count() == maxOpenQuestions && tooMany.Load() == 6 })
	for range maxOpenQuestions {
		p.answers <- Answer{Verdict: VerdictDeny}
	}
	wg.Wait()
	for i := range maxQuestions - maxOpenQuestions {
		go func() { p.answers <- Answer{Verdict: VerdictDeny} }()
		if got := detailsOf(connect(fmt.Sprintf("g%d.invalid:443", i))); got != rule.ReasonAskedDenied {
			t.Errorf("question %d: %s", i, got)
		}
	}
	if got := detailsOf(connect("last.invalid:443")); got != rule.ReasonTooManyQuestions || p.count() != maxQuestions || p.maxOpen > maxOpenQuestions {
		t.Errorf("%s, %d questions, %d at once", got, p.count(), p.maxOpen)
	}
}

// TestQuestionText checks what people are shown: both spellings, and the rule.
func TestQuestionText(t *testing.T) {
	p := &person{answers: make(chan Answer)}
	f := newFixture(t, func(o *Options) { o.Ask = p.ask })
	for host, want := range map[string]Question{
		"xn--pypal-4ve.invalid:443":   {Host: "xn--pypal-4ve.invalid", Display: "pаypal.invalid", Port: 443, Command: 7, Rule: "tls://xn--pypal-4ve.invalid"},
		"EXAMPLE.invalid.:22":         {Host: "example.invalid", Display: "example.invalid", Port: 22, Command: 7, Rule: "tcp://example.invalid:22"},
		"xn--bcher-kva.invalid:65535": {Host: "xn--bcher-kva.invalid", Display: "bücher.invalid", Port: 65535, Command: 7, Rule: "tcp://xn--bcher-kva.invalid:65535"},
	} {
		go func() { p.answers <- Answer{Verdict: VerdictDeny} }()
		_, _, conn := f.send("CONNECT " + host + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
		_ = conn.Close()
		if got := p.asked[len(p.asked)-1]; got != want {
			t.Errorf("asked %+v, want %+v", got, want)
		}
	}
}

// TestLateAnswer is attack 28: an answer that comes when no connection waits any
// more allows nothing.
func TestLateAnswer(t *testing.T) {
	canary := newCanary(t, "127.0.0.1:0")
	release := make(chan struct{})
	var asked atomic.Int64
	f := newFixture(t, func(o *Options) {
		o.Guard = allowLoopback(t)
		o.Ask = func(context.Context, Question) (Answer, error) {
			if asked.Add(1) == 1 {
				<-release
				return Answer{Verdict: VerdictAlways}, nil
			}
			return Answer{}, errors.New("gone")
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	program := make(chan outcome)
	var served sync.WaitGroup
	conn := f.connectTo(proxyAddr, func(c *testConn) { // a command that ends
		served.Go(func() {
			<-ctx.Done()
			_ = c.Close()
		})
	})
	_ = conn
	r := request{way: WayConnect, host: "localhost", port: canary.port, command: 1, userKnown: true}
	decide := func(p *rule.Policy) rule.Decision { return p.DecideHost(r.host, r.port) }
	go func() {
		_, err := f.admitRequest(ctx, r, decide)
		program <- outcome{reached: err == nil}
	}()
	awaitTrue(t, "asked", func() bool { return asked.Load() == 1 })
	cancel()
	if got := <-program; got.reached {
		t.Error("admitted without an answer")
	}
	close(release)
	served.Wait()
	time.Sleep(50 * time.Millisecond)
	if got := f.tryLocal(1, canary); got.reached || asked.Load() != 2 {
		t.Errorf("after a late answer: %+v, %d questions", got, asked.Load())
	}
}

// TestUploadBudget is attack 27: concurrent uploads send exactly what the budget has.
func TestUploadBudget(t *testing.T) {
	var arrived atomic.Int64
	server := startCounting(t, &arrived)
	const budget = 1<<20 + 12345
	f := newFixture(t, func(o *Options) {
		o.Guard = allowLoopback(t)
		o.Budget = newBudget(t, limits.EgressBudget{Bytes: 1 << 30, Upload: budget, Hosts: 10})
	}, "tcp://"+server)
	var wg sync.WaitGroup
	for range 16 {
		_, conn := f.tunnel(server)
		wg.Go(func() {
			buf := make([]byte, 33333)
			for {
				if _, err := conn.Write(buf); err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	f.wg.Wait()
	// The budget resets connections, so some bytes may not have arrived.
	if sent, _ := f.movedBytes(); arrived.Load() == 0 || arrived.Load() > budget || sent != budget {
		t.Errorf("%d bytes arrived, %d counted, the budget is %d", arrived.Load(), sent, budget)
	}
	d := f.Denials(7)
	if len(d) != 1 || d[0].Reason != string(limits.KindEgressUpload) || d[0].Count != 16 {
		t.Errorf("reported %+v", d)
	}
	if res, _, _ := f.send("CONNECT " + server + " HTTP/1.1\r\nHost: " + server + "\r\n\r\n"); res.StatusCode != 200 {
		t.Errorf("downloads are still allowed: %s", res.Status)
	}
}

// TestBudgets checks the other bounds, each by the program's answer and the report.
func TestBudgets(t *testing.T) {
	canary := newCanary(t, "127.0.0.1:0")
	for want, b := range map[limits.Kind]limits.EgressBudget{
		limits.KindEgressConnections: {Bytes: 1 << 20, Hosts: 10, Connections: 1},
		limits.KindEgressBytes:       {Bytes: 200, Hosts: 10},
		limits.KindEgressUpload:      {Bytes: 1 << 20, Hosts: 10, Upload: 20},
	} {
		f := newFixture(t, func(o *Options) { o.Guard, o.Budget = allowLoopback(t), newBudget(t, b) }, hostURL(canary.addr), "tcp://"+canary.addr)
		for _, way := range allWays[:3] {
			got := outcome{reached: true}
			for range 3 { // the first ones may use the budget up
				if got.reached {
					got = f.try(way, "127.0.0.1", int(canary.port))
				}
			}
			if got.reached || got.reason != string(want) {
				t.Errorf("%s: %s got %+v", want, way, got)
			}
		}
		if sent, received := f.movedBytes(); sent+received > b.Bytes || b.Upload > 0 && sent > b.Upload {
			t.Errorf("%s: %d bytes sent, %d received", want, sent, received)
		}
	}
	f := newFixture(t, func(o *Options) {
		o.Guard, o.Budget = allowLoopback(t), newBudget(t, limits.EgressBudget{Bytes: 1 << 20, Hosts: 1})
	}, "public", "tcp://127.0.0.1:*", "tcp://localhost:*")
	if got := f.try(WayConnect, "127.0.0.1", int(canary.port)); !got.reached {
		t.Errorf("first host: %+v", got)
	}
	if got := f.try(WayConnect, "localhost", int(canary.port)); got.typed != string(limits.KindEgressHosts) {
		t.Errorf("second host: %+v", got)
	}
}

// TestQuestionAboutAddress checks that a person who has allowed a host is asked about its
// address in a private network, and about no other that is not public.
func TestQuestionAboutAddress(t *testing.T) {
	for name, tt := range map[string]struct {
		addr    string
		off     bool
		then    string // after the second answer
		second  Verdict
		asked   int
		reached bool
		reason  string
	}{
		"allowed":           {addr: "10.9.9.9", second: VerdictOnce, asked: 2, reached: true},
		"another one then":  {addr: "10.9.9.9", then: "10.9.9.8", second: VerdictAlways, asked: 2, reason: rule.ReasonAddress},
		"denied":            {addr: "10.9.9.9", second: VerdictDeny, asked: 2, reason: rule.ReasonAskedDenied},
		"may not be asked":  {addr: "10.9.9.9", off: true, second: VerdictOnce, asked: 1, reason: rule.ReasonAddress},
		"metadata":          {addr: "169.254.169.254", second: VerdictOnce, asked: 1, reason: rule.ReasonAddress},
		"this machine's":    {addr: "127.0.0.2", second: VerdictOnce, asked: 1, reason: rule.ReasonAddress},
		"no public network": {addr: "192.0.2.1", second: VerdictOnce, asked: 1, reason: rule.ReasonAddress},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCanary(t, "127.0.0.1:0")
			var now atomic.Value // the address of the host; after the answer one that the test can reach
			now.Store(tt.addr)
			var asked []Question
			f := newFixture(t, func(o *Options) {
				o.Guard, o.AskAddress = allowLoopback(t, "npm.corp"), !tt.off
				o.Resolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
					client, server := net.Pipe()
					go answerDNS(server, now.Load().(string))
					return client, nil
				}}
				o.Ask = func(_ context.Context, q Question) (Answer, error) {
					asked = append(asked, q)
					if !q.Addr.IsValid() {
						return Answer{Verdict: VerdictOnce}, nil
					}
					now.Store(cmp.Or(tt.then, "127.0.0.1"))
					return Answer{Verdict: tt.second}, nil
				}
			})
			conn := f.connectTo("127.80.0.1:61080", nil)
			at := fmt.Sprintf("npm.corp:%d", c.port)
			_, _ = fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", at, at)
			got := readAnswer(conn)
			_ = conn.Close()
			if got.reached != tt.reached || got.typed != tt.reason || len(asked) != tt.asked {
				t.Errorf("%+v, asked %+v", got, asked)
			}
			if tt.asked == 2 && (asked[1].Addr.String() != tt.addr || asked[1].Host != "npm.corp" || asked[1].Command != 1) {
				t.Errorf("asked %+v", asked[1])
			}
		})
	}
}
