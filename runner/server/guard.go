package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/internal/httpserver"
)

const (
	// answerTime bounds the time to write a response, from its first byte.
	answerTime = time.Minute
	// maxRequests bounds the requests of one token that are served at once,
	// except streams: each may hold a body. Requests without a token share one
	// such bound.
	maxRequests = 128
)

// streamRoutes are the routes whose requests last as long as their client reads
// or sends. They take no slot of maxRequests: takeStream bounds them, per
// token.
var streamRoutes = map[string]bool{
	"GET /sessions/{id}/events":          true,
	http.MethodGet + " " + filesRoute:    true,
	uploadRoute:                          true,
	http.MethodGet + " " + terminalRoute: true,
}

// uploadRoute's operation reads the body itself, as a stream.
const uploadRoute = http.MethodPut + " " + filesRoute

// guard refuses requests that are not allowed, malformed or too many.
type guard struct {
	*diagnostics
	keys        *keyring
	hosts       []string // names of the server besides localhost
	openMetrics bool
	bodyTime    time.Duration
	signIns     *signIns
	pages       Pages // nil: only the API
}

// protectRoutes returns a handler that serves mux behind all checks.
func (g *guard) protectRoutes(mux *http.ServeMux) http.Handler {
	cross := http.NewCrossOriginProtection()
	slots := httpserver.NewQuota(maxRequests)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := &response{ResponseWriter: w, unread: r.ContentLength != 0}
		began := time.Now()
		// Deadlines outlive the requests of a connection.
		if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
			g.log.Warn("the connection takes no deadline", zap.Error(err))
		}
		if out.unread { // until the body is read whole, or the connection closed
			_ = http.NewResponseController(w).SetReadDeadline(began.Add(g.bodyTime)) // as above
		}
		out.Header().Set("X-Content-Type-Options", "nosniff")
		out.Header().Set("Cache-Control", "no-store")
		defer func() {
			if v := recover(); v != nil {
				if v == http.ErrAbortHandler { //nolint:errorlint // net/http compares this very value
					panic(v)
				}
				g.log.Error("a request panicked", zap.String("route", r.Pattern), zap.Any("panic", v), zap.Stack("stack"))
				if out.status == 0 {
					g.writeProblem(out, r, newProblem(http.StatusInternalServerError, "internal", "the server failed", "Its log has the cause"))
				}
			}
			g.metrics.countRequest(r, out.status, time.Since(began))
			// Don't log the URL: its query may hold a misplaced token.
			g.log.Debug("request", zap.String("method", r.Method), zap.String("route", r.Pattern), zap.Int("status", out.status),
				zap.String("client", clientOf(r.Context()).label), zap.Duration("took", time.Since(began)))
		}()
		p := g.checkOrigin(r, cross)
		if g.pages != nil && isPage(r.URL.Path) {
			g.servePage(slots, out, r, p)
			return
		}
		if p == nil && !g.isPublic(r) {
			r, p = g.identify(out, r)
		}
		if p == nil {
			p = g.serveRoute(mux, slots, out, r)
		}
		if p != nil {
			g.writeProblem(out, r, p)
		}
	})
}

