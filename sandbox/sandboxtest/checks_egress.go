package sandboxtest

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

// Names of checks that faults name, too.
const (
	egressConns     = "connections of programs reach their handler"
	egressOver      = "a command's connections end with it"
	egressBound     = "a bounded number of connections is open at once"
	egressStorm     = "connections that end badly leave nothing"
	egressNames     = "names are answered by the handler"
	egressListeners = "commands can't take the guest's listeners"
	egressRoots     = "programs have the certificates to trust"
	egressReserved  = "only commands that ask for it have the proxy of a reserved plan"
	egressNone      = "nothing listens unless it was asked for"
)

func egressChecks() []check {
	full := &sandbox.EgressPlan{Names: true, Capture: []int{22, 80, 443}}
	return []check{
		{name: egressNone, run: checkNoEgress},
		{name: egressConns, fresh: true, egress: full, run: checkEgressConns},
		{name: egressOver, fresh: true, egress: &sandbox.EgressPlan{}, run: checkEgressOver},
		{name: egressBound, fresh: true, egress: &sandbox.EgressPlan{}, run: checkEgressBound},
		{name: egressStorm, fresh: true, egress: &sandbox.EgressPlan{}, run: checkEgressStorm},
		{name: egressNames, fresh: true, egress: full, run: checkEgressNames},
		{name: egressListeners, fresh: true, egress: full, run: checkEgressListeners},
		{name: egressRoots, fresh: true, egress: &sandbox.EgressPlan{Roots: testRoots(), Env: []string{"EGRESS_VARIABLE={proxy}/x"}}, run: checkEgressRoots},
		{name: egressReserved, fresh: true, egress: &sandbox.EgressPlan{Reserved: true, Env: []string{"EGRESS_VARIABLE=x"}}, run: checkEgressReserved},
	}
}

var testRoots = sync.OnceValue(func() []byte {
	s := httptest.NewUnstartedServer(nil)
	s.StartTLS()
	defer s.Close()
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
})

type egressConn struct {
	local   netip.AddrPort
	command int
	uid     int
	known   bool
	ended   chan struct{} // closed when the handler's context ends
}

// egressHandler records connections and lookups, and echoes.
type egressHandler struct {
	mu      sync.Mutex
	conns   []*egressConn
	lookups []string
	held    chan struct{} // if not nil, connections stay open until it is closed,
	other   netip.Addr    // except those to other
	open    atomic.Int32
	most    atomic.Int32
}

func (h *egressHandler) ServeEgress(ctx context.Context, c sandbox.EgressConn) {
	seen := &egressConn{local: c.LocalAddr(), command: c.Command(), ended: make(chan struct{})}
	seen.uid, seen.known = c.UID()
	context.AfterFunc(ctx, func() { close(seen.ended) })
	h.mu.Lock()
	h.conns = append(h.conns, seen)
	h.mu.Unlock()
	n := h.open.Add(1)
	defer h.open.Add(-1)
	for most := h.most.Load(); n > most && !h.most.CompareAndSwap(most, n); most = h.most.Load() {
	}
	if h.held != nil && c.LocalAddr().Addr() != h.other {
		_, _ = c.Read(make([]byte, 1))
		_, _ = c.Write([]byte("x"))
		select {
		case <-h.held:
		case <-ctx.Done():
		}
		_ = c.CloseWrite()
		return
	}
	if _, err := io.Copy(c, c); err == nil {
		_, _ = io.WriteString(c, probing.EchoEnd)
		_ = c.CloseWrite()
	}
}

func (h *egressHandler) LookupName(_ context.Context, name string) (netip.Addr, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lookups = append(h.lookups, name)
	return sandbox.NameAddr(7), name == "known.example"
}

func (h *egressHandler) last() (egressConn, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.conns) == 0 {
		return egressConn{}, errors.New("the handler saw no connection")
	}
	return *h.conns[len(h.conns)-1], nil
}

