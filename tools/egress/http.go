package egress

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"hash"
	"io"
	"log"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// httpConn is a program's HTTP connection: to the proxy, or in a tunnel to one
// host.
type httpConn struct {
	s *Server
	c *client
	// tunnel is nil for the proxy itself.
	tunnel    *tunnel
	transport *transport
}

// tunnel is a connection to one host in which requests are read.
type tunnel struct {
	request
	scheme string // http or https
}

func (t *tunnel) origin() rule.Origin {
	return rule.Origin{Scheme: t.scheme, Host: t.host, Port: t.port}
}

// serveHTTP serves the HTTP/1 requests of a connection: to one host if t is set.
func (c *client) serveHTTP(ctx context.Context, t *tunnel) {
	s := c.s
	x := s.newHTTPConn(c, t)
	defer x.transport.close()
	c.small = c.br
	c.br = bufio.NewReaderSize(c.br, maxHeadBytes)
	for x.serveOne(ctx) {
		err := c.limitTime(s.times.idle, func() error {
			_, err := c.br.Peek(1)
			return err
		})
		if err != nil {
			return
		}
	}
}

// newHTTPConn returns an httpConn with its own transport, so that no connection to
// a host serves two programs.
func (s *Server) newHTTPConn(c *client, t *tunnel) *httpConn {
	return &httpConn{s: s, c: c, tunnel: t, transport: newTransport(s, 1)}
}

// serveOne serves one request, and reports whether there may be another.
func (x *httpConn) serveOne(ctx context.Context) bool {
	s, c := x.s, x.c
	r := x.newRequest()
	var h *head
	var req *http.Request
	err := c.limitTime(s.times.header, func() (err error) {
		h, err = peekHead(c.br)
		if err != nil || h.method == http.MethodConnect {
			return err
		}
		req, err = http.ReadRequest(c.br)
		if err != nil {
			return newRefusal(rule.ReasonInvalidRequest, "the request is not forwarded: it is invalid")
		}
		return nil
	})
	if h != nil {
		r.method, r.url = h.method, shownURL(h.target)
	}
	if err == nil && req == nil {
		if x.tunnel == nil {
			_, _ = c.br.Discard(len(h.text))
			if c.br.Buffered() == 0 { // a tunnel needs no room for heads
				c.br = c.small
			}
			c.serveConnect(ctx, h)
			return false
		}
		err = newRefusal(rule.ReasonMethod, "CONNECT is not allowed in a tunnel")
	}
	if err == nil {
		return x.answerRequest(ctx, h, req, r)
	}
	if f, ok := errors.AsType[*refusal](err); ok {
		s.reportDenied(r, f)
		c.answerRefusal(r, f)
	}
	return false
}

func (x *httpConn) newRequest() request {
	if x.tunnel != nil {
		return x.tunnel.request
	}
	return x.c.newRequest(WayHTTP, "", 0)
}

// answerRequest answers a request and reports whether there may be another.
func (x *httpConn) answerRequest(ctx context.Context, h *head, req *http.Request, r request) (again bool) {
	c := x.c
	w := newResponseWriter(c, req)
	body := &requestBody{ReadCloser: req.Body, w: w, done: req.Body == http.NoBody}
	if expect := req.Header.Get("Expect"); expect != "" {
		req.Header.Del("Expect")
		body.mustContinue = strings.EqualFold(expect, "100-continue") && req.ProtoAtLeast(1, 1)
	}
	if !body.done {
		req.Body, w.body = body, body
	}
	defer func() {
		if cause := recover(); cause != nil {
			if cause != http.ErrAbortHandler { //nolint:errorlint // panics have it as it is
				panic(cause) // ends the connection
			}
			again = false // the response was cut off: the program must not take it for complete
		}
	}()
	t, err := x.readTarget(h)
	if err != nil {
		if x.tunnel == nil {
			r.host, r.port = t.Host, t.Port
		}
		x.answerRefused(w, r, asRefusal(ctx, err))
	} else if x.s.isLocal(t.Host) {
		x.serveLocal(ctx, w, req, t, r)
	} else {
		x.forwardRequest(ctx, w, req, t, r)
	}
	if w.hijacked {
		return false
	}
	if !body.isDone() {
		w.setClosing()
	}
	if w.finishResponse() != nil {
		return false
	}
	if !w.closing {
		return true
	}
	_ = c.CloseWrite()
	if body.isDone() {
		c.finishConn()
		return false
	}
	// A transport may still read the body, so it can't be drained here.
	select {
	case <-ctx.Done():
	case <-time.After(x.s.times.linger):
	}
	return false
}

// answerRefused reports a refusal and answers with it. It panics with
// [http.ErrAbortHandler] if f is nil.
func (x *httpConn) answerRefused(w http.ResponseWriter, r request, f *refusal) {
	if f == nil {
		panic(http.ErrAbortHandler)
	}
	x.s.reportDenied(r, f)
	closeUnread(w)
	writeRefusal(w, r, f)
}

