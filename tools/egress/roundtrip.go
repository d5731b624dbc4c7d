package egress

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"sync"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// RefusedError reports one of Caisson's own requests that was refused or failed.
type RefusedError struct {
	Method string
	// URL has no query and no credentials.
	URL string
	// Reason is a reason of package rule, or of a budget. Denied reports whether
	// the request was refused, not failed by the network.
	Reason string
	Denied bool
	// Message describes the reason. Err is the cause, or nil.
	Message string
	Err     error
}

func (e *RefusedError) Error() string { return e.Method + " " + e.URL + ": " + e.Message }

func (e *RefusedError) Unwrap() error { return e.Err }

// RoundTripper returns a transport for Caisson's own requests, such as to an MCP
// server. They are decided, dialled, metered and reported like programs' requests,
// including each request of a redirect. Errors are a *[RefusedError], or the cause
// of a context that ended. Response bodies must be closed.
func (s *Server) RoundTripper() http.RoundTripper { return roundTripper{s} }

type roundTripper struct{ s *Server }

func (t roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	s := t.s
	if !s.addConn() {
		if req.Body != nil {
			_ = req.Body.Close() // as [http.RoundTripper] demands
		}
		return nil, errClosed
	}
	defer s.conns.Done() // Close waits for what is reported here
	r := request{way: WayClient, method: req.Method, url: withoutQuery(req.URL), userKnown: true}
	fail := func(err error) (*http.Response, error) {
		if s.ctx.Err() != nil || errors.Is(err, errClosed) {
			return nil, errClosed
		}
		failed := asRefusal(req.Context(), err)
		if failed == nil {
			return nil, context.Cause(req.Context())
		}
		s.reportDenied(r, failed)
		return nil, &RefusedError{Method: r.method, URL: r.url, Reason: failed.reason, Denied: failed.denied, Message: failed.message, Err: failed.err}
	}
	target, err := rule.ParseTarget(req.URL.String())
	var a *attempt
	var end func()
	if err == nil {
		r.host, r.port = target.Host, target.Port
		a, end, err = s.beginAttempt(req.Context(), r, target, req.Method)
	}
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // as [http.RoundTripper] demands
		}
		return fail(err)
	}
	out := req.Clone(a.context())
	out.URL, out.Host = target.URL(), ""
	res, err := s.client.RoundTrip(out)
	if err != nil {
		if a.conn != nil {
			err = cmp.Or(a.conn.budgetError(), err)
		}
		s.reportRequested(a, nil, nil, false)
		end()
		return fail(err)
	}
	b := &responseBody{ReadCloser: res.Body, sum: sha256.New(), end: func(b *responseBody, err error) {
		s.reportRequested(a, res, b, errors.Is(err, io.EOF))
		end()
	}}
	res.Request, res.Body = req, b
	context.AfterFunc(a.flow.ctx, func() { _ = b.Close() }) // Close doesn't wait for a reader
	return res, nil
}

// beginAttempt decides about one of Caisson's own requests. The caller must call end
// when the request is over. Close ends its context and waits for it.
func (s *Server) beginAttempt(ctx context.Context, r request, t rule.Target, method string) (_ *attempt, end func(), err error) {
	if !s.addConn() {
		return nil, nil, errClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(errClosed) })
	over := sync.OnceFunc(func() {
		stop()
		cancel(nil) // and the flow
		s.conns.Done()
	})
	admitted := false
	defer func() {
		if !admitted { // also after a panic
			over()
		}
	}()
	f, err := s.admitRequest(ctx, r, func(p *rule.Policy) rule.Decision { return p.DecideRequest(t, method) })
	if err != nil {
		return nil, nil, err
	}
	admitted = true
	return &attempt{request: r, flow: f, target: t}, over, nil
}

func (s *Server) reportRequested(a *attempt, res *http.Response, b *responseBody, complete bool) {
	out := Requested{Command: a.command, Method: a.method, URL: a.url, Complete: complete}
	if a.conn != nil {
		out.ID = a.conn.opened.ID
	}
	if res != nil {
		out.Status = res.StatusCode
	}
	if b != nil {
		out.Received, out.SHA256 = b.size, hex.EncodeToString(b.sum.Sum(nil))
	}
	s.opts.Requested(out)
}