func serveEgress(e *env, h sandbox.EgressHandler) error {
	s, ok := e.sb.(sandbox.EgressServer)
	if !ok {
		return fmt.Errorf("%T is no EgressServer", e.sb)
	}
	s.Serve(h)
	return nil
}

// ownProxy stands for the command's own proxy in the probe's arguments.
const ownProxy = "proxy"

func proxyOf(number int) string {
	return netip.AddrPortFrom(sandbox.CommandAddr(number), sandbox.DefaultEgressPort).String()
}

func checkNoEgress(ctx context.Context, e *env) error {
	out, err := e.expectOutput(ctx, "egress-first", proxyOf(1), "127.0.0.1:53")
	if err != nil {
		return err
	}
	if out != "refused\nrefused\n" || e.sb.Attestation().Egress != nil {
		return fmt.Errorf("connections are %q, attested %v", out, e.sb.Attestation().Egress)
	}
	out, err = e.expectOutput(ctx, "env")
	if err == nil && strings.Contains(out, "HTTP_PROXY=") {
		err = fmt.Errorf("a command has the variables of a proxy: %q", out)
	}
	return err
}

// checkEgressConns: without a handler connections are reset. With one, bytes go
// both ways, each direction ends separately, and the connection is the
// command's.
func checkEgressConns(ctx context.Context, e *env) error {
	at := e.sb.Attestation()
	if at.Network != "none" || at.Egress == nil || !slices.Contains(at.Egress.Listening, "tcp 0.0.0.0:61080") || !slices.Equal(at.Egress.Capture, []int{22, 80, 443}) {
		return fmt.Errorf("attested: network %q, listeners %+v", at.Network, at.Egress)
	}
	if slices.Contains(at.GuestCapabilities, "CAP_NET_BIND_SERVICE") {
		return fmt.Errorf("the guest kept the capability of low ports: %q", at.GuestCapabilities)
	}
	if out, err := e.expectOutput(ctx, "egress-first", proxyOf(1)); err != nil || out != "reset\n" {
		return errorf("without a handler: %q, %w", out, err)
	}
	h := &egressHandler{}
	if err := serveEgress(e, h); err != nil {
		return err
	}
	size := strconv.Itoa(3<<20 + 1)
	for _, identity := range []int{0, 1} {
		if identity > 0 && at.Identities == 1 {
			continue
		}
		number := 0
		r, err := e.run(ctx, sandbox.Command{
			Argv: probeArgv("egress-echo", ownProxy, size), Identity: identity, Dir: sandbox.WorkspaceDir, NotifyNumber: func(n int) { number = n },
		})
		if err != nil {
			return err
		}
		c, err := h.last()
		if err != nil || !r.Status.Success() {
			return errorf("identity %d: %s %q: %w", identity, r.Status, r.errOut, err)
		}
		want, _, _ := strings.Cut(at.User, ":")
		if (strconv.Itoa(c.uid) == want) != (identity == 0) || !c.known {
			return fmt.Errorf("identity %d is user %d (known %t), the agent's is %s", identity, c.uid, c.known, want)
		}
		if c.command != number || c.local.String() != proxyOf(number) {
			return fmt.Errorf("command %d made a connection of command %d to %v", number, c.command, c.local)
		}
	}
	if _, err := e.expectOutput(ctx, "egress-echo", "127.99.0.1:443", "10"); err != nil {
		return err
	}
	c, err := h.last()
	if err == nil && (c.command != 0 || c.local.String() != "127.99.0.1:443") {
		err = fmt.Errorf("a captured connection is of command %d to %v", c.command, c.local)
	}
	return err
}