// closeUnread ends an HTTP/1 connection after the response if the request's body is
// unread: the program must not send another request behind it.
func closeUnread(w http.ResponseWriter) {
	for {
		switch inner := w.(type) {
		case *responseWriter:
			if inner.body != nil && !inner.body.isDone() {
				inner.setClosing()
			}
			return
		case interface{ Unwrap() http.ResponseWriter }:
			w = inner.Unwrap()
		default:
			return
		}
	}
}

// readTarget returns a request's canonical URL. The Host header must match it.
func (x *httpConn) readTarget(h *head) (rule.Target, error) {
	raw := h.target
	switch {
	case x.tunnel != nil && strings.HasPrefix(raw, "/"):
		raw = x.tunnel.origin().String() + raw
	case x.tunnel != nil:
		return rule.Target{}, newRefusal(rule.ReasonAuthority, "the target is not a path of %s", x.tunnel.host)
	case strings.HasPrefix(raw, "/"):
		if mirrored, ok := x.s.opts.mirrorTarget(raw); ok { // Host names the proxy
			return rule.ParseTarget(mirrored)
		}
		return rule.Target{}, newRefusal(rule.ReasonInvalidURL, "this is a proxy, and serves absolute URLs only")
	}
	t, err := rule.ParseTarget(raw)
	if err != nil {
		return rule.Target{Origin: rule.Origin{Host: shownHost(raw)}}, err
	}
	if x.tunnel == nil && t.Scheme != "http" {
		return t, newRefusal(rule.ReasonScheme, "https URLs are reached with CONNECT")
	}
	return t, h.checkHost(t.Origin)
}

// checkHost returns a *refusal unless the Host header matches an origin. It may be
// absent if the target names the host, or with HTTP/1.0.
func (h *head) checkHost(o rule.Origin) error {
	switch {
	case len(h.hosts) == 0 && (h.old || !strings.HasPrefix(h.target, "/")):
		return nil
	case len(h.hosts) == 0:
		return newRefusal(rule.ReasonAuthority, "the request names no host")
	}
	return checkHost(h.hosts[0], o)
}

func checkHost(value string, o rule.Origin) error {
	host, port, ok := splitAuthority(value)
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "": strconv.Itoa(int(o.Port))}[o.Scheme]
	}
	canonical, err := rule.CanonicalHost(host)
	if !ok || err != nil || canonical != o.Host || port != strconv.Itoa(int(o.Port)) {
		return newRefusal(rule.ReasonAuthority, "Host is not that of the target, %s", o.Host)
	}
	return nil
}

func splitAuthority(s string) (host, port string, ok bool) {
	if rest, found := strings.CutPrefix(s, "["); found {
		host, rest, found = strings.Cut(rest, "]")
		port, colon := strings.CutPrefix(rest, ":")
		return host, port, found && strings.Contains(host, ":") && (rest == "" || colon && port != "")
	}
	host, port, colon := strings.Cut(s, ":")
	return host, port, host != "" && colon == (port != "") && !strings.Contains(port, ":")
}

func (c *client) serveConnect(ctx context.Context, h *head) {
	s := c.s
	r := c.newRequest(WayConnect, shownHost("//"+h.target), 0)
	refuse := func(f *refusal) {
		if f != nil {
			s.reportDenied(r, f)
			c.answerRefusal(r, f)
		}
	}
	if err := r.readAuthority(h); err != nil {
		refuse(asRefusal(ctx, err))
		return
	}
	c.serveTunnel(ctx, r, func() error {
		_, err := io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
		return err
	}, refuse)
}

func (r *request) readAuthority(h *head) error {
	host, port, ok := splitAuthority(h.target)
	switch {
	case strings.Contains(h.target, "@"):
		return newRefusal(rule.ReasonUserinfo, "the target of CONNECT holds a user name")
	case !ok || port == "":
		return newRefusal(rule.ReasonInvalidURL, "the target of CONNECT is not a host and a port")
	case h.hasBody:
		return newRefusal(rule.ReasonInvalidRequest, "CONNECT has a body")
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || strings.HasPrefix(port, "+") {
		return newRefusal(rule.ReasonPort, "port %s is not one of 1 to 65535", utf8text.Clip(port, 32))
	}
	r.host, r.port = host, uint16(number)
	if err := r.canonicalizeHost(); err != nil {
		return err
	}
	return h.checkHost(rule.Origin{Host: r.host, Port: r.port})
}

// attempt is a request being forwarded. Its context carries it to the dial.
type attempt struct {
	request
	flow    *flow
	target  rule.Target
	conn    *hostConn // that carried it, if any
	upgrade bool      // WebSocket was asked for
	// misplaced is the placeholder found in the body, if any.
	misplaced atomic.Pointer[secret.MisplacedError]
}

type attemptKey struct{}

// context returns the flow's context with the attempt, which notes the connection
// that carries the request.
func (a *attempt) context() context.Context {
	return httptrace.WithClientTrace(context.WithValue(a.flow.ctx, attemptKey{}, a), &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		conn := got.Conn
		if secure, ok := conn.(*tls.Conn); ok {
			conn = secure.NetConn()
		}
		if h, ok := conn.(*hostConn); ok {
			a.conn = h
			h.requests.Add(1)
		}
	}})
}

