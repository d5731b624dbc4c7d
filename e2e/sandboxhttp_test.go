package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// lossyRelay passes connections on to a server, and cuts most of them after a number of
// bytes of one direction, which may be in a request or in its answer.
type lossyRelay struct {
	to   string
	cuts atomic.Int64
	// shortAnswers makes it cut half of the answers, within their first bytes, and nothing
	// else.
	shortAnswers atomic.Bool

	mu   sync.Mutex
	rand *rand.Rand
}

// newLossyRelay starts a relay to an address and returns it with its own address. Its seed
// is logged; RELAY_SEED sets it.
func newLossyRelay(t *testing.T, to string) (*lossyRelay, string) {
	t.Helper()
	seed := fromEnv(t, "RELAY_SEED", int(time.Now().UnixNano()&0xffffff))
	t.Logf("RELAY_SEED=%d", seed)
	r := &lossyRelay{to: to, rand: rand.New(rand.NewPCG(uint64(seed), 1))}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() { r.pass(conn.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		group.Wait()
	})
	return r, "http://" + l.Addr().String()
}

// choose returns after how many bytes of a request and of an answer a connection is cut, and
// whether by a reset.
func (r *lossyRelay) choose() (up, down int64, reset bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	const all = 1 << 50
	up, down = all, all
	if r.shortAnswers.Load() {
		if r.rand.IntN(2) == 0 {
			down = r.rand.Int64N(2000)
		}
		return up, down, false
	}
	after := int64(1) << r.rand.IntN(19)
	after += r.rand.Int64N(after)
	switch r.rand.IntN(5) {
	case 0:
		up = after
	case 1:
		down = after
	case 2:
		down = 0 // all of the request, and none of the answer
	}
	return up, down, r.rand.IntN(2) == 0
}

// pass passes one connection on.
func (r *lossyRelay) pass(client *net.TCPConn) {
	defer client.Close()
	server, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer server.Close()
	up, down, reset := r.choose()
	ended := make(chan bool, 2)
	copyUntil := func(to, from net.Conn, most int64) {
		for buf := make([]byte, 32<<10); ; {
			n, err := from.Read(buf)
			n = int(min(int64(n), most))
			most -= int64(n)
			_, writeErr := to.Write(buf[:n])
			if err != nil || writeErr != nil || most == 0 {
				ended <- err == nil && writeErr == nil
				return
			}
		}
	}
	go copyUntil(server, client, up)
	go copyUntil(client, server, down)
	if <-ended {
		r.cuts.Add(1)
		if reset {
			_ = client.SetLinger(0)
			_ = server.(*net.TCPConn).SetLinger(0)
		}
	}
	client.Close()
	server.Close()
	<-ended
}

// servingSandboxes starts caisson serve with room for many sandboxes, and returns it with
// its address.
func (m *machine) servingSandboxes(t *testing.T, backend string) (r *running, address string) {
	t.Helper()
	m.env = append(m.env, "CONTROL_TOKEN="+secret())
	m.config(t, "serve:\n  tokens: {test: {env: CONTROL_TOKEN}}\n  max_sessions: 200\n  max_streams: 256\n  sandboxes: {enabled: true}\n")
	address = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	r = m.serve(t, "--backend", backend, "--listen", address)
	return r, address
}

// sandboxBackend is the backend whose sandboxes start soonest of those that the machine has.
func sandboxBackend(t *testing.T) string {
	t.Helper()
	if probeBackend(t, "runc") == nil {
		return "runc"
	}
	return anyBackend(t)
}

