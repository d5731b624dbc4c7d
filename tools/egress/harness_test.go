package egress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/egresstest"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

func TestMain(m *testing.M) {
	if egresstest.InNamespace() {
		os.Exit(egresstest.Main(m))
	}
	goleak.VerifyTestMain(m)
}

// testConn is the host's end of a connection of a program, over TCP.
type testConn struct {
	*net.TCPConn
	local   netip.AddrPort
	command int
	uid     int
	unknown bool
	panicAt string // what makes Read panic when it arrives
}

func (c *testConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if c.panicAt != "" && strings.Contains(string(p[:n]), c.panicAt) {
		panic("injected")
	}
	return n, err
}

func (c *testConn) LocalAddr() netip.AddrPort { return c.local }
func (c *testConn) Command() int              { return c.command }
func (c *testConn) UID() (int, bool)          { return c.uid, !c.unknown }

// fixture is a server with what it reported.
type fixture struct {
	*Server
	t  testing.TB
	wg sync.WaitGroup

	mu        sync.Mutex
	opened    []Opened
	closed    []Closed
	denied    []Denied
	requested []Requested
}

// newFixture returns a server that allows the rules. Options may be changed by edit.
func newFixture(t testing.TB, edit func(*Options), rules ...string) *fixture {
	t.Helper()
	f := &fixture{t: t}
	o := Options{Policy: newPolicy(t, rules...)}
	if edit != nil {
		edit(&o)
	}
	if o.Budget == nil {
		o.Budget = newBudget(t, limits.EgressBudget{Bytes: 1 << 40, Hosts: 1 << 20})
	}
	if opened := o.Opened; true {
		o.Opened = func(x Opened) error {
			if opened != nil {
				if err := opened(x); err != nil {
					return err
				}
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			f.opened = append(f.opened, x)
			return nil
		}
	}
	o.Closed = func(x Closed) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.closed = append(f.closed, x)
	}
	o.Denied = func(x Denied) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.denied = append(f.denied, x)
	}
	o.Requested = func(x Requested) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.requested = append(f.requested, x)
	}
	var err error
	f.Server, err = New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		f.wg.Wait()
		f.requireBalanced()
	})
	return f
}

// openNow returns the number of connections that are open.
func (f *fixture) openNow() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.opened) - len(f.closed)
}

// movedBytes returns the bytes of all connections that were closed.
func (f *fixture) movedBytes() (sent, received int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.closed {
		sent += c.Sent
		received += c.Received
	}
	return sent, received
}

// requireBalanced fails the test unless each connection that was opened was closed.
func (f *fixture) requireBalanced() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.opened) != len(f.closed) {
		f.t.Errorf("%d connections were opened, %d closed", len(f.opened), len(f.closed))
	}
}

