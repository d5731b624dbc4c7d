//go:build linux

package sandboxtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/sandboxtest/internal/probing"
)

// fakeEgress is the listeners of a fake: connections are pairs of TCP sockets of
// this process.
type fakeEgress struct {
	mu      sync.Mutex
	handler sandbox.EgressHandler
	number  int
	running map[int]*fakeCommand
	open    map[*fakeConn]struct{}
	places  map[netip.AddrPort]chan struct{} // by the address that was connected to
}

// fakeConn is a sandbox.EgressConn.
type fakeConn struct {
	*net.TCPConn
	local   netip.AddrPort
	command *fakeCommand // whose address was used
	uid     int
	fault   Fault
	cancel  context.CancelFunc

	mu    sync.Mutex
	ended bool // CloseWrite was called
}

func (c *fakeConn) LocalAddr() netip.AddrPort { return c.local }

func (c *fakeConn) UID() (int, bool) { return c.uid, true }

func (c *fakeConn) Command() int {
	if c.command == nil || c.fault == FaultEgressNumber {
		return 0
	}
	return c.command.number
}

func (c *fakeConn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	return c.TCPConn.CloseWrite()
}

// Close resets the connection unless CloseWrite was called.
func (c *fakeConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		_ = c.SetLinger(0)
	}
	return c.TCPConn.Close()
}

// Read ends the other direction too, with a fault.
func (c *fakeConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if errors.Is(err, io.EOF) && c.fault == FaultEgressHalf {
		_ = c.Close()
	}
	return n, err
}

// Serve sets the handler of connections.
func (s *fakeSandbox) Serve(h sandbox.EgressHandler) {
	s.egress.mu.Lock()
	defer s.egress.mu.Unlock()
	s.egress.handler = h
}

func attestEgress(s *fakeSandbox) *sandbox.AttestedEgress {
	plan := s.spec.Egress
	if plan == nil || s.backend.Fault == FaultEgressLies {
		return nil
	}
	return &sandbox.AttestedEgress{Listening: []string{"tcp 0.0.0.0:" + strconv.Itoa(plan.ProxyPort())}, Capture: plan.Capture}
}

// addNumber sets the number of a command and the variables of its proxy. The environment
// of the command is the sandbox's own, or another one.
func addNumber(c *fakeCommand, cmd *sandbox.Command, own bool) {
	plan := c.sb.spec.Egress
	if plan == nil {
		return
	}
	e := &c.sb.egress
	e.mu.Lock()
	e.number++
	c.number = e.number
	if e.running == nil {
		e.running, e.open, e.places = map[int]*fakeCommand{}, map[*fakeConn]struct{}{}, map[netip.AddrPort]chan struct{}{}
	}
	e.running[c.number] = c
	e.mu.Unlock()
	if cmd.NotifyNumber != nil {
		cmd.NotifyNumber(c.number)
	}
	shown := *plan
	if c.sb.backend.Fault == FaultEgressRoots {
		shown.Roots = nil
	}
	if c.sb.backend.Fault == FaultEgressReserved {
		shown.Reserved = false
	}
	switch {
	case own && !cmd.Separate:
		cmd.Env = shown.CommandEnv(cmd.Env, c.sb.spec.Env, c.number)
	case cmd.Proxy || c.sb.backend.Fault == FaultEgressReserved:
		cmd.Env = shown.AccessEnv(cmd.Env, cmd.Variables, c.number)
	}
}

// endConns ends the connections of a command that is over.
func endConns(c *fakeCommand) {
	e := &c.sb.egress
	e.mu.Lock()
	delete(e.running, c.number)
	e.mu.Unlock()
	if c.sb.backend.Fault != FaultEgressOutlives {
		e.end(func(conn *fakeConn) bool { return conn.command == c })
	}
}

// end resets the connections that match.
func (e *fakeEgress) end(match func(c *fakeConn) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.open {
		if match(c) {
			c.cancel()
			_ = c.Close()
		}
	}
}

// dialerOf returns a function that connects a command to a listener of the guest.
func dialerOf(c *fakeCommand) probing.Dial {
	return func(addr string) (*net.TCPConn, error) { return dialFake(c, addr) }
}

