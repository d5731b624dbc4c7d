package server

import (
	"bytes"
	"context"
	"errors"
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
)

const (
	// maxBodyBytes bounds a request's body; a user's message is the largest.
	maxBodyBytes = 1 << 20
	// bodyTime bounds the time in which a body arrives.
	bodyTime = 10 * time.Second
	// answerTime bounds the time in which an answer is taken, from its first byte.
	answerTime = time.Minute
	// maxRequests bounds the requests that are served at once, streams not
	// counted: each may hold a body.
	maxRequests = 256
)

// clientKey is the context's key of the client.
type clientKey struct{}

// clientOf returns the client that a request is from. The zero client has no role.
func clientOf(ctx context.Context) client {
	c, _ := ctx.Value(clientKey{}).(client)
	return c
}

// guard is what every request passes before anything looks at it, in this
// order: Host, Origin, token, and no body where none is taken.
func (s *Server) guard(next http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := &response{ResponseWriter: w, unread: r.ContentLength != 0}
		began := time.Now()
		// Deadlines outlive the requests of a connection.
		if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
			s.log.Warn("the connection takes no deadline", zap.Error(err))
		}
		if out.unread { // until the body is read whole, or the connection closed
			_ = http.NewResponseController(w).SetReadDeadline(began.Add(s.opts.bodyTime)) // as above
		}
		out.Header().Set("X-Content-Type-Options", "nosniff")
		out.Header().Set("Cache-Control", "no-store")
		defer func() {
			if v := recover(); v != nil {
				if v == http.ErrAbortHandler { //nolint:errorlint // it is the very value that net/http compares
					panic(v)
				}
				s.log.Error("a request panicked", zap.String("route", r.Pattern), zap.Any("panic", v), zap.Stack("stack"))
				if out.status == 0 {
					s.refuse(out, r, problem(http.StatusInternalServerError, "internal", "the server failed at this request", "Its log says why"))
				}
			}
			s.metrics.served(r, out.status, time.Since(began))
			// Never the URL: a query may hold what a client took for a token's place.
			s.log.Debug("request", zap.String("method", r.Method), zap.String("route", r.Pattern), zap.Int("status", out.status),
				zap.String("client", clientOf(r.Context()).label), zap.Duration("took", time.Since(began)))
		}()
		if p := s.checkOrigin(r, cross); p != nil {
			s.refuse(out, r, p)
			return
		}
		if !s.open(r) {
			from, ok := s.keys.client(r)
			if !ok {
				s.metrics.unauthorized.Inc()
				out.Header().Set("WWW-Authenticate", `Bearer realm="caisson"`)
				s.refuse(out, r, problem(http.StatusUnauthorized, "unauthorized", "there is no token that is known here",
					"Send it as the header Authorization: Bearer TOKEN; one in the URL does not count"))
				return
			}
			r = r.WithContext(context.WithValue(r.Context(), clientKey{}, from))
			if (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.ContentLength != 0 {
				// A stream takes no slot: its body would be held without one.
				s.refuse(out, r, problem(http.StatusBadRequest, "body", "a "+r.Method+" takes no body", "Leave it out"))
				return
			}
		}
		next.ServeHTTP(out, r)
	})
}

// open says that a request needs no token.
func (s *Server) open(r *http.Request) bool {
	return r.URL.Path == "/healthz" || r.URL.Path == "/metrics" && s.opts.OpenMetrics
}