func newBudget(t testing.TB, b limits.EgressBudget) *limits.Egress {
	t.Helper()
	e, err := limits.NewEgress(b)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// newPolicy returns a policy of rules, of which those with a - before them deny, and
// methods follow behind a space.
func newPolicy(t testing.TB, rules ...string) *rule.Policy {
	t.Helper()
	p := &rule.Policy{}
	for _, s := range rules {
		text, denies := strings.CutPrefix(s, "-")
		text, methods, hasMethods := strings.Cut(text, " ")
		r, err := rule.ParseEgress(text)
		if err == nil && hasMethods {
			r, err = r.WithMethods(strings.Split(methods, ","))
		}
		if err != nil {
			t.Fatal(err)
		}
		if denies {
			p.Deny = append(p.Deny, r)
		} else {
			p.Allow = append(p.Allow, r)
		}
	}
	return p
}

// allowLoopback returns a guard for servers of the test, by these hosts.
func allowLoopback(t testing.TB, hosts ...string) *rule.Guard {
	t.Helper()
	private := map[string][]netip.Prefix{}
	for _, h := range append(hosts, "127.0.0.1", "localhost", rule.HostName) {
		private[h] = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	}
	g, err := rule.NewGuard(private)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// connectTo returns a program's connection to an address in the sandbox.
func (f *fixture) connectTo(local string, edit func(*testConn)) *net.TCPConn {
	f.t.Helper()
	return f.connectWith(context.Background(), local, edit)
}

// connectWith is connectTo with the connection's context.
func (f *fixture) connectWith(ctx context.Context, local string, edit func(*testConn)) *net.TCPConn {
	f.t.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	program, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", l.Addr().String())
	if err != nil {
		f.t.Fatal(err)
	}
	inner, err := l.Accept()
	if err != nil {
		f.t.Fatal(err)
	}
	at := netip.MustParseAddrPort(local)
	conn := &testConn{TCPConn: inner.(*net.TCPConn), local: at, command: sandbox.CommandNumber(at.Addr()), uid: 10001}
	if edit != nil {
		edit(conn)
	}
	f.wg.Go(func() { f.ServeEgress(ctx, conn) })
	_ = program.SetDeadline(time.Now().Add(30 * time.Second))
	f.t.Cleanup(func() { _ = program.Close() })
	return program.(*net.TCPConn)
}

// proxyAddr is the address of the proxy of command 7.
const proxyAddr = "127.80.0.7:61080"

// connectProxy returns a program's connection to the proxy.
func (f *fixture) connectProxy() *net.TCPConn { return f.connectTo(proxyAddr, nil) }

// send sends a text to the proxy, and returns the response to it, without a body.
func (f *fixture) send(text string) (*http.Response, *bufio.Reader, *net.TCPConn) {
	f.t.Helper()
	conn := f.connectProxy()
	method, _, _ := strings.Cut(text, " ")
	if _, err := io.WriteString(conn, text); err != nil {
		f.t.Fatal(err)
	}
	br := bufio.NewReader(conn)
	res, err := http.ReadResponse(br, &http.Request{Method: method})
	if err != nil {
		f.t.Fatalf("%.80q: %v", text, err)
	}
	return res, br, conn
}

// tunnel returns a connection through CONNECT, which must succeed.
func (f *fixture) tunnel(address string) (*bufio.Reader, *net.TCPConn) {
	f.t.Helper()
	res, br, conn := f.send("CONNECT " + address + " HTTP/1.1\r\nHost: " + address + "\r\n\r\n")
	if res.StatusCode != http.StatusOK {
		f.t.Fatalf("CONNECT %s: %s", address, res.Status)
	}
	return br, conn
}

// detailsOf returns the reason in a response that is a refusal, or "".
func detailsOf(res *http.Response) string {
	_, details, _ := strings.Cut(res.Header.Get("Proxy-Status"), `details="`)
	reason, _, _ := strings.Cut(details, `"`)
	return reason
}

// takeDenied returns what was denied so far.
func (f *fixture) takeDenied() []Denied {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.denied
	f.denied = nil
	return out
}

// requireDenied waits until what was denied has these reasons, in any order.
func (f *fixture) requireDenied(reasons ...string) {
	f.t.Helper()
	awaitTrue(f.t, fmt.Sprintf("reports of %q", reasons), func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, reason := range reasons {
			if !slices.ContainsFunc(f.denied, func(d Denied) bool { return d.Reason == reason }) {
				return false
			}
		}
		return !slices.ContainsFunc(f.denied, func(d Denied) bool { return !slices.Contains(reasons, d.Reason) })
	})
}

// canary is a server that counts connections. It answers requests of HTTP.
type canary struct {
	addr string
	port uint16
	hits atomic.Int64
}

func newCanary(t testing.TB, address string) *canary {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c := &canary{addr: l.Addr().String(), port: l.Addr().(*net.TCPAddr).AddrPort().Port()}
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
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret")
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return c
}

// startEcho starts a server that sends back what it gets, and ends when the other
// side does. It returns its address.
func startEcho(t testing.TB) string {
	t.Helper()
	return startServer(t, func(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) })
}

// startServer starts a server of TCP on 127.0.0.1, and returns its address.
func startServer(t testing.TB, serve func(*net.TCPConn)) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[conn] = true
			mu.Unlock()
			wg.Go(func() {
				serve(conn.(*net.TCPConn))
				_ = conn.Close()
				mu.Lock()
				delete(conns, conn)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

// awaitTrue waits until a condition is true.
func awaitTrue(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("%s: not within 10 s", what)
}

// portOf returns the port of an address.
func portOf(t testing.TB, address string) uint16 {
	t.Helper()
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return at.Port()
}

func hostURL(address string) string { return fmt.Sprintf("http://%s/", address) }