func dialFake(c *fakeCommand, addr string) (*net.TCPConn, error) {
	if addr == ownProxy {
		addr = proxyOf(c.number)
	}
	local, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	plan, fault := c.sb.spec.Egress, c.sb.backend.Fault
	if plan == nil && fault == FaultEgressAlways {
		plan = &sandbox.EgressPlan{}
	}
	if plan == nil || int(local.Port()) != plan.ProxyPort() && !slices.Contains(plan.Capture, int(local.Port())) {
		return nil, syscall.ECONNREFUSED
	}
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	near, err := net.DialTCP("tcp4", nil, l.Addr().(*net.TCPAddr))
	if err != nil {
		return nil, err
	}
	far, err := l.AcceptTCP()
	if err != nil {
		return nil, errors.Join(err, near.Close())
	}
	uid := sandbox.CommandUID
	if c.spec.Identity > 0 && fault != FaultEgressOwner {
		uid = sandbox.IdentityBase(sandbox.CommandUID, sandbox.CommandGID) + c.spec.Identity
	}
	go serveConn(c.sb, &fakeConn{TCPConn: far, local: local, uid: uid, fault: fault})
	return near, nil
}

// placesOf returns a channel that has room for the connections to an address.
func (e *fakeEgress) placesOf(local netip.AddrPort) chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.places != nil && e.places[local] == nil {
		e.places[local] = make(chan struct{}, sandbox.MaxCommandConns)
	}
	return e.places[local]
}

// serveConn calls the handler for a connection.
func serveConn(s *fakeSandbox, c *fakeConn) {
	e := &s.egress
	if places := e.placesOf(c.local); c.fault != FaultEgressAny && places != nil {
		select {
		case places <- struct{}{}:
		case <-s.done:
			_ = c.Close()
			return
		}
		defer func() {
			if c.fault != FaultEgressPlaces || c.ended {
				<-places
			}
		}()
	}
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	defer c.cancel()
	e.mu.Lock()
	h := e.handler
	c.command = e.running[sandbox.CommandNumber(c.local.Addr())]
	if e.open != nil {
		e.open[c] = struct{}{}
	}
	e.mu.Unlock()
	if h != nil {
		h.ServeEgress(ctx, struct{ sandbox.EgressConn }{c}) // without what io.Copy would use instead of Read
	} else if c.fault == FaultEgressUnserved {
		_ = c.CloseWrite()
	}
	_ = c.Close()
	e.mu.Lock()
	delete(e.open, c)
	e.mu.Unlock()
}

// connectFake does the verbs that connect to the guest's listeners.
func connectFake(c *fakeCommand, verb string, args []string) (sandbox.ExitStatus, error) {
	switch verb {
	case "egress-echo":
		size, err := strconv.Atoi(args[1])
		if err != nil {
			return sandbox.ExitStatus{}, err
		}
		return sandbox.ExitStatus{}, probing.Echo(dialerOf(c), args[0], size)
	case "egress-first":
		for _, addr := range args {
			text, err := probing.First(dialerOf(c), addr)
			if err != nil {
				return sandbox.ExitStatus{}, err
			}
			fmt.Fprintln(c.stdout, text)
		}
		return sandbox.ExitStatus{}, nil
	case "egress-hold":
		conn, err := probing.Hold(dialerOf(c), args[0])
		if conn != nil {
			defer conn.Close()
		}
		if err != nil {
			return sandbox.ExitStatus{}, err
		}
		return c.hangUntilSignal(), nil
	}
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return sandbox.ExitStatus{}, err
	}
	if verb == "egress-storm" {
		return sandbox.ExitStatus{}, probing.Storm(dialerOf(c), args[0], n)
	}
	count, err := probing.Many(dialerOf(c), args[0], n)
	fmt.Fprintln(c.stdout, count)
	return sandbox.ExitStatus{}, err
}

// lookUpFake answers the questions of a program about a name.
func lookUpFake(c *fakeCommand, name string) string {
	const typeAddress, typeText = 1, 16
	c.sb.egress.mu.Lock()
	h := c.sb.egress.handler
	c.sb.egress.mu.Unlock()
	fault := c.sb.backend.Fault
	var text strings.Builder
	for _, l := range probing.Lookups {
		fmt.Fprintf(&text, "%s %d ", l.Network, l.Type)
		addr, ok := netip.Addr{}, true
		if l.Type != typeText || fault == FaultEgressAsks {
			addr, ok = h.LookupName(context.Background(), name)
		}
		switch {
		case !ok && fault == FaultEgressRefuses:
			fmt.Fprintln(&text, 5)
		case !ok && l.Type != typeText:
			fmt.Fprintln(&text, 3)
		case l.Type == typeAddress:
			fmt.Fprintln(&text, 0, addr)
		default:
			fmt.Fprintln(&text, 0)
		}
	}
	return text.String()
}

// readRoots reads a file of the directory of certificates.
func readRoots(c *fakeCommand, name string) ([]byte, error) {
	plan := c.sb.spec.Egress
	if plan == nil || len(plan.Roots) == 0 || !slices.Contains([]string{"ca.pem", "bundle.pem"}, name) {
		return nil, syscall.ENOENT
	}
	return plan.Roots, nil
}
