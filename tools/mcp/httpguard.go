package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// httpLimits bound what a server over HTTP may send. lineBytes bounds a message and
// an event, lines and bytes the rates of all streams together.
type httpLimits struct {
	frameLimits
	// errorBytes bounds the body of an unsuccessful response.
	errorBytes int
	// streamWait bounds the wait for the beginning of the stream for messages that
	// answer no request.
	streamWait time.Duration
	// streams bounds the rate of requests that open streams.
	streams pace
}

func newHTTPLimits(stdio frameLimits) httpLimits {
	l := httpLimits{frameLimits: stdio, errorBytes: 64 << 10, streamWait: 3 * time.Second, streams: pace{2, 16}}
	l.lines = pace{4 * stdio.lines.limit, 4 * stdio.lines.burst} // an event has up to four
	return l
}

// guardTransport sends requests to one server: only to its own origin, with the
// configured headers, and with bounds on everything that comes back.
type guardTransport struct {
	next    http.RoundTripper
	ctx     context.Context // of the link
	origin  string
	headers map[string]string
	limits  httpLimits
	// oldSSE means that the stream is the connection, so nothing may stand in for
	// it.
	oldSSE bool
	// violate ends the link.
	violate func(error)
	running sync.WaitGroup

	streams, lines, bytes *rate.Limiter

	mu          sync.Mutex
	firstStatus int
}

func newGuardTransport(ctx context.Context, next http.RoundTripper, s Server, limits httpLimits, oldSSE bool, violate func(error)) (*guardTransport, error) {
	if next == nil {
		return nil, errors.New("HTTP client without a transport")
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return nil, err
	}
	return &guardTransport{
		next: next, ctx: ctx, origin: originOf(u), headers: s.Headers, limits: limits, oldSSE: oldSSE, violate: violate,
		streams: limits.streams.newLimiter(), lines: limits.lines.newLimiter(), bytes: limits.bytes.newLimiter(),
	}, nil
}

func originOf(u *url.URL) string {
	port := u.Port()
	if port == "" && u.Scheme == "https" {
		port = "443"
	} else if port == "" {
		port = "80"
	}
	return u.Scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

func (t *guardTransport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// refusedFirst reports whether the first message got a status with which servers of
// the older transport answer it.
func (t *guardTransport) refusedFirst() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.firstStatus {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed:
		return true
	}
	return false
}

func (t *guardTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	res, err := t.send(req)
	if violation, ok := errors.AsType[*ProtocolError](err); ok {
		t.violate(violation)
	}
	return res, err
}

func (t *guardTransport) send(req *http.Request) (*http.Response, error) {
	fail := func(err error) (*http.Response, error) {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	if origin := originOf(req.URL); origin != t.origin {
		return fail(&ProtocolError{"a redirect, or an endpoint, at another host than its own"})
	}
	if req.Method == http.MethodGet {
		if err := t.streams.Wait(req.Context()); err != nil {
			return fail(err)
		}
	}
	if t.ctx.Err() != nil {
		return fail(context.Cause(t.ctx))
	}
	t.running.Add(1)
	ctx, cancel := context.WithCancelCause(req.Context())
	unbind := context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })
	release := sync.OnceFunc(func() {
		unbind()
		cancel(nil)
		t.running.Done()
	})
	out := req.Clone(ctx)
	for name, value := range t.headers {
		out.Header.Set(name, value)
	}
	out.Header.Set("User-Agent", "caisson")
	res, err := t.roundTrip(out, cancel)
	if err != nil {
		release()
		if cause := context.Cause(ctx); cause != nil && req.Context().Err() == nil {
			err = cause
		}
		return nil, err
	}
	t.noteStatus(req, res)
	body := &guardedBody{inner: res.Body, t: t, release: release, left: t.limits.errorBytes}
	switch mediaType, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); {
	case res.StatusCode < 200 || res.StatusCode > 299:
	case err == nil && mediaType == "text/event-stream":
		body.stream = true
	default:
		body.left = t.limits.lineBytes
	}
	res.Body = body
	if err := checkResponse(res); err != nil {
		_ = body.Close()
		return nil, err
	}
	return res, nil
}