// identify returns the request with its client. It refuses unknown clients, and
// bodies that GET and HEAD don't take.
func (g *guard) identify(out *response, r *http.Request) (*http.Request, *Problem) {
	from, ok := g.keys.findClient(r)
	if !ok {
		g.metrics.unauthorized.Inc()
		return r, unauthorized(out)
	}
	httpserver.KeepConnection(r)
	r = r.WithContext(context.WithValue(context.WithValue(r.Context(), clientKey{}, from), responseKey{}, out))
	if (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.ContentLength != 0 {
		// A stream takes no slot: its body would be held without one.
		return r, newProblem(http.StatusBadRequest, "body", "a "+r.Method+" takes no body", "Leave it out")
	}
	return r, nil
}

// serveRoute serves a request whose client has the role and gets a slot, after
// reading its body. Streams take no slot, and an upload reads its body itself.
func (g *guard) serveRoute(mux *http.ServeMux, slots *httpserver.Quota, out *response, r *http.Request) *Problem {
	handler, pattern := mux.Handler(r)
	public := g.isPublic(r)
	if pattern != "" && !public {
		if p := g.authorize(clientOf(r.Context()), pattern); p != nil {
			return p
		}
	}
	if !streamRoutes[pattern] {
		release, ok := slots.Take(clientOf(r.Context()).label)
		if !ok {
			p := newProblem(http.StatusServiceUnavailable, "overloaded", "too many requests with this token are under way", "Try again in a second")
			p.retryAfter = "1"
			return p
		}
		out.releaseSlot = release
		defer release()
	}
	if pattern != uploadRoute && !public {
		if p := readBody(out, r, "application/json"); p != nil {
			return p
		}
		out.unread = false
	}
	clean := path.Clean(r.URL.Path) == r.URL.Path // ServeMux would redirect others
	if pattern != "" && clean {
		mux.ServeHTTP(out, r)
		return nil
	}
	// A problem replaces the mux's plain text.
	said := &discardResponse{header: http.Header{}}
	handler.ServeHTTP(said, r)
	if clean && said.status == http.StatusMethodNotAllowed {
		out.Header().Set("Allow", said.header.Get("Allow"))
		return newProblem(http.StatusMethodNotAllowed, "method", "this path does not take this method", "It takes "+said.header.Get("Allow"))
	}
	return newProblem(http.StatusNotFound, "not_found", "there is no such path", "/openapi.json lists all paths")
}

func (g *guard) isPublic(r *http.Request) bool {
	return r.URL.Path == "/healthz" || r.URL.Path == "/metrics" && g.openMetrics
}

// checkOrigin refuses requests that a browser sends for another site's page: a
// foreign Host indicates DNS rebinding, a foreign Origin another site. Other
// programs send no Origin.
func (g *guard) checkOrigin(r *http.Request, cross *http.CrossOriginProtection) *Problem {
	if !g.knownHost(r) {
		return newProblem(http.StatusForbidden, "host", "the Host of the request is not this server's",
			"Name it localhost, by its address, or by a name of hosts: in the configuration of serve")
	}
	foreign := newProblem(http.StatusForbidden, "origin", "the request comes from another site's page", "Use a program, or a page of this server")
	if origins := r.Header.Values("Origin"); len(origins) > 0 {
		u, err := url.Parse(origins[0])
		if err != nil || len(origins) > 1 || u.Scheme != "http" && u.Scheme != "https" || !strings.EqualFold(u.Host, r.Host) {
			return foreign
		}
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
		return foreign
	}
	if cross.Check(r) != nil {
		return foreign
	}
	return nil
}

// knownHost reports whether a request's Host is this server: localhost, a
// loopback address, the connection's address or a configured name.
func (g *guard) knownHost(r *http.Request) bool {
	isConfigured := func(host string) bool {
		return slices.ContainsFunc(g.hosts, func(known string) bool { return strings.EqualFold(known, host) })
	}
	host := r.Host
	if name, port, err := net.SplitHostPort(r.Host); err == nil {
		if isConfigured(r.Host) {
			return true
		}
		host = name
		if port == "" {
			return false
		}
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") || g.signIns != nil && g.signIns.knows(host) || isConfigured(host) {
		return true
	}
	ip := net.ParseIP(host)
	if ip == nil {
		return false
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	tcp, ok := local.(*net.TCPAddr)
	return ip.IsLoopback() || ok && ip.Equal(tcp.IP)
}

func (g *guard) authorize(from client, pattern string) *Problem {
	role, listed := routeRoles[pattern]
	if listed && from.hasRole(role) {
		return nil
	}
	g.metrics.forbidden.Inc()
	g.strays.Warn("a request that the token's roles do not allow", zap.String("client", from.label), zap.String("route", pattern), zap.String("role", string(role)))
	return from.lacksRole(role)
}

// readBody reads a request's whole body of the type want, at most maxBodyBytes,
// within the read deadline set by protectRoutes, and then clears the deadline.
func readBody(w http.ResponseWriter, r *http.Request, want string) *Problem {
	if kind := r.Header.Values("Content-Type"); len(kind) > 0 || r.ContentLength != 0 {
		media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if len(kind) > 1 || err != nil || media != want {
			return newProblem(http.StatusUnsupportedMediaType, "content_type", "the body is of another type", "Send Content-Type: "+want)
		}
	}
	if r.ContentLength > maxBodyBytes {
		return newProblem(http.StatusRequestEntityTooLarge, "too_large", "the body is larger than 1 MiB", "Send less")
	}
	if r.ContentLength == 0 {
		return nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	switch _, large := errors.AsType[*http.MaxBytesError](err); {
	case large:
		return newProblem(http.StatusRequestEntityTooLarge, "too_large", "the body is larger than 1 MiB", "Send less")
	case isTimeout(err):
		return newProblem(http.StatusRequestTimeout, "too_slow", "the body did not arrive in 10 s", "Send it at once")
	case err != nil:
		return newProblem(http.StatusBadRequest, "malformed", "the body could not be read", "Send it whole")
	}
	if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
		return newProblem(http.StatusInternalServerError, "internal", "the connection takes no deadline", "")
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return nil
}

func (d *diagnostics) writeProblem(w http.ResponseWriter, r *http.Request, p *Problem) {
	maps.Copy(w.Header(), p.GetHeaders())
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	if r.Method == http.MethodHead {
		return
	}
	if err := writeJSON(w, p); err != nil {
		d.log.Debug("write answer", zap.Error(err))
	}
}

type discardResponse struct {
	header http.Header
	status int
}

func (s *discardResponse) Header() http.Header         { return s.header }
func (s *discardResponse) Write(p []byte) (int, error) { return len(p), nil }
func (s *discardResponse) WriteHeader(status int)      { s.status = status }

type response struct {
	http.ResponseWriter
	status int
	unread bool
	// releaseSlot gives back the request's slot of maxRequests. It may be
	// called twice.
	releaseSlot func()
}

type responseKey struct{}

// releaseSlot is for operations that wait for long and have another bound.
func releaseSlot(ctx context.Context) {
	if out, _ := ctx.Value(responseKey{}).(*response); out != nil && out.releaseSlot != nil {
		out.releaseSlot()
	}
}

func (r *response) WriteHeader(status int) {
	if r.status == 0 {
		r.startAnswer(status)
	}
	r.ResponseWriter.WriteHeader(status)
}

// lingerTime is enough for a client on a slow line, or a busy machine, to send the rest.
const lingerTime = 2 * time.Second

// startAnswer bounds the time to write the response. Streams set their own
// bound for each write. If the body has not been read, the connection is closed
// after the response. net/http then reads up to 256 KiB of the body, for lingerTime
// at most: closing a connection with unread data resets it, and the client might
// lose the response.
func (r *response) startAnswer(status int) {
	r.status = status
	if r.unread {
		r.Header().Set("Connection", "close")
		_ = http.NewResponseController(r.ResponseWriter).SetReadDeadline(time.Now().Add(lingerTime)) // protectRoutes logs if this is impossible
	}
	_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(time.Now().Add(answerTime)) // likewise
}

func (r *response) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.startAnswer(http.StatusOK)
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// Gate admits requests to another protocol's handler as a [Server] admits its
// own. It is safe for concurrent use.
type Gate struct {
	guard *guard
	cross *http.CrossOriginProtection
}

// NewGate returns a gate for clients with tokens, which have distinct labels.
// hosts is like [Options].Hosts.
func NewGate(tokens []Token, hosts []string, log *zap.Logger) (*Gate, error) {
	keys, err := newKeyring(tokens)
	if err != nil {
		return nil, fmt.Errorf("new gate: %w", err)
	}
	return &Gate{guard: &guard{diagnostics: newDiagnostics(log), keys: keys, hosts: hosts}, cross: http.NewCrossOriginProtection()}, nil
}

// Admit returns the user who sends a request. The request needs a Host and an
// Origin of this server and a token with [RoleRun]. Otherwise Admit answers
// with an error.
func (g *Gate) Admit(w http.ResponseWriter, r *http.Request) (runner.User, bool) {
	p := g.guard.checkOrigin(r, g.cross)
	if p != nil {
		g.refuse(w, r, p)
		return runner.User{}, false
	}
	from, ok := g.guard.keys.findClient(r)
	switch {
	case !ok:
		g.refuse(w, r, unauthorized(w))
	case !from.hasRole(RoleRun):
		g.refuse(w, r, from.lacksRole(RoleRun))
	default:
		return from.runnerUser(), true
	}
	return runner.User{}, false
}

// refuse answers a request without reading its body.
func (g *Gate) refuse(w http.ResponseWriter, r *http.Request, p *Problem) {
	g.guard.writeProblem(&response{ResponseWriter: w, unread: r.ContentLength != 0}, r, p)
}

// unauthorized returns the problem of a request without a known token, and adds
// its header to the response.
func unauthorized(w http.ResponseWriter) *Problem {
	w.Header().Set("WWW-Authenticate", `Bearer realm="caisson"`)
	return newProblem(http.StatusUnauthorized, "unauthorized", "the request has no known token",
		"Send it as the header Authorization: Bearer TOKEN; a token in the URL is ignored")
}