// checkEgressOver: a command's connections end with it, and others don't.
func checkEgressOver(ctx context.Context, e *env) error {
	h := &egressHandler{held: make(chan struct{})}
	defer close(h.held)
	if err := serveEgress(e, h); err != nil {
		return err
	}
	var seen [2]egressConn
	var cancels [2]context.CancelFunc
	var processes [2]sandbox.Process
	for i := range 2 {
		runCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		p, _, err := startReady(runCtx, ctx, e, sandbox.Command{Argv: probeArgv("egress-hold", ownProxy), Grace: testGrace})
		if err != nil {
			return err
		}
		cancels[i], processes[i] = cancel, p
		if seen[i], err = h.last(); err != nil {
			return err
		}
	}
	cancels[0]()
	if _, err := waitProcess(ctx, processes[0]); err != nil {
		return err
	}
	select {
	case <-seen[0].ended:
	case <-time.After(10 * time.Second):
		return errors.New("the connection of a command outlives it")
	}
	select {
	case <-seen[1].ended:
		return errors.New("another command's connection ended with it")
	case <-time.After(200 * time.Millisecond):
	}
	cancels[1]()
	_, err := waitProcess(ctx, processes[1])
	return err
}

// checkEgressBound: surplus connections to one address wait, all are served,
// and a connection to another address doesn't wait for them.
func checkEgressBound(ctx context.Context, e *env) error {
	const n = sandbox.MaxCommandConns + 32
	h := &egressHandler{held: make(chan struct{}), other: sandbox.CommandAddr(2)}
	if err := serveEgress(e, h); err != nil {
		return err
	}
	other := make(chan error, 1)
	go func() {
		defer close(h.held)
		for h.open.Load() < sandbox.MaxCommandConns && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(300 * time.Millisecond) // for one too many
		soon, cancel := context.WithTimeout(ctx, stuckTime)
		defer cancel()
		_, err := e.expectOutput(soon, "egress-echo", proxyOf(2), "10")
		other <- err
	}()
	out, err := e.expectOutput(ctx, "egress-many", proxyOf(1), strconv.Itoa(n))
	if err == nil && (out != fmt.Sprintln(n) || h.most.Load() != sandbox.MaxCommandConns+1) {
		err = fmt.Errorf("%q of %d connections were served, %d at once", out, n, h.most.Load())
	}
	if otherErr := <-other; otherErr != nil && err == nil {
		err = fmt.Errorf("a connection beside those of another command: %w", otherErr)
	}
	return err
}

// checkEgressStorm makes many connections and resets most. Every handler must
// end, and the sandbox work as before.
func checkEgressStorm(ctx context.Context, e *env) error {
	h := &egressHandler{}
	if err := serveEgress(e, h); err != nil {
		return err
	}
	n := e.target.repeatCount(1000)
	if _, err := e.expectOutput(ctx, "egress-storm", ownProxy, strconv.Itoa(n)); err != nil {
		return err
	}
	for end := time.Now().Add(stuckTime); h.open.Load() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%d handlers of %d connections don't end", h.open.Load(), n)
		}
	}
	_, err := e.expectOutput(ctx, "egress-echo", ownProxy, "100000")
	return err
}

// checkEgressNames: the handler decides which names exist, and is asked for
// nothing else. What does not exist is never refused.
func checkEgressNames(ctx context.Context, e *env) error {
	h := &egressHandler{}
	if err := serveEgress(e, h); err != nil {
		return err
	}
	for name, want := range map[string]string{
		"known.example":   "udp 1 0 127.96.0.7\nudp 28 0\nudp 65 0\nudp 16 0\ntcp 1 0 127.96.0.7\n",
		"unknown.example": "udp 1 3\nudp 28 3\nudp 65 3\nudp 16 0\ntcp 1 3\n",
	} {
		if err := e.expectAnswer(ctx, want, "egress-lookup", name); err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.lookups) != 8 {
		return fmt.Errorf("the handler was asked for %q, want each name 4 times", h.lookups)
	}
	return nil
}