// roundTrip sends the request. If a stream doesn't begin in time, it answers that
// the server has none: the client would wait for it before anything else.
func (t *guardTransport) roundTrip(req *http.Request, cancel context.CancelCauseFunc) (*http.Response, error) {
	if t.oldSSE || req.Method != http.MethodGet || req.Header.Get("Last-Event-ID") != "" {
		return t.next.RoundTrip(req)
	}
	late := &TimeoutError{Op: "begin of a stream", After: t.limits.streamWait}
	timer := time.AfterFunc(t.limits.streamWait, func() { cancel(late) })
	res, err := t.next.RoundTrip(req)
	if timer.Stop() || !errors.Is(context.Cause(req.Context()), late) {
		return res, err
	}
	if err == nil {
		_ = res.Body.Close()
	}
	return &http.Response{
		Status: "405 Method Not Allowed", StatusCode: http.StatusMethodNotAllowed, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: req,
	}, nil
}

// noteStatus keeps the status of the first message, or of one that was accepted.
func (t *guardTransport) noteStatus(req *http.Request, res *http.Response) {
	if req.Method != http.MethodPost {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.firstStatus == 0 || res.StatusCode < 300 {
		t.firstStatus = res.StatusCode
	}
}

const maxSessionID = 1024

func checkResponse(res *http.Response) error {
	id := res.Header.Get("Mcp-Session-Id")
	if len(id) > maxSessionID || strings.ContainsFunc(id, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
		return &ProtocolError{"an invalid identifier of the session"}
	}
	if c := res.Header.Get("Content-Encoding"); c != "" && !strings.EqualFold(c, "identity") {
		return &ProtocolError{"a content coding that was not asked for"}
	}
	return nil
}

// takeStream reports whether more of a stream is within the rates.
func (t *guardTransport) takeStream(lines, bytes int) bool {
	now := time.Now()
	return t.lines.AllowN(now, lines) && t.bytes.AllowN(now, bytes)
}

type guardedBody struct {
	inner   io.ReadCloser
	t       *guardTransport
	release func()
	// stream is set for events. left counts down the bytes that any other body may
	// still have.
	stream bool
	left   int
	nesting
}

// Read returns a [*ProtocolError], which also ends the link, if a bound is broken.
func (b *guardedBody) Read(p []byte) (int, error) {
	n, err := b.inner.Read(p)
	if violation := b.check(p[:n]); violation != nil {
		b.t.violate(violation)
		_ = b.Close()
		return 0, violation
	}
	return n, err
}

func (b *guardedBody) check(p []byte) error {
	deepest, values := b.scanBytes(p, b.stream)
	if deepest > b.t.limits.depth {
		return &ProtocolError{fmt.Sprintf("a message nested deeper than %d", b.t.limits.depth)}
	}
	if values > b.t.limits.values {
		return &ProtocolError{fmt.Sprintf("a message with more than %d values", b.t.limits.values)}
	}
	if b.stream {
		if !b.t.takeStream(bytes.Count(p, []byte{'\n'}), len(p)) {
			return &ProtocolError{"messages faster than the limit"}
		}
		return nil
	}
	if b.left -= len(p); b.left < 0 {
		return &ProtocolError{"a response larger than the limit"}
	}
	return nil
}

func (b *guardedBody) Close() error {
	b.release()
	return b.inner.Close()
}

// nesting counts how deeply JSON nests, and how many values it has, in a text that
// comes in parts.
type nesting struct {
	depth, values     int
	inString, escaped bool
	lineBegun         bool
}

// scanBytes returns how deeply a message in p nests, and how many values one has so
// far. In an event stream, each line is a separate text, and an empty line ends a
// message.
func (n *nesting) scanBytes(p []byte, stream bool) (deepest, values int) {
	for _, c := range p {
		if c == '\n' && stream {
			if !n.lineBegun {
				n.depth, n.values = 0, 0
			}
			n.inString, n.escaped, n.lineBegun = false, false, false
			continue
		}
		n.lineBegun = n.lineBegun || c != '\r'
		switch {
		case n.escaped:
			n.escaped = false
		case n.inString && c == '\\':
			n.escaped = true
		case c == '"':
			n.inString = !n.inString
		case n.inString:
		case c == ',':
			n.values++
		case c == '{' || c == '[':
			n.values++ // the first one in it, if there is one
			n.depth++
			deepest = max(deepest, n.depth)
		case c == '}' || c == ']':
			n.depth = max(0, n.depth-1)
		}
		values = max(values, n.values)
	}
	return deepest, values
}
