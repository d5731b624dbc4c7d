package network

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/egress"
	"github.com/caisson-run/caisson/tools/egress/ca"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// reachingBox is a sandbox whose commands get prescribed results.
type reachingBox struct {
	sandbox.Sandbox
	reach wire.Reach
}

func (b reachingBox) Serve(sandbox.EgressHandler) {}

func (b reachingBox) Start(_ context.Context, cmd sandbox.Command) (sandbox.Process, error) {
	text, err := json.Marshal(b.reach)
	if err == nil {
		_, err = cmd.Stdout.Write(text)
	}
	return endedProcess{}, err
}

type endedProcess struct{ sandbox.Process }

func (endedProcess) Wait() (sandbox.Exit, error) { return sandbox.Exit{}, nil }

// TestCheck checks that a sandbox with another way out, or without a proxy, is refused.
func TestCheck(t *testing.T) {
	sound := func() wire.Reach {
		return wire.Reach{Interfaces: []string{"lo"}, Results: map[string]string{
			publicTarget.String(): "ENETUNREACH", "proxy:[::1]:9": "403", "name:" + checkName: wire.NameUnknown,
		}}
	}
	if err := Check(t.Context(), reachingBox{reach: sound()}); err != nil {
		t.Fatalf("control: a sound sandbox: %v", err)
	}
	for name, change := range map[string]func(*wire.Reach){
		"a route":             func(r *wire.Reach) { r.Results[publicTarget.String()] = "ETIMEDOUT" },
		"a connection":        func(r *wire.Reach) { r.Results[publicTarget.String()] = "ok" },
		"an interface":        func(r *wire.Reach) { r.Interfaces = append(r.Interfaces, "eth0") },
		"a proxy that allows": func(r *wire.Reach) { r.Results["proxy:[::1]:9"] = "200" },
		"another proxy":       func(r *wire.Reach) { r.Results["proxy:[::1]:9"] = "502" },
		"no proxy":            func(r *wire.Reach) { r.Results["proxy:[::1]:9"] = "ECONNREFUSED" },
		"a name that exists":  func(r *wire.Reach) { r.Results["name:"+checkName] = "ok" },
		"no answer":           func(r *wire.Reach) { r.Results = nil },
	} {
		r := sound()
		change(&r)
		if err := Check(t.Context(), reachingBox{reach: r}); err == nil {
			t.Errorf("%s is accepted", name)
		} else if _, ok := errors.AsType[*LeakError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// programConn is a program's connection that sends a request.
type programConn struct {
	io.Reader
	mu      sync.Mutex
	answer  strings.Builder
	command int
}

func (c *programConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answer.Write(p)
}
func (c *programConn) Close() error      { return nil }
func (c *programConn) CloseWrite() error { return nil }
func (c *programConn) Command() int      { return c.command }
func (c *programConn) UID() (int, bool)  { return 10001, true }
func (c *programConn) LocalAddr() netip.AddrPort {
	return netip.AddrPortFrom(sandbox.CommandAddr(c.command), sandbox.DefaultEgressPort)
}

// connect returns the network's answer to a command's CONNECT.
func connect(t *testing.T, n *Network, command int, authority string) string {
	t.Helper()
	c := &programConn{Reader: strings.NewReader("CONNECT " + authority + " HTTP/1.1\r\nHost: " + authority + "\r\n\r\n"), command: command}
	n.server.ServeEgress(t.Context(), c)
	return c.answer.String()
}

// newTestNetwork returns a network with rules, and its records.
func newTestNetwork(t *testing.T, change func(*Options), rules ...string) (*Network, *[]record.Payload) {
	t.Helper()
	p := &rule.Policy{}
	for _, s := range rules {
		r, err := rule.ParseEgress(s)
		if err != nil {
			t.Fatal(err)
		}
		p.Allow = append(p.Allow, r)
	}
	var mu sync.Mutex
	var records []record.Payload
	o := Options{Policy: p, Capture: true, Budget: limits.DefaultCommandEgressBudget(), Dir: t.TempDir(), Log: zap.NewNop(), Record: func(_ string, p record.Payload, _ bool) error {
		mu.Lock()
		defer mu.Unlock()
		records = append(records, p)
		return nil
	}}
	if change != nil {
		change(&o)
	}
	n, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n, &records
}

// TestRefusedLines checks that refusals belong to their command and are counted.
func TestRefusedLines(t *testing.T) {
	n, records := newTestNetwork(t, nil, "tls://a.test")
	notify, refused := n.TrackCommand("tu_1", "npm ci")
	notify(7)
	otherNotify, otherRefused := n.TrackCommand("tu_2", "true")
	otherNotify(8)
	for range 3 {
		if got := connect(t, n, 7, "b.test:443"); !strings.HasPrefix(got, "HTTP/1.1 403") {
			t.Fatalf("answer %q", got)
		}
	}
	connect(t, n, 8, "[::1]:9") // like the check of a sandbox
	list, allowed := refused(true)
	if len(list) != 1 || list[0].Host != "b.test:443" || list[0].Reason != "not_allowed" || list[0].Count != 3 || len(allowed) != 1 {
		t.Errorf("refused %+v, allowed %v", list, allowed)
	}
	if list, _ := otherRefused(true); list != nil {
		t.Errorf("another command: %+v", list)
	}
	var count int64
	for _, p := range *records {
		d, ok := p.(record.NetworkDenied)
		if !ok || d.CallID != "tu_1" || d.Host != "b.test:443" || d.Way != "connect" {
			t.Errorf("%+v", p)
		}
		count += max(d.Count, 1)
	}
	if count != 3 {
		t.Errorf("%d refusals are recorded", count)
	}
	if total := n.Close(); total.Denied != 3 || total.Connections != 0 {
		t.Errorf("%+v", total)
	}
}

// TestRecordFails checks that nothing is connected without a record. The control gets as far as
// resolving the name.
func TestRecordFails(t *testing.T) {
	var failing error
	n, _ := newTestNetwork(t, func(o *Options) {
		o.Record = func(string, record.Payload, bool) error { return failing }
	}, "tls://a.invalid")
	if got := connect(t, n, 1, "a.invalid:443"); !strings.HasPrefix(got, "HTTP/1.1 502") {
		t.Errorf("control: %q", got)
	}
	failing = errors.New("disk full")
	if got := connect(t, n, 1, "a.invalid:443"); !strings.HasPrefix(got, "HTTP/1.1 403") || !strings.Contains(got, `"record"`) {
		t.Errorf("without a record: %q", got)
	}
}

// TestAsk checks what is asked, and what answers allow.
func TestAsk(t *testing.T) {
	var asked []dispatch.HostQuestion
	resolution := approval.Resolution{RequestID: "1", Decision: approval.DecisionAllow, Scope: approval.ScopeOnce, By: approval.ByUser}
	n, _ := newTestNetwork(t, func(o *Options) {
		o.Ask = func(_ context.Context, q dispatch.HostQuestion) (approval.Resolution, error) {
			asked = append(asked, q)
			return resolution, nil
		}
	})
	ask := func(command int) (egress.Answer, error) {
		return n.ask(t.Context(), egress.Question{Host: "a.test", Display: "a.test", Port: 443, Command: command, Rule: "tls://a.test"})
	}
	if _, err := ask(0); !errors.Is(err, errNoCommand) || asked != nil {
		t.Errorf("without a call: %v", err)
	}
	if _, ok := n.server.LookupName(t.Context(), "a.test"); !ok {
		t.Error("control: a name that can be asked about does not exist")
	}
	if _, ok := n.server.LookupName(t.Context(), checkName); ok {
		t.Error("the name of the check exists where unknown hosts are asked about")
	}
	notify, refused := n.TrackCommand("tu_1", "npm ci")
	notify(7)
	for _, command := range []int{7, 0} {
		if a, err := ask(command); err != nil || a.Verdict != egress.VerdictOnce {
			t.Errorf("once: %+v, %v", a, err)
		}
	}
	want := dispatch.HostQuestion{CallID: "tu_1", Host: "a.test", Port: 443, Command: "npm ci", Rule: "tls://a.test"}
	if len(asked) != 2 || asked[0] != want || asked[1] != want {
		t.Errorf("asked %+v", asked)
	}
	if _, err := n.ask(t.Context(), egress.Question{Host: "a.test", Display: "a.test", Port: 443, Addr: netip.MustParseAddr("10.1.2.3"), Command: 7, Rule: "tls://a.test"}); err != nil || asked[2].Addr != "10.1.2.3" {
		t.Errorf("an address: %+v, %v", asked, err)
	}
	resolution.Scope = approval.ScopeAlways
	if a, err := ask(7); err != nil || a.Verdict != egress.VerdictAlways || a.Unasked {
		t.Errorf("always: %+v, %v", a, err)
	}
	resolution = approval.Resolution{Decision: approval.DecisionDeny, By: approval.ByCancel} // before anybody was asked
	if a, err := ask(7); err == nil || !a.Unasked {
		t.Errorf("cancelled: %+v, %v", a, err)
	}
	resolution = approval.Resolution{RequestID: "1", Decision: approval.DecisionDeny, By: approval.ByDecider}
	if a, err := ask(7); err != nil || a.Verdict != egress.VerdictDeny || !a.Unasked {
		t.Errorf("denied by a decider: %+v, %v", a, err)
	}
	resolution = approval.Resolution{RequestID: "1", Decision: approval.DecisionDeny, By: approval.ByUser, Reason: "no"}
	if a, err := ask(7); err != nil || a.Verdict != egress.VerdictDeny || a.Reason != "no" || a.Unasked {
		t.Errorf("denied: %+v, %v", a, err)
	}
	resolution = approval.Resolution{RequestID: "1", Decision: approval.DecisionTimeout, By: approval.ByTimeout}
	if _, err := ask(7); err == nil {
		t.Error("a question without an answer allows")
	}
	refused(true)
	if _, err := ask(7); !errors.Is(err, errNoCommand) {
		t.Errorf("after the command: %v", err)
	}
}

// TestRecordsAreBounded checks that a program can't fill a trace.
func TestRecordsAreBounded(t *testing.T) {
	n, records := newTestNetwork(t, nil)
	for i := range maxRefusals + 50 {
		n.recordDenied("", egress.Denied{Way: egress.WayConnect, Host: "a.test", Port: uint16(i) + 1, Reason: "not_allowed", Count: 1})
	}
	if len(*records) != maxRefusals {
		t.Fatalf("%d records of refusals, want %d", len(*records), maxRefusals)
	}
	// Refusals, and connections to one host, must not hide a connection to another.
	for id := range int64(2 * record.MaxNetworkRecords) {
		if err := n.recordOpened("", egress.Opened{ID: id + 1, Host: "a.test", Port: 443}); err != nil {
			t.Fatal(err)
		}
	}
	before := len(*records)
	if err := n.recordOpened("", egress.Opened{ID: 1e6, Host: "b.test", Port: 443}); err != nil || len(*records) != before+1 {
		t.Errorf("the first connection to another host: %v, %d records after %d", err, len(*records), before)
	}
	for i := range 2 * maxHosts {
		if err := n.recordOpened("", egress.Opened{ID: 1e6 + int64(i) + 2, Host: "c.test", Port: uint16(i) + 1}); err != nil {
			t.Fatal(err)
		}
	}
	total := n.Close()
	if len(*records) != record.MaxNetworkRecords || total.Denied != maxRefusals+50 {
		t.Errorf("%d records, want %d; %+v", len(*records), record.MaxNetworkRecords, total)
	}
	if all := int64(maxRefusals + 50 + 2*record.MaxNetworkRecords + 1 + 2*maxHosts); total.Unrecorded != all-record.MaxNetworkRecords {
		t.Errorf("%d are not recorded, of %d", total.Unrecorded, all)
	}
}

// TestAuthorityEnd checks that the certificate does not outlive the session's known end for long.
func TestAuthorityEnd(t *testing.T) {
	end := time.Now().Add(20 * time.Minute)
	for name, want := range map[string]time.Time{"a bound": end.Add(endingTime), "no bound": time.Now().Add(authorityTime)} {
		n, _ := newTestNetwork(t, func(o *Options) {
			if name == "a bound" {
				o.End = end
			}
		}, "https://a.test/")
		roots, err := ca.ReadRoots(n.setup.authority.PEM())
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := n.setup.authority.Leaf("a.test")
		if err != nil {
			t.Fatal(err)
		}
		for _, cert := range append(roots, leaf.Leaf) {
			if off := cert.NotAfter.Sub(want).Abs(); off > time.Minute {
				t.Errorf("%s: %s is valid until %s, want %s", name, cert.Subject, cert.NotAfter, want)
			}
		}
	}
}

// TestRequestsAreBounded checks the bound of lines in the requests file, and that no part of a
// secret is left where the bound cuts a URL.
func TestRequestsAreBounded(t *testing.T) {
	const secret = "correct-horse-battery-9"
	o := Options{Dir: t.TempDir(), Hidden: []redact.Secret{{Name: "KEY", Value: secret}}}
	n := &Network{}
	n.openRequestLog(o)
	url := "http://a.test/" + strings.Repeat("x", 8<<10)
	cut := url[:maxURLBytes-len(secret)/2] + secret
	for _, r := range []egress.Requested{{Method: "GET", URL: url[:100]}, {Method: "GET", URL: cut}, {Method: strings.Repeat("M", 60<<10), URL: url, Cached: true}} {
		if err := n.logRequest("", r); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := n.requests.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(o.Dir, record.RequestsFile))
	if err != nil || !strings.Contains(string(text), url[:100]+`"`) || len(text) > 3*(maxURLBytes+256) || strings.Contains(string(text), secret[:6]) {
		t.Errorf("three lines have %d bytes: %v\n%s", len(text), err, text)
	}
	if n.totals.Requests != 1 || n.totals.Cached != 1 {
		t.Errorf("totals of a request that the cache answered: %+v", n.totals)
	}
}
