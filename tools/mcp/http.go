package mcp

import (
	"context"
	"net/http"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// httpLink is a [link] to a server over HTTP.
type httpLink struct {
	mcp.Transport
	client  *http.Client
	ended   chan struct{}
	endOnce sync.Once
}

// openHTTP returns the link to a server over HTTP. Nothing is sent before Connect.
func (s *server) openHTTP() (link, error) {
	client, err := s.set.opts.HTTPClient(s.cfg)
	if err != nil {
		return nil, &launchError{err}
	}
	own := *client
	own.Transport = &headerTransport{next: client.Transport, headers: s.cfg.Headers}
	l := &httpLink{client: &own, ended: make(chan struct{})}
	if s.cfg.SSE {
		l.Transport = &mcp.SSEClientTransport{Endpoint: s.cfg.URL, HTTPClient: l.client}
	} else {
		l.Transport = &mcp.StreamableClientTransport{Endpoint: s.cfg.URL, HTTPClient: l.client}
	}
	return l, nil
}

func (l *httpLink) done() <-chan struct{} { return l.ended }

func (l *httpLink) err() error { return ErrClosed }

func (l *httpLink) stderr() (string, int64) { return "", 0 }

// stop implements [link]. The session closes its connections itself.
func (l *httpLink) stop(context.Context) error {
	l.endOnce.Do(func() { close(l.ended) })
	l.client.CloseIdleConnections()
	return nil
}

// headerTransport adds headers to every request.
type headerTransport struct {
	next    http.RoundTripper
	headers map[string]string
}

// RoundTrip implements [http.RoundTripper].
func (t *headerTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	for name, value := range t.headers {
		req.Header.Set(name, value)
	}
	next := t.next
	if next == nil {
		next = http.DefaultTransport
	}
	return next.RoundTrip(req)
}
