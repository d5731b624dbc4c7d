package egress

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// connectTime is the timeout for connecting to an upstream proxy, and for its
// answer.
const connectTime = 10 * time.Second

// hostConn is a metered and recorded connection to a host. It ends once: the first
// ending counts.
type hostConn struct {
	limits.MeteredConn
	s      *Server
	opened Opened
	start  time.Time
	timer  *time.Timer   // of the idle time
	done   chan struct{} // closed when the end is reported

	requests atomic.Int64

	mu      sync.Mutex
	onClose func()
	sni     string
	ending  string
	over    *limits.ExceededError // the budget that it exceeded, if any
}

// connectHost makes the connection that a flow allows for a request, after taking
// it from the budget and recording it. The error is a *refusal or the cause of ctx.
func (s *Server) connectHost(ctx context.Context, f *flow, r request) (*hostConn, error) {
	dialer := &rule.Dialer{Guard: s.opts.Guard, Resolver: s.opts.Resolver, PublicOnly: f.decision.PublicOnly, Deny: s.policy.Deny}
	if err := dialer.CheckLiteral(r.host, r.port); err != nil { // an upstream proxy would dial it
		return nil, asRefusal(ctx, err)
	}
	if err := takeConnection(s.opts.Budget, r.host); err != nil {
		return nil, asRefusal(ctx, err)
	}
	if !s.addConn() {
		return nil, errClosed
	}
	reported := false // whether reportClosed calls conns.Done
	defer func() {
		if !reported {
			s.conns.Done()
		}
	}()
	h := &hostConn{s: s, start: time.Now(), done: make(chan struct{}), opened: Opened{
		ID: s.opts.Numbers.Add(1), Command: r.command, Way: r.way, Host: r.host, Port: r.port,
		Rule: f.decision.Rule.String(), Asked: f.answer != (rule.Rule{}),
	}}
	if err := s.opts.Opened(h.opened); err != nil {
		failed := newRefusal(rule.ReasonRecord, "the connection could not be recorded")
		failed.err = err
		return nil, failed
	}
	reported = true
	ending := EndingFailed // if the dial panics
	defer func() {
		if h.Conn == nil {
			h.reportClosed(ending)
		}
	}()
	conn, err := s.dialAllowed(ctx, f, dialer, r)
	if err != nil {
		failed := asRefusal(ctx, err)
		if failed == nil {
			ending = EndingCanceled
			return nil, context.Cause(ctx)
		}
		ending = failed.reason
		return nil, failed
	}
	h.Conn, h.Budget = conn, s.opts.Budget
	h.timer = time.AfterFunc(s.times.idle, h.checkIdle)
	return h, nil
}

// dialAllowed connects to a host that a flow allows. If a person allowed the host
// and it has a private address, it asks about the address, but only once: the name
// may have another one at each look-up.
func (s *Server) dialAllowed(ctx context.Context, f *flow, dialer *rule.Dialer, r request) (net.Conn, error) {
	conn, err := s.opts.dialHost(ctx, dialer, r)
	for asked := false; s.opts.AskAddress && f.answer != (rule.Rule{}); {
		refused, ok := errors.AsType[*rule.AddressError](err)
		if !ok || !refused.IsNetwork() || slices.Contains(dialer.Named, refused.Addr) {
			break
		}
		at := r
		at.addr = refused.Addr
		if !s.asked.isGranted(at) {
			if asked {
				break
			}
			asked = true
			if err := s.asked.awaitAddress(ctx, at); err != nil {
				return nil, err
			}
		}
		dialer.Named = append(dialer.Named, refused.Addr)
		conn, err = s.opts.dialHost(ctx, dialer, r)
	}
	return conn, err
}

func takeConnection(budget *limits.Egress, host string) error {
	if err := budget.Left(); err != nil {
		return err
	}
	if err := budget.Host(host); err != nil {
		return err
	}
	return budget.Connection()
}

