package fetch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/egresstest"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

func TestMain(m *testing.M) {
	if egresstest.InNamespace() {
		os.Exit(egresstest.Main(m))
	}
	goleak.VerifyTestMain(m)
}

// loopback is the network of the tests' own servers. Clients may reach it only if
// a test permits it.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}

// fixture is a client and its recorded denials.
type fixture struct {
	*Client
	t testing.TB

	mu     sync.Mutex
	denied []Denial
}

// newFixture returns a client that may fetch URLs within the rules.
func newFixture(t testing.TB, o Options, rules ...string) *fixture {
	t.Helper()
	f := &fixture{t: t}
	for _, s := range rules {
		r, err := rule.ParseFetch(s)
		if err != nil {
			t.Fatal(err)
		}
		o.Allow = append(o.Allow, r)
	}
	var err error
	if o.Egress == nil {
		o.Egress, err = limits.NewEgress(limits.DefaultEgressBudget())
		if err != nil {
			t.Fatal(err)
		}
	}
	if o.Hosts == nil {
		o.Hosts = &limits.Breakers{Name: limits.BreakerFetchHost}
	}
	o.Denied = func(d Denial) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.denied = append(f.denied, d)
		return nil
	}
	f.Client, err = NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// newLocalFixture is newFixture for servers on 127.0.0.1, also by the name localhost.
func newLocalFixture(t testing.TB, o Options, rules ...string) *fixture {
	t.Helper()
	o.Private = map[string][]netip.Prefix{"127.0.0.1": loopback, "localhost": loopback}
	return newFixture(t, o, rules...)
}

func (f *fixture) get(u string) (Response, error) {
	return f.Get(f.t.Context(), Request{URL: u, CallID: "tu_1"})
}

// reasonOf returns the reason of a failure, the text of another error, or "".
func reasonOf(err error) string {
	if f, ok := errors.AsType[*failure](err); ok {
		return f.reason
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return ""
}

// requireRefused fetches a URL, which must be refused and recorded for a reason.
func (f *fixture) requireRefused(u, want string) Denial {
	f.t.Helper()
	f.mu.Lock()
	before := len(f.denied)
	f.mu.Unlock()
	if _, err := f.get(u); reasonOf(err) != want {
		f.t.Errorf("%s: %v, want a refusal for %s", u, err, want)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.denied) != before+1 || f.denied[before].Reason != want {
		f.t.Errorf("%s: recorded %+v, want one denial for %s", u, f.denied[before:], want)
		return Denial{}
	}
	return f.denied[before]
}

// canary is a server that must not be reached. It counts connections.
type canary struct {
	url  string
	port int
	hits atomic.Int64
}

// newCanary starts a canary at an address.
func newCanary(t testing.TB, address string) *canary {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c := &canary{url: "http://" + l.Addr().String(), port: l.Addr().(*net.TCPAddr).Port}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.hits.Add(1)
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret"))
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return c
}

// requireReached is the positive control: it fails the test if a client without a
// policy doesn't reach the canary by a URL. It resets the count.
func (c *canary) requireReached(t testing.TB, client *http.Client, u string) {
	t.Helper()
	err := fetchNaively(t, client, u)
	if c.hits.Swap(0) == 0 {
		t.Errorf("control: a naive client doesn't reach the canary by %s (%v), so nothing is shown", u, err)
	}
}

// requireUntouched fails the test if there were connections.
func (c *canary) requireUntouched(t testing.TB) {
	t.Helper()
	if n := c.hits.Load(); n != 0 {
		t.Errorf("%d connections to the canary %s", n, c.url)
	}
}

// fetchNaively fetches a URL without a policy.
func fetchNaively(t testing.TB, client *http.Client, u string) error {
	t.Helper()
	if client == nil {
		tr := &http.Transport{DisableKeepAlives: true}
		defer tr.CloseIdleConnections()
		client = &http.Client{Transport: tr}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err == nil {
		err = res.Body.Close()
	}
	return err
}

// startServer starts an HTTP server and returns its URL.
func startServer(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// startRawServer starts a server that reads the head of a request and then calls
// answer with the connection. The connection is closed afterwards, or when the
// test ends.
func startRawServer(t testing.TB, answer func(ctx context.Context, w net.Conn)) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
				defer stop()
				defer func() { _ = conn.Close() }()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					answer(ctx, conn)
				}
			})
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = l.Close()
		wg.Wait()
	})
	return "http://" + l.Addr().String()
}

// execute runs the tool itself on an input.
func (f *fixture) execute(input map[string]any) (tools.Output, error) {
	f.t.Helper()
	text, err := json.Marshal(input)
	if err != nil {
		f.t.Fatal(err)
	}
	return newTool(f.Client)().Execute(f.t.Context(), &tools.Call{ID: "tu_1", Name: Name, Input: text})
}