// checkEgressListeners: no command can listen at or beside one of the guest's
// addresses.
func checkEgressListeners(ctx context.Context, e *env) error {
	const free = "127.0.0.1:12345"
	out, err := e.expectOutput(ctx, "egress-bind", "0.0.0.0:61080", "127.80.0.1:61080", "127.0.0.1:53", "0.0.0.0:53", "127.96.0.1:443", "0.0.0.0:22", free)
	if err != nil {
		return err
	}
	for _, line := range splitLines(out) {
		if !strings.HasPrefix(line, free) {
			return fmt.Errorf("a command listens at %s", line)
		}
	}
	if out == "" {
		return errors.New("positive control: a command can't listen at " + free)
	}
	// The guest asks the kernel for sockets' users. Commands may not.
	out, err = e.expectOutput(ctx, "attempt", "socket diag")
	if err == nil && out == "allowed" {
		err = errors.New("a command may ask for the sockets of others")
	}
	return err
}

// checkEgressRoots: the certificates and their variables are there, the image's
// own are kept, and nothing can be written.
func checkEgressRoots(ctx context.Context, e *env) error {
	out, err := e.expectOutput(ctx, "read", sandbox.EgressDir+"/ca.pem")
	if err != nil {
		return err
	}
	if !bytes.Equal([]byte(out), testRoots()) {
		return fmt.Errorf("ca.pem is %q", out)
	}
	if out, err = e.expectOutput(ctx, "read", sandbox.EgressDir+"/bundle.pem"); err != nil {
		return err
	}
	if !strings.Contains(out, strings.TrimSpace(string(testRoots()))) {
		return fmt.Errorf("bundle.pem lacks the certificate: %q", out)
	}
	if r, err := e.runProbe(ctx, "touch", sandbox.EgressDir+"/ca.pem"); err != nil || r.Status.Success() {
		return errorf("a command writes ca.pem: %w", err)
	}
	number := 0
	r, err := e.run(ctx, sandbox.Command{Argv: probeArgv("env"), NotifyNumber: func(n int) { number = n }})
	if err != nil {
		return err
	}
	proxy := "http://" + proxyOf(number)
	return containsVariables(r.out, "SSL_CERT_FILE="+sandbox.EgressDir+"/bundle.pem", "EGRESS_VARIABLE="+proxy+"/x", "https_proxy="+proxy, "PAGER=more")
}

// checkEgressReserved: commands have a reserved plan's proxy variables only if
// they ask for them, beside their own environment.
func checkEgressReserved(ctx context.Context, e *env) error {
	number := 0
	own := []string{"PATH=/usr/bin:/bin", "OWN=1"}
	for _, tt := range []struct {
		name string
		cmd  sandbox.Command
		want bool
	}{
		{"the sandbox's environment", sandbox.Command{}, false},
		{"its own environment", sandbox.Command{Env: own}, false},
		{"its own environment and Proxy", sandbox.Command{Env: own, Proxy: true}, true},
		{"a separate environment", sandbox.Command{Separate: true}, false},
		{"a separate environment and Proxy", sandbox.Command{Separate: true, Proxy: true, Variables: []string{"REPLACED={proxy}/x"}}, true},
	} {
		tt.cmd.Argv, tt.cmd.NotifyNumber = probeArgv("env"), func(n int) { number = n }
		r, err := e.run(ctx, tt.cmd)
		if err != nil {
			return err
		}
		have := strings.Split(r.out, "\x00")
		if got := slices.Contains(have, "https_proxy=http://"+proxyOf(number)); got != tt.want || !tt.want && strings.Contains(r.out, "_proxy=") {
			return fmt.Errorf("a command with %s has the proxy: %t, in %q", tt.name, got, have)
		}
		if tt.cmd.Variables != nil && !slices.Contains(have, "REPLACED=http://"+proxyOf(number)+"/x") {
			return fmt.Errorf("a command with %s has no replaced variable in %q", tt.name, have)
		}
		if session := slices.Contains(have, "PAGER=more"); session != (tt.cmd.Env == nil && !tt.cmd.Separate) {
			return fmt.Errorf("a command with %s has the variable of the session: %t", tt.name, session)
		}
		if slices.Contains(have, "EGRESS_VARIABLE=x") || (tt.cmd.Env != nil) != slices.Contains(have, "OWN=1") {
			return fmt.Errorf("a command with %s has %q", tt.name, have)
		}
	}
	return nil
}