// checkOrigin refuses what a browser sends for somebody else's page: a foreign
// Host is DNS rebinding, a foreign Origin a page of another site. Programs send
// no Origin at all.
func (s *Server) checkOrigin(r *http.Request, cross *http.CrossOriginProtection) *Problem {
	if !s.knownHost(r) {
		return problem(http.StatusForbidden, "host", "the Host of the request is not this server's",
			"Name it localhost, by its address, or by a name of hosts: in the configuration of serve")
	}
	foreign := problem(http.StatusForbidden, "origin", "the request comes from another site's page", "Use a program, or a page of this server")
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

// knownHost says whether a request's Host is one that this server goes by: a
// name that always means this machine, the address that was connected to, or a
// configured one.
func (s *Server) knownHost(r *http.Request) bool {
	host := r.Host
	if name, port, err := net.SplitHostPort(r.Host); err == nil {
		if slices.ContainsFunc(s.opts.Hosts, func(known string) bool { return strings.EqualFold(known, r.Host) }) {
			return true
		}
		if host = name; port == "" {
			return false
		}
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") || slices.ContainsFunc(s.opts.Hosts, func(known string) bool { return strings.EqualFold(known, host) }) {
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

// authorize refuses requests whose route requires a role that the client lacks,
// before their body is read. A path without a route is refused by [Server.route].
func (s *Server) authorize(mux *http.ServeMux, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pattern := mux.Handler(r)
		if pattern != "" && !s.open(r) {
			from := clientOf(r.Context())
			role, listed := routeRoles[pattern]
			if !listed || !from.has(role) {
				s.metrics.forbidden.Inc()
				s.strays.Warn("a request that the token's roles do not allow", zap.String("client", from.label), zap.String("route", pattern), zap.String("role", string(role)))
				s.refuse(w, r, from.lacksRole(role))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// body reads the bodies of requests with a token: those without one are not
// looked at, whatever they bring.
func (s *Server) body(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.open(r) {
			if p := readBody(w, r); p != nil {
				s.refuse(w, r, p)
				return
			}
			if out, ok := w.(*response); ok {
				out.unread = false
			}
		}
		next.ServeHTTP(w, r)
	})
}

// readBody reads a request's body whole, in bounded space, and in the time that
// the guard has set: what comes after it may take as long as it needs.
func readBody(w http.ResponseWriter, r *http.Request) *Problem {
	if kind := r.Header.Values("Content-Type"); len(kind) > 0 || r.ContentLength != 0 {
		media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if len(kind) > 1 || err != nil || media != "application/json" {
			return problem(http.StatusUnsupportedMediaType, "content_type", "bodies are JSON", "Send Content-Type: application/json")
		}
	}
	if r.ContentLength > maxBodyBytes {
		return problem(http.StatusRequestEntityTooLarge, "too_large", "the body is larger than 1 MiB", "Send less")
	}
	if r.ContentLength == 0 {
		return nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	var timeout net.Error
	switch _, large := errors.AsType[*http.MaxBytesError](err); {
	case large:
		return problem(http.StatusRequestEntityTooLarge, "too_large", "the body is larger than 1 MiB", "Send less")
	case errors.As(err, &timeout) && timeout.Timeout():
		return problem(http.StatusRequestTimeout, "too_slow", "the body did not arrive in 10 s", "Send it at once")
	case err != nil:
		return problem(http.StatusBadRequest, "malformed", "the body could not be read", "Send it whole")
	}
	if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
		return problem(http.StatusInternalServerError, "internal", "the connection takes no deadline", "")
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	return nil
}

// refuse answers with a problem.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, p *Problem) {
	maps.Copy(w.Header(), p.GetHeaders())
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	if r.Method == http.MethodHead {
		return
	}
	if err := writeJSON(w, p); err != nil {
		s.log.Debug("write answer", zap.Error(err))
	}
}

// throttle bounds the requests that are served at once. Streams have a bound of
// their own.
func (s *Server) throttle(next http.Handler) http.Handler {
	slots := make(chan struct{}, maxRequests)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/events") {
			next.ServeHTTP(w, r)
			return
		}
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			next.ServeHTTP(w, r)
		default:
			p := problem(http.StatusServiceUnavailable, "overloaded", "too many requests are under way", "Try again in a second")
			p.retryAfter = "1"
			s.refuse(w, r, p)
		}
	})
}

// route answers with problems where no route is: what ServeMux itself says is
// plain text.
func (s *Server) route(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler, pattern := mux.Handler(r)
		clean := path.Clean(r.URL.Path) == r.URL.Path // ServeMux would redirect others
		if pattern != "" && clean {
			mux.ServeHTTP(w, r)
			return
		}
		said := &silent{header: http.Header{}}
		handler.ServeHTTP(said, r)
		if clean && said.status == http.StatusMethodNotAllowed {
			w.Header().Set("Allow", said.header.Get("Allow"))
			s.refuse(w, r, problem(http.StatusMethodNotAllowed, "method", "this path takes no "+method(r), "It takes "+said.header.Get("Allow")))
			return
		}
		s.refuse(w, r, problem(http.StatusNotFound, "not_found", "there is no such path", "/openapi.json lists what there is"))
	})
}

// method is a request's method, if it is one that people know.
func method(r *http.Request) string {
	known := []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions}
	if slices.Contains(known, r.Method) {
		return r.Method
	}
	return "such method"
}

// silent is a response that nobody reads.
type silent struct {
	header http.Header
	status int
}

func (s *silent) Header() http.Header         { return s.header }
func (s *silent) Write(p []byte) (int, error) { return len(p), nil }
func (s *silent) WriteHeader(status int)      { s.status = status }

// response remembers its status.
type response struct {
	http.ResponseWriter
	status int
	// unread says that the request has a body that nobody has read.
	unread bool
}

// WriteHeader implements http.ResponseWriter.
func (r *response) WriteHeader(status int) {
	if r.status == 0 {
		r.begin(status)
	}
	r.ResponseWriter.WriteHeader(status)
}

// begin bounds the time in which the answer is taken. Streams set their own
// bound, each time that they write. Of a body that nobody has read nothing more
// is taken: net/http would read 256 KiB of it first, for as long as its sender
// likes, to use the connection again.
func (r *response) begin(status int) {
	r.status = status
	if r.unread {
		r.Header().Set("Connection", "close")
		_ = http.NewResponseController(r.ResponseWriter).SetReadDeadline(time.Unix(1, 0)) // as below
	}
	_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(time.Now().Add(answerTime)) // the guard said so if it can't
}

// Write implements io.Writer.
func (r *response) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.begin(http.StatusOK)
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController through.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }
