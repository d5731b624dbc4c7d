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

// openHTTP returns a link to a server over HTTP. It sends nothing before Connect.
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
	limit := l.guard.limits.lineBytes
	if sse {
		l.transport = &mcp.SSEClientTransport{Endpoint: s.cfg.URL, HTTPClient: own, MaxEventSize: limit}
	} else {
		transport := &mcp.StreamableClientTransport{
			Endpoint: s.cfg.URL, HTTPClient: own, MaxEventSize: limit,
			// Each reconnection without news counts, and proxies close idle
			// streams. Calls have their own bounds.
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

// openOAuth returns the handler that authorizes the requests of all links, and
// obtains tokens through next. It returns nil if the server's headers authorize
// them, or if no tokens are available.
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

func (l *httpLink) Connect(ctx context.Context) (mcp.Connection, error) {
	// The SSE transport's stream lives as long as the context that opens it.
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

// endLink ends the link and its requests. The first cause counts.
func (l *httpLink) endLink(cause error) {
	l.once.Do(func() {
		l.cancel(cause)
		close(l.ended)
	})
}

// stopServer also ends the session at the server.
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
	_ = awaitGroup(ctx, &l.guard.running)
	l.guard.CloseIdleConnections()
	return nil
}

const maxRedirects = 5

// checkRedirect refuses redirects that change the method, which would lose the
// message. [guardTransport] refuses redirects to other hosts.
func checkRedirect(req *http.Request, via []*http.Request) error {
	switch {
	case req.Method != via[0].Method:
		return &ProtocolError{"a redirect that turns a message into a request for a page"}
	case len(via) > maxRedirects:
		return &ProtocolError{"too many redirects"}
	}
	return nil
}

// refusesStreamable reports whether a server refused the first message as servers
// do that only have the older transport.
func refusesStreamable(l link) bool {
	h, ok := l.(*httpLink)
	return ok && h.guard.refusedFirst()
}