// forwardRequest decides about a request for a canonical URL, and answers it with
// the host's response. It may panic with [http.ErrAbortHandler].
func (x *httpConn) forwardRequest(ctx context.Context, w http.ResponseWriter, req *http.Request, t rule.Target, r request) {
	r.host, r.port, r.method = t.Host, t.Port, req.Method
	r.url = withoutQuery(t.URL())
	f, err := x.s.admitRequest(ctx, r, func(p *rule.Policy) rule.Decision { return p.DecideRequest(t, req.Method) })
	if err != nil {
		x.answerRefused(w, r, asRefusal(ctx, err))
		return
	}
	defer f.cancel(nil)
	a := &attempt{request: r, flow: f, target: t}
	if err := x.s.opts.Secrets.Apply(req, t, a.misplaced.Store); err != nil {
		x.answerRefused(w, r, asRefusal(ctx, err))
		return
	}
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &guardedBody{req.Body, x.s}
	}
	w, finish := x.s.opts.Secrets.HideWriter(w, t.Origin)
	defer finish()
	if x.serveRegistry(f, w, req, t, r) {
		return
	}
	a.upgrade = strings.EqualFold(req.Header.Get("Upgrade"), "websocket")
	if !a.upgrade { // a server may ignore it, and what was switched to could not be read
		req.Header.Del("Upgrade")
		req.Header.Del("HTTP2-Settings")
	}
	// The context of a net/http request would end when its program half-closes.
	ctx = context.WithValue(a.context(), http.ServerContextKey, noServer) // makes ReverseProxy panic if the body is cut off
	proxy := &httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = t.URL()
			p.Out.Host = p.Out.URL.Host
		},
		Transport:      x.transport,
		FlushInterval:  -1,
		BufferPool:     buffers,
		ErrorLog:       discardLog,
		ModifyResponse: func(res *http.Response) error { return x.readResponse(a, res) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			x.s.reportRequested(a, nil, nil, false)
			if a.conn != nil {
				err = cmp.Or(a.conn.budgetError(), err)
			}
			if misplaced := a.misplaced.Swap(nil); misplaced != nil {
				err = misplaced
			}
			x.answerRefused(w, r, asRefusal(f.ctx, err))
		},
	}
	defer func() { // if the host answered before the body was sent
		if misplaced := a.misplaced.Swap(nil); misplaced != nil {
			x.s.reportDenied(r, asRefusal(f.ctx, misplaced))
		}
	}()
	proxy.ServeHTTP(w, req.WithContext(ctx))
}

var (
	noServer   = &http.Server{ReadHeaderTimeout: time.Second}
	discardLog = log.New(io.Discard, "", 0) //nolint:forbidigo // ReverseProxy and Server take no other
)

// readResponse refuses a response that can't be passed on, and hashes the body of
// others.
func (x *httpConn) readResponse(a *attempt, res *http.Response) error {
	if err := x.s.opts.Secrets.Hide(res, a.target.Origin); err != nil {
		return err
	}
	if isInvalidStatus(res.StatusCode) {
		return newFailure(nil, rule.ReasonProtocol, "the host answered with the invalid status %d", res.StatusCode)
	}
	if res.StatusCode == http.StatusSwitchingProtocols {
		if !a.upgrade || !strings.EqualFold(res.Header.Get("Upgrade"), "websocket") {
			return newFailure(nil, rule.ReasonProtocol, "the host switches to a protocol that was not asked for")
		}
		x.s.reportRequested(a, res, nil, true)
		return nil
	}
	res.Body = &responseBody{ReadCloser: res.Body, sum: sha256.New(), end: func(b *responseBody, err error) {
		x.s.reportRequested(a, res, b, err == io.EOF) //nolint:errorlint // readers return it as it is
		if _, over := errors.AsType[*limits.ExceededError](err); over {
			x.s.reportDenied(a.request, asRefusal(a.flow.ctx, err))
		}
	}}
	return nil
}

// isInvalidStatus reports whether a status can't end a request, so that a program
// would wait for another response.
func isInvalidStatus(status int) bool {
	return status < 200 && status != http.StatusSwitchingProtocols
}

// responseBody hashes the body of a response. It may be closed while it is read.
type responseBody struct {
	io.ReadCloser
	end func(b *responseBody, err error)

	mu    sync.Mutex
	ended bool
	sum   hash.Hash
	size  int64
}

var errBodyClosed = errors.New("the body was closed")

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return n, err
	}
	b.sum.Write(p[:n])
	b.size += int64(n)
	if err != nil {
		b.ended = true
		b.end(b, err)
	}
	return n, err
}

func (b *responseBody) Close() error {
	err := b.ReadCloser.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended {
		b.ended = true
		b.end(b, errBodyClosed)
	}
	return err
}