func (o *Options) dialHost(ctx context.Context, dialer *rule.Dialer, r request) (net.Conn, error) {
	if o.Upstream == nil || r.host == rule.HostName { // to a proxy, HostName is another machine
		return dialer.Dial(ctx, r.host, r.port)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, 2*connectTime, os.ErrDeadlineExceeded)
	defer cancel()
	conn, err := o.dialProxy(ctx)
	if err != nil {
		return nil, newFailure(err, rule.ReasonConnect, "no connection to the configured proxy")
	}
	if r.plain {
		return conn, nil
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	tunnel, err := connectThrough(conn, o.Upstream.User, rule.Origin{Host: r.host, Port: r.port}.Address())
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return tunnel, nil
}

// dialProxy connects to the upstream proxy. Its address is not checked: the
// operator chose it.
func (o *Options) dialProxy(ctx context.Context) (net.Conn, error) {
	port := cmp.Or(o.Upstream.Port(), map[string]string{"http": "80", "https": "443"}[o.Upstream.Scheme])
	dialer := &net.Dialer{Timeout: connectTime, Resolver: o.Resolver}
	address := net.JoinHostPort(o.Upstream.Hostname(), port)
	if o.Upstream.Scheme == "http" {
		return dialer.DialContext(ctx, "tcp", address)
	}
	d := &tls.Dialer{NetDialer: dialer, Config: &tls.Config{RootCAs: o.Roots, MinVersion: tls.VersionTLS12}}
	return d.DialContext(ctx, "tcp", address)
}

func connectThrough(conn net.Conn, user *url.Userinfo, address string) (net.Conn, error) {
	head := "CONNECT " + address + " HTTP/1.1\r\nHost: " + address + "\r\n"
	if user != nil {
		password, _ := user.Password()
		head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)) + "\r\n"
	}
	if _, err := conn.Write([]byte(head + "\r\n")); err != nil {
		return nil, newFailure(err, rule.ReasonConnect, "the configured proxy failed")
	}
	br := bufio.NewReader(conn)
	res, err := http.ReadResponse(br, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, newFailure(err, rule.ReasonConnect, "the configured proxy failed")
	}
	if res.StatusCode != http.StatusOK {
		return nil, newFailure(fmt.Errorf("status %d", res.StatusCode), rule.ReasonConnect, "the configured proxy answered with status %d", res.StatusCode)
	}
	if br.Buffered() == 0 {
		return conn, nil
	}
	return &bufferedConn{Conn: conn, br: br}, nil // the host has already sent something
}

type bufferedConn struct {
	net.Conn
	br *bufio.Reader
}

func (c *bufferedConn) Read(p []byte) (int, error) { return c.br.Read(p) }

func (c *bufferedConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(conn net.Conn) error {
	if w, ok := conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported // can't happen: all connections are TCP or TLS
}

func (h *hostConn) checkIdle() {
	last := h.LastMoved()
	if last.Before(h.start) {
		last = h.start
	}
	left := h.s.times.idle - time.Since(last)
	if left > 0 {
		h.timer.Reset(left)
		return
	}
	h.endConn(EndingIdle)
}

// Read reads from the host. It ends the connection if the budget is used up or the
// host has reset it.
func (h *hostConn) Read(p []byte) (int, error) {
	n, err := h.MeteredConn.Read(p)
	h.checkBudget(err)
	if errors.Is(err, syscall.ECONNRESET) {
		h.endConn(EndingHost)
	}
	return n, err
}

func (h *hostConn) Write(p []byte) (int, error) {
	n, err := h.MeteredConn.Write(p)
	h.checkBudget(err)
	return n, err
}

func (h *hostConn) checkBudget(err error) {
	over, ok := errors.AsType[*limits.ExceededError](err)
	if !ok {
		return
	}
	h.mu.Lock()
	h.over = over
	h.mu.Unlock()
	h.endConn(string(over.Kind))
}

// budgetError returns the error of the budget that the connection exceeded, or nil.
func (h *hostConn) budgetError() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over == nil {
		return nil
	}
	return h.over
}

func (h *hostConn) CloseWrite() error { return closeWrite(h.Conn) }

func (h *hostConn) Close() error {
	h.endConn(EndingDone)
	return nil
}

// endConn ends the connection and waits until that is reported. The first ending
// counts. Unless that is EndingDone, a plain TCP connection is reset.
func (h *hostConn) endConn(ending string) {
	h.mu.Lock()
	if h.ending != "" {
		h.mu.Unlock()
		<-h.done
		return
	}
	h.ending = ending
	onClose := h.onClose
	h.mu.Unlock()
	h.timer.Stop()
	if tcp, ok := h.Conn.(*net.TCPConn); ok && ending != EndingDone {
		_ = tcp.SetLinger(0)
	}
	_ = h.Conn.Close()
	h.reportClosed(ending)
	if onClose != nil {
		onClose()
	}
}

// setOnClose sets a function to call when the connection ends, or calls it now if
// it has.
func (h *hostConn) setOnClose(f func()) {
	h.mu.Lock()
	h.onClose = f
	ended := h.ending != ""
	h.mu.Unlock()
	if ended {
		f()
	}
}

func (h *hostConn) reportClosed(ending string) {
	defer h.s.conns.Done()
	defer close(h.done)
	out := Closed{Opened: h.opened, Ending: ending, Duration: time.Since(h.start), Requests: int(h.requests.Load())}
	h.mu.Lock()
	out.SNI = h.sni
	h.mu.Unlock()
	if h.Conn != nil {
		if addr, ok := h.RemoteAddr().(*net.TCPAddr); ok {
			out.Addr = addr.AddrPort()
		}
		out.Sent, out.Received = h.Sent(), h.Received()
	}
	h.s.opts.Closed(out)
}

func (h *hostConn) setSNI(name string) {
	name, _ = tools.Display(name)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sni = name
}
