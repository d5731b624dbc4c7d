package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/ca"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// serveEndedTLS serves a tunnel whose TLS ends here, because https rules apply to
// its requests.
func (c *client) serveEndedTLS(ctx context.Context, r request) {
	s := c.s
	conn := tls.Server(netConn{c}, s.opts.Authority.ServerConfig(r.host))
	err := c.limitTime(s.times.header, func() error { return conn.HandshakeContext(ctx) })
	if err != nil {
		if wrong, ok := errors.AsType[*ca.ServerNameError](err); ok {
			s.reportDenied(r, newRefusal(rule.ReasonSNI, "the first message of TLS names another host than %s", wrong.Host))
			c.finishConn() // the alert was sent
		}
		// A program that doesn't trust the authority can't be told from one that hung up.
		return
	}
	inner := newClient(s, &tlsConn{EgressConn: c, tls: conn})
	if conn.ConnectionState().NegotiatedProtocol != "h2" {
		inner.serveHTTP(ctx, &tunnel{request: r, scheme: "https"})
		return
	}
	x := s.newHTTPConn(inner, &tunnel{request: r, scheme: "https"})
	defer x.transport.close()
	x.serveHTTP2(ctx, conn)
}

type tlsConn struct {
	sandbox.EgressConn
	tls *tls.Conn
}

func (c *tlsConn) Read(p []byte) (int, error)  { return c.tls.Read(p) }
func (c *tlsConn) Write(p []byte) (int, error) { return c.tls.Write(p) }

func (c *tlsConn) CloseWrite() error {
	return errors.Join(c.tls.CloseWrite(), c.EgressConn.CloseWrite())
}

// serveHTTP2 serves an HTTP/2 connection until it and all its requests have ended.
func (x *httpConn) serveHTTP2(ctx context.Context, conn *tls.Conn) {
	var mu sync.Mutex // a request may begin while the connection ends
	var requests sync.WaitGroup
	over := false
	ended := make(chan struct{})
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			if over {
				mu.Unlock()
				return
			}
			requests.Add(1)
			mu.Unlock()
			defer requests.Done()
			defer x.s.abortOnPanic()
			x.answerHTTP2(w, r)
		}),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: x.s.times.header,
		IdleTimeout:       x.s.times.idle,
		MaxHeaderBytes:    maxHeadBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: maxProgramBuffer, MaxReceiveBufferPerStream: maxProgramBuffer},
		ErrorLog:          discardLog,
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				close(ended)
			}
		},
	}
	l := &oneListener{conn: conn, ended: ended}
	_ = server.Serve(l) // ends with the connection
	mu.Lock()
	over = true
	mu.Unlock()
	requests.Wait()
}

// oneListener accepts one connection and ends with it.
type oneListener struct {
	conn  net.Conn
	ended <-chan struct{}
	once  sync.Once
}

func (l *oneListener) Accept() (conn net.Conn, err error) {
	l.once.Do(func() { conn = l.conn })
	if conn == nil {
		<-l.ended
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (*oneListener) Close() error { return nil }

func (l *oneListener) Addr() net.Addr { return l.conn.LocalAddr() }

func (x *httpConn) answerHTTP2(w http.ResponseWriter, req *http.Request) {
	select {
	case x.s.streams <- struct{}{}:
		defer func() { <-x.s.streams }()
	case <-req.Context().Done():
		return
	}
	r := x.newRequest()
	r.method, r.url = req.Method, shownURL(x.tunnel.origin().String()+req.URL.Path)
	t, err := x.readHTTP2(req)
	if err != nil {
		x.answerRefused(w, r, asRefusal(req.Context(), err))
		return
	}
	req.Header.Del("Expect") // reading the body answers it
	x.forwardRequest(req.Context(), w, req, t, r)
}

// readHTTP2 returns the canonical URL of an HTTP/2 request, as readTarget does for
// HTTP/1.
func (x *httpConn) readHTTP2(req *http.Request) (rule.Target, error) {
	if req.Method == http.MethodConnect {
		return rule.Target{}, newRefusal(rule.ReasonMethod, "CONNECT is not allowed in a tunnel")
	}
	for name := range req.Header {
		if err := checkOverride(name); err != nil {
			return rule.Target{}, err
		}
	}
	if !strings.HasPrefix(req.RequestURI, "/") {
		return rule.Target{}, newRefusal(rule.ReasonInvalidURL, "the target is not a path of %s", x.tunnel.host)
	}
	t, err := rule.ParseTarget(x.tunnel.origin().String() + req.RequestURI)
	if err != nil {
		return rule.Target{}, err
	}
	if req.Host == "" {
		return t, newRefusal(rule.ReasonAuthority, "the request names no host")
	}
	for _, host := range slices.Concat([]string{req.Host}, req.Header["Host"]) {
		if err := checkHost(host, t.Origin); err != nil {
			return t, err
		}
	}
	return t, nil
}
