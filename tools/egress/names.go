package egress

import (
	"context"
	"net/netip"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// Names numbers names, from 1. A number is never given to another name. The zero
// value is an empty table. It is safe for concurrent use.
type Names struct {
	mu     sync.Mutex
	number map[string]int
	list   []string // in the order of their numbers
}

// addrOf returns the address of a name, assigning one if needed, or false if the
// table is full.
func (n *Names) addrOf(name string) (netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	number, ok := n.number[name]
	if !ok {
		if len(n.list) >= maxNames {
			return netip.Addr{}, false
		}
		if n.number == nil {
			n.number = map[string]int{}
		}
		n.list = append(n.list, name)
		number = len(n.list)
		n.number[name] = number
	}
	return sandbox.NameAddr(number), true
}

func (n *Names) nameOf(addr netip.Addr) (string, bool) {
	number := sandbox.NameNumber(addr)
	n.mu.Lock()
	defer n.mu.Unlock()
	if number == 0 || number > len(n.list) {
		return "", false
	}
	return n.list[number-1], true
}

// LookupName implements [sandbox.EgressHandler]. It returns an address if
// connections to the name are allowed at any port, or a person can be asked about
// them. It resolves nothing. Names below invalid can't exist (RFC 6761) and get no
// address.
func (s *Server) LookupName(_ context.Context, name string) (addr netip.Addr, ok bool) {
	defer s.recoverPanic(func(error) { addr, ok = netip.Addr{}, false })
	addr, r, f := s.lookupName(name)
	if f != nil {
		s.reportDenied(r, f)
	}
	return addr, f == nil
}

func (s *Server) lookupName(name string) (netip.Addr, request, *refusal) {
	r := request{way: WayName, host: name, userKnown: true}
	host, err := rule.CanonicalHost(name)
	if err != nil {
		return netip.Addr{}, r, asRefusal(context.Background(), err)
	}
	r.host = host
	if host == "invalid" || strings.HasSuffix(host, ".invalid") || !s.mayBeAllowed(r) {
		return netip.Addr{}, r, newRefusal(rule.ReasonNotAllowed, "%s is not allowed", host)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return netip.Addr{}, r, newRefusal(rule.ReasonAddress, "%s is an address", host)
	}
	addr, ok := s.names.addrOf(host)
	if !ok {
		return netip.Addr{}, r, newRefusal(rule.ReasonTooManyNames, "the session has looked up %d names", maxNames)
	}
	return addr, r, nil
}

// mayBeAllowed reports whether a name is allowed, or can be asked about, at any
// port.
func (s *Server) mayBeAllowed(r request) bool {
	if s.isLocal(r.host) || s.policy.AllowsName(r.host) || s.asked.isNameGranted(r.host) {
		return true
	}
	for _, port := range s.policy.Ports() {
		r.port = port
		decide := func(p *rule.Policy) rule.Decision { return p.DecideHost(r.host, port) }
		if s.asked.canAsk(r, decide(s.policy), s.policy, decide) {
			return true
		}
	}
	return false
}

// serveCapture serves a connection to the address given to a name.
func (c *client) serveCapture(ctx context.Context, local netip.AddrPort) {
	s := c.s
	r := c.newRequest(WayCapture, local.Addr().String(), local.Port())
	host, ok := s.names.nameOf(local.Addr())
	if !ok {
		c.refuseConn(r, newRefusal(rule.ReasonAddress, "%s is not the address of a name", local.Addr()))
		return
	}
	r.host = host
	c.serveTunnel(ctx, r, func() error { return nil }, func(f *refusal) { c.refuseConn(r, f) })
}
