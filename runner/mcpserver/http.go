package mcpserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/internal/httpserver"
)

const (
	// A request's headers and body must arrive within headerTime and bodyTime.
	headerTime = 10 * time.Second
	bodyTime   = 30 * time.Second
	// writeTime bounds one write of a response: a client that reads nothing is
	// gone.
	writeTime = time.Minute
	// maxRequests bounds the requests of one user that are served at once,
	// including streams.
	maxRequests   = 256
	sessionHeader = "Mcp-Session-Id"
)

// Path is the path of the streamable HTTP transport.
const Path = "/mcp"

// Handler returns the handler of the streamable HTTP transport, at [Path]. The
// caller must call [Server.Close] in the end.
func (s *Server) Handler() http.Handler {
	slots := httpserver.NewQuota(maxRequests)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, ok := s.opts.Admit(w, r)
		if !ok {
			return
		}
		httpserver.KeepConnection(r)
		if r.URL.Path != Path {
			http.NotFound(w, r)
			return
		}
		release, ok := slots.Take(user.Name)
		if !ok {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many requests are under way", http.StatusServiceUnavailable)
			return
		}
		defer release()
		w.Header().Set("X-Content-Type-Options", "nosniff")
		control := http.NewResponseController(w)
		if !readBody(w, r, control) {
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), userKey{}, user))
		if id := r.Header.Get(sessionHeader); id != "" {
			c := s.findClient(id)
			if c == nil || c.user.Name != user.Name {
				http.Error(w, "session not found", http.StatusNotFound)
				return
			}
			defer c.beginRequest()()
			if r.Method == http.MethodDelete {
				c.closeSession(errGone)
			}
		}
		out := &patientResponse{ResponseWriter: w, control: control}
		s.web.ServeHTTP(out, r)
		if id := w.Header().Get(sessionHeader); id != "" && r.Header.Get(sessionHeader) == "" {
			if c := s.findClient(id); c != nil {
				c.beginRequest()() // its idle time begins
			}
		}
	})
}

// readBody reads a request's body within bodyTime, or writes an error response.
func readBody(w http.ResponseWriter, r *http.Request, control *http.ResponseController) bool {
	if err := control.SetReadDeadline(time.Now().Add(bodyTime)); err != nil {
		http.Error(w, "the connection takes no deadline", http.StatusInternalServerError)
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessageBytes))
	if err != nil {
		status := http.StatusBadRequest
		if errors.As(err, new(*http.MaxBytesError)) {
			status = http.StatusRequestEntityTooLarge
		}
		http.Error(w, "the body can't be read: "+err.Error(), status)
		return false
	}
	_ = control.SetReadDeadline(time.Time{}) // as above
	r.Body = io.NopCloser(bytes.NewReader(body))
	return true
}

// patientResponse bounds the time of each write.
type patientResponse struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (p *patientResponse) Write(b []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(writeTime)) // readBody has checked that it can
	return p.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController reach the connection.
func (p *patientResponse) Unwrap() http.ResponseWriter { return p.ResponseWriter }

func (p *patientResponse) Flush() { _ = p.control.Flush() }

// Serve answers on listeners until ctx ends, then closes the sessions of all
// clients. It closes the listeners.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	if s.opts.Admit == nil {
		return errors.New("serve MCP: Options.Admit is missing")
	}
	h := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: headerTime, ErrorLog: zap.NewStdLog(s.log)}
	return httpserver.Serve(ctx, h, func() error {
		s.Close()
		return nil
	}, listeners...)
}

// Close closes the sessions of all clients and waits for that. It admits no
// more clients.
func (s *Server) Close() {
	s.closeClients(errStopping)
	for ss := range s.mcp.Sessions() {
		_ = ss.Close() // ends its streams
	}
}