// sandboxesMade are the ids of all sandboxes that a machine ever had.
func (m *machine) sandboxesMade(t *testing.T) (ids []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(m.stateDir(), "sessions"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids
}

// The sandboxes of TestSandboxesOverCutConnections, by client.
const (
	sandboxesOfCurl   = 20
	sandboxesOfClient = 80
)

// TestSandboxesOverCutConnections has two programs that others wrote, curl and a client
// generated from the server's document, make 100 sandboxes, run commands in them with
// streamed output, and copy files in and out. Most connections are cut on the way, and each
// request is sent again with its key: each sandbox is made once, each command runs once, all
// output and files arrive, and nothing is left. The control, without keys, makes some twice.
func TestSandboxesOverCutConnections(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		lacking(t, "", "needs curl")
	}
	m := newMachine(t)
	server, address := m.servingSandboxes(t, sandboxBackend(t))
	api := apiClient{t: t, base: "http://" + address, token: m.token()}
	client := m.generatedClient(t, "sandboxclient", api.do(http.MethodGet, "/openapi.json", nil, http.StatusOK))
	ctx, cancel := context.WithTimeoutCause(t.Context(), 8*time.Minute, errors.New("the clients take too long"))
	defer cancel()
	relay, url := newLossyRelay(t, address)
	run := func(name string, args ...string) string {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = append(m.env, "CONTROL_TOKEN="+m.token())
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s %q: %v\n%s", filepath.Base(name), args, err, stderr.String())
		}
		return string(out)
	}
	begun := time.Now()
	var group sync.WaitGroup
	var out [5]string
	for i := range 4 {
		const each = sandboxesOfCurl / 4
		group.Go(func() {
			out[i] = run("sh", filepath.Join("testdata", "sandboxes.sh"), url, fmt.Sprint(i*each), fmt.Sprint((i+1)*each-1))
		})
	}
	group.Go(func() { out[4] = run(client, url, fmt.Sprint(sandboxesOfClient), "12") })
	group.Wait()
	text := strings.Join(out[:], "")
	made := m.sandboxesMade(t)
	t.Logf("%d sandboxes in %.1f s, %d connections cut", len(made), time.Since(begun).Seconds(), relay.cuts.Load())
	if n := strings.Count(text, " ran 3\n"); n != sandboxesOfCurl+sandboxesOfClient || len(made) != n {
		t.Errorf("%d sandboxes were used, and %d made, want %d", n, len(made), sandboxesOfCurl+sandboxesOfClient)
	}
	if cuts := relay.cuts.Load(); cuts < 100 {
		t.Errorf("only %d connections were cut", cuts)
	}
	if list := string(api.do(http.MethodGet, "/sandboxes", nil, http.StatusOK)); !strings.Contains(list, `"sandboxes":[]`) {
		t.Errorf("sandboxes are left: %s", list)
	}
	t.Run("control", func(t *testing.T) {
		const count = 16
		relay.shortAnswers.Store(true)
		control := run(client, url, fmt.Sprint(count), "4", "no-keys")
		if n := len(m.sandboxesMade(t)) - len(made); n <= count {
			t.Errorf("%d sandboxes were made for %d requests without keys: the relay proves nothing", n, count)
		}
		if n := strings.Count(control, " ran 3\n"); n == count {
			t.Errorf("every command ran once without keys: the relay proves nothing")
		}
	})
	server.signal(t, syscall.SIGTERM)
	server.wait(t, deadline).want(t, 0)
	m.wantNothingLeft(t, m.sandboxesMade(t)...)
	if left, err := os.ReadDir(filepath.Join(m.stateDir(), "workspaces")); err == nil && len(left) > 0 {
		t.Errorf("workspaces are left: %v", left)
	}
}

// TestLossyRelay is the control of the relay itself: the bytes of connections that it does
// not cut are those that were sent.
func TestLossyRelay(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.CopyN(conn, conn, 100_000)
			}()
		}
	}()
	relay, url := newLossyRelay(t, l.Addr().String())
	whole := 0
	for range 100 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = conn.Write(make([]byte, 100_000)) }()
		if text, err := io.ReadAll(conn); err == nil && len(text) == 100_000 {
			whole++
		}
		conn.Close()
	}
	if cuts := int(relay.cuts.Load()); whole < 10 || cuts < 10 || whole+cuts > 100 {
		t.Errorf("%d connections were whole, and %d cut", whole, cuts)
	}
}
