package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// transport is an [http.Transport] that can end all of its connections.
type transport struct {
	http.Transport
	s *Server

	mu     sync.Mutex
	conns  map[*hostConn]struct{}
	closed bool
}

// dialContext connects to the host of the attempt in ctx.
func (t *transport) dialContext(ctx context.Context, _, _ string) (conn net.Conn, err error) {
	defer t.s.recoverPanic(func(failed error) { conn, err = nil, failed })
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	if !ok {
		return nil, errors.New("no request") // can't happen: transports pass the context's values on
	}
	r := a.request
	r.plain = a.target.Scheme == "http"
	h, err := t.s.connectHost(a.flow.ctx, a.flow, r) // ctx outlives the request
	if err != nil {
		return nil, err
	}
	h.setOnClose(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.conns, h)
	})
	t.mu.Lock()
	closed := t.closed
	if !closed {
		t.conns[h] = struct{}{}
	}
	t.mu.Unlock()
	if closed {
		_ = h.Close()
	}
	return h, nil
}

// close ends all connections. CloseIdleConnections is not enough: HTTP/2 takes a
// connection for idle only some time after its last response.
func (t *transport) close() {
	t.CloseIdleConnections()
	t.mu.Lock()
	t.closed = true
	left := slices.Collect(maps.Keys(t.conns))
	t.mu.Unlock()
	for _, h := range left {
		_ = h.Close()
	}
}

// newTransport returns a transport that keeps at most idle idle connections. Each
// request's context must have its attempt.
func newTransport(s *Server, idle int) *transport {
	t := &transport{s: s, conns: map[*hostConn]struct{}{}}
	t.Transport = http.Transport{
		DialContext:            t.dialContext,
		TLSClientConfig:        &tls.Config{RootCAs: s.opts.Roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    connectTime,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerConnection: maxHostBuffer, MaxReceiveBufferPerStream: maxHostBuffer / 2},
		DisableCompression:     true, // responses are passed on as they are
		MaxResponseHeaderBytes: 256 << 10,
		MaxIdleConns:           idle, // of all hosts: a program can name many
		MaxIdleConnsPerHost:    idle,
		IdleConnTimeout:        time.Minute,
		WriteBufferSize:        relayBytes,
		ReadBufferSize:         relayBytes,
	}
	if proxy := s.opts.Upstream; proxy != nil {
		t.DisableKeepAlives = true // a connection to the proxy is for many hosts
		plain := *proxy
		plain.Scheme = "http" // dialContext speaks TLS to it, if need be
		t.Proxy = func(r *http.Request) (*url.URL, error) {
			if r.URL.Scheme == "http" && r.URL.Hostname() != rule.HostName {
				return &plain, nil
			}
			return nil, nil
		}
	}
	return t
}
