package mcp

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caisson-run/caisson/tools/mcp/oauth"
)

// closeTime bounds the request that ends a session at the server.
const closeTime = 6 * time.Second

// httpLink is a [link] to a server over HTTP: what all its requests have in common.
type httpLink struct {
	transport mcp.Transport
	guard     *guardTransport
	// ctx bounds every request. Its cause is why the link ended.
	ctx    context.Context
	cancel context.CancelCauseFunc
	ended  chan struct{}
	once   sync.Once

	mu   sync.Mutex
	conn mcp.Connection
}

// openHTTP returns the link to a server over HTTP. Nothing is sent before Connect.
func (s *server) openHTTP() (link, error) {
	client, err := s.set.opts.HTTPClient(s.cfg)
	if err != nil {
		return nil, &launchError{err}
	}
	l := &httpLink{ended: make(chan struct{})}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	sse := s.cfg.SSE || s.oldSSE
	if l.guard, err = newGuardTransport(l.ctx, client.Transport, s.cfg, newHTTPLimits(s.set.limits), sse, l.endLink); err != nil {
		return nil, &launchError{err}
	}
	own := &http.Client{Transport: l.guard, CheckRedirect: checkRedirect}
	limit := l.guard.limits.messageBytes
	if sse {
		l.transport = &mcp.SSEClientTransport{Endpoint: s.cfg.URL, HTTPClient: own, MaxEventSize: limit}
	} else {
		transport := &mcp.StreamableClientTransport{
			Endpoint: s.cfg.URL, HTTPClient: own, MaxEventSize: limit,
			// Each reconnection without news counts, and idle streams are closed by
			// proxies. Calls have their own bounds.
			MaxRetries: 1000,
		}
		handler, err := s.openOAuth(client.Transport)
		if err != nil {
			return nil, &launchError{err}
		}
		if handler != nil {
			transport.OAuthHandler = handler
		}
		l.transport = transport
	}
	return l, nil
}

// openOAuth returns what authorizes the requests of all links, with tokens that are
// obtained through next. It returns nil for a server whose headers do that, and where
// there are no tokens.
func (s *server) openOAuth(next http.RoundTripper) (*oauth.Handler, error) {
	if h := s.oauth.Load(); h != nil {
		return h, nil
	}
	for name := range s.cfg.Headers {
		if http.CanonicalHeaderKey(name) == "Authorization" {
			return nil, nil
		}
	}
	if s.set.opts.Tokens == nil && s.cfg.OAuth.Grant != oauth.GrantClient {
		return nil, nil
	}
	h, err := oauth.NewHandler(oauth.Server{
		Name: s.cfg.Name, URL: s.cfg.URL, Config: s.cfg.OAuth, Store: s.set.opts.Tokens, Client: oauth.NewClient(next),
	})
	if err != nil {
		return nil, err
	}
	s.oauth.Store(h)
	return h, nil
}

// Connect implements [mcp.Transport].
func (l *httpLink) Connect(ctx context.Context) (mcp.Connection, error) {
	// The stream of the SSE transport lives as long as the context that opens it.
	stop := context.AfterFunc(ctx, func() { l.cancel(context.Cause(ctx)) })
	conn, err := l.transport.Connect(l.ctx)
	if !stop() && err == nil {
		_ = conn.Close() // ctx has ended
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	return conn, nil
}

func (l *httpLink) endSignal() <-chan struct{} { return l.ended }

func (l *httpLink) endCause() error {
	return context.Cause(l.ctx)
}

func (l *httpLink) stderrTail() (string, int64) { return "", 0 }

// endLink ends the link and its requests; the first cause counts.
func (l *httpLink) endLink(cause error) {
	l.once.Do(func() {
		l.cancel(cause)
		close(l.ended)
	})
}

// stopServer implements [link]. It ends the session at the server.
func (l *httpLink) stopServer(ctx context.Context) error {
	l.mu.Lock()
	conn := l.conn
	l.mu.Unlock()
	if conn != nil {
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			_ = conn.Close() // a server that does not take it ends the session by itself
		}()
		select {
		case <-closed:
		case <-ctx.Done():
		case <-time.After(closeTime):
		}
	}
	l.endLink(ErrClosed)
	l.guard.waitRunning(ctx)
	l.guard.CloseIdleConnections()
	return nil
}

// maxRedirects bounds the redirects of one request.
const maxRedirects = 5

// checkRedirect refuses redirects that change the method, which would lose the message.
// Those to another host are refused by [guardTransport].
func checkRedirect(req *http.Request, via []*http.Request) error {
	switch {
	case req.Method != via[0].Method:
		return &ProtocolError{"a redirect that turns a message into a request for a page"}
	case len(via) > maxRedirects:
		return &ProtocolError{"too many redirects"}
	}
	return nil
}

// refusesStreamable reports whether a server refused the first message over streamable
// HTTP in the way of one that only has the older transport, so that it is worth a try.
func refusesStreamable(l link) bool {
	h, ok := l.(*httpLink)
	return ok && h.guard.refusedFirst()
}
