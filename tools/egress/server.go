package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// Server is the network of one session. It is a [sandbox.EgressHandler], and safe
// for concurrent use.
type Server struct {
	opts  Options
	times timeouts
	// slots has an element for each connection being served.
	slots chan struct{}
	// streams has an element for each HTTP/2 request being served.
	streams chan struct{}
	ctx     context.Context
	stop    context.CancelCauseFunc
	conns   sync.WaitGroup

	// files has the connections to registries whose files are cached.
	files  *transport
	client *transport

	names   *Names
	denials denials

	policy *rule.Policy
	asked  *questions

	mu     sync.Mutex
	closed bool
}

var _ sandbox.EgressHandler = (*Server)(nil)

var errClosed = errors.New("the session's network is closed")

// New returns a server for one session. It must be closed.
func New(o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("make egress server: %w", err)
	}
	s := &Server{
		opts: o, times: defaultTimeouts, slots: make(chan struct{}, maxConns), streams: make(chan struct{}, maxRequests),
		policy: o.Policy, names: o.Names,
	}
	s.guardCallbacks()
	s.files, s.client = newTransport(s, maxFileConns), newTransport(s, maxClientConns)
	s.denials.report = s.opts.Denied
	s.ctx, s.stop = context.WithCancelCause(context.Background())
	s.asked = &questions{
		ctx: s.ctx, conns: &s.conns, ask: o.Ask, guard: s.recoverPanic,
		open: map[endpoint]*question{}, allowed: map[grant]bool{}, refused: map[endpoint]string{},
	}
	return s, nil
}

// Close ends all connections and questions, waits for them, and reports the
// remaining refusals. It may be called twice.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop(errClosed)
	s.files.close()
	s.client.close()
	s.conns.Wait()
	s.denials.reportRest()
}

// Denials returns and forgets the refusals of a command, in the order of their
// first occurrence. Captured connections and lookups, whose command is unknown,
// have the number 0.
func (s *Server) Denials(command int) []Denied {
	return s.denials.takeIf(func(x Denied) bool { return x.Command == command })
}

// EndCommand forgets the answers for a command. It must be called when the command
// is over: another sandbox of the session counts commands anew.
func (s *Server) EndCommand(number int) { s.asked.forgetCommand(number) }

// ServeEgress implements [sandbox.EgressHandler].
func (s *Server) ServeEgress(ctx context.Context, conn sandbox.EgressConn) {
	s.serveConn(ctx, conn, caller{})
}

// caller is what is known about the program of a connection.
type caller struct {
	// foreign reports that the proxy is another identity's: all requests are refused.
	foreign bool
	// other reports that the program is not one of the agent's.
	other bool
}

// serveConn is ServeEgress.
func (s *Server) serveConn(ctx context.Context, conn sandbox.EgressConn, from caller) {
	defer func() { _ = conn.Close() }()
	if !s.addConn() {
		return
	}
	defer s.conns.Done()
	defer s.recoverPanic(nil)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.ctx, func() { cancel(errClosed) })()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	c := newClient(s, conn)
	c.caller = from
	local := conn.LocalAddr()
	switch {
	case sandbox.NameNumber(local.Addr()) != 0:
		c.serveCapture(ctx, local)
	case int(local.Port()) == s.opts.Port:
		c.serveProxy(ctx)
	default:
		r := c.newRequest(WayCapture, local.Addr().String(), local.Port())
		c.refuseConn(r, newRefusal(rule.ReasonAddress, "%s is not the address of a name", local.Addr()))
	}
}

// addConn adds a connection for Close to wait for. It returns false after Close.
func (s *Server) addConn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.conns.Add(1)
	}
	return !s.closed
}

// request is a program's request to connect to a host, by any way.
type request struct {
	way       Way
	host      string // canonical once it is decided
	port      uint16
	command   int
	userKnown bool
	caller
	// plain reports whether the connection carries unencrypted HTTP requests, which
	// an upstream proxy serves without a tunnel.
	plain bool
	// method and url describe an HTTP request, for reports.
	method, url string
	// addr is set in a question about an address.
	addr netip.Addr
}

// flow is an allowed request, while it lasts.
type flow struct {
	decision rule.Decision
	// answer is the rule of the answer that allowed the flow, or the zero value.
	answer rule.Rule
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// admitRequest decides whether a request is allowed, and asks about it if
// necessary. The flow must be cancelled. The error is a *refusal or the cause of
// ctx.
func (s *Server) admitRequest(ctx context.Context, r request, decide func(*rule.Policy) rule.Decision) (*flow, error) {
	if !r.userKnown {
		return nil, newRefusal(rule.ReasonUser, "the user of the program is unknown")
	}
	if r.foreign {
		return nil, newRefusal(rule.ReasonIdentity, "this is the proxy of another identity than the program's")
	}
	if err := s.opts.Secrets.CheckHost(r.host); err != nil {
		return nil, asRefusal(ctx, err)
	}
	forThis := false // whether a question was answered for this connection alone
	for {
		d := decide(s.policy)
		var answer rule.Rule
		if !d.Allowed() && (forThis || s.asked.isGranted(r)) {
			answer = rule.AnswerRule(r.host, r.port)
			d = decide(s.policy.WithAnswer(answer))
		}
		if d.Allowed() {
			f := &flow{decision: d, answer: answer}
			f.ctx, f.cancel = context.WithCancelCause(ctx)
			return f, nil
		}
		if answer != (rule.Rule{}) || !s.asked.canAsk(r, d, s.policy, decide) {
			return nil, refuseDecision(r, d)
		}
		var err error
		forThis, err = s.asked.awaitAnswer(ctx, r)
		if err != nil {
			return nil, err
		}
	}
}

// canAsk reports whether a person can be asked about a request: no rule of p covers
// the name, and the answer could allow the request. d is decide's decision under p.
func (qs *questions) canAsk(r request, d rule.Decision, p *rule.Policy, decide func(*rule.Policy) rule.Decision) bool {
	if qs.ask == nil || d.Reason != rule.ReasonNotAllowed || d.Rule != (rule.Rule{}) {
		return false
	}
	if _, err := netip.ParseAddr(r.host); err == nil {
		return false
	}
	return !p.DeniesName(r.host) && decide(p.WithAnswer(rule.AnswerRule(r.host, r.port))).Allowed()
}

func (r *request) canonicalizeHost() error {
	host, err := rule.CanonicalHost(r.host)
	if err != nil {
		return err
	}
	r.host = host
	if r.port == 0 {
		return &rule.Error{Reason: rule.ReasonPort, Message: "port 0 can't be connected to"}
	}
	return nil
}
