package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/internal/httpserver"
)

// Server is the HTTP API. It is safe for concurrent use.
type Server struct {
	*diagnostics
	opts     Options
	sessions *registry
	streams  *streamsAPI
	guard    *guard
	mux      *http.ServeMux
	handler  http.Handler
	openAPI  []byte
	views    viewCache
}

// New returns a server that does not listen yet.
func New(o Options) (*Server, error) {
	if o.StateDir == "" || o.Prepare == nil || o.Resume == nil || o.PrepareSandbox == nil || o.OpenWorkspace == nil {
		return nil, errors.New("new server: a required option is missing")
	}
	o.setDefaults()
	keys, err := newKeyring(o.Tokens)
	if err != nil {
		return nil, fmt.Errorf("new server: %w", err)
	}
	s := &Server{diagnostics: newDiagnostics(o.Logger), opts: o}
	s.sessions = newRegistry(&s.opts, s.diagnostics)
	s.streams = &streamsAPI{sessions: s.sessions, most: o.MaxStreams, open: httpserver.NewQuota(o.MaxStreams)}
	s.guard = &guard{diagnostics: s.diagnostics, keys: keys, hosts: o.Hosts, openMetrics: o.OpenMetrics, bodyTime: o.bodyTime, signIns: newSignIns(keys.clients)}
	mux := http.NewServeMux()
	s.mux = mux
	sandboxes := sandboxesAPI{s.sessions}
	s.openAPI, err = registerRoutes(mux, s.diagnostics,
		sessionsAPI{s.sessions}, sandboxes, execsAPI{sandboxes, s.streams},
		&terminalsAPI{sandboxes: sandboxes, streams: s.streams, firstTime: o.bodyTime, pingTime: o.pingTime},
		filesAPI{sandboxes: sandboxes, streams: s.streams, maxBytes: o.MaxTransfer, idleTime: o.copyTime}, turnsAPI{s.sessions}, confirmationsAPI{s.sessions}, s.streams, valuesAPI{s.sessions},
		s.guard.signIns, changesAPI{sessions: s.sessions, open: o.OpenWorkspace, settle: o.Settle})
	if err != nil {
		return nil, fmt.Errorf("new server: %w", err)
	}
	s.handler = s.guard.protectRoutes(mux)
	return s, nil
}

// Handler returns the HTTP handler for callers that listen themselves. They
// must call [Server.Close].
func (s *Server) Handler() http.Handler { return s.handler }

// OpenAPI returns the document that /openapi.json serves.
func (s *Server) OpenAPI() []byte { return s.openAPI }

// Serve answers on listeners until ctx ends, then ends the sessions, their
// containers and the streams. It closes the listeners. A nil error means that
// nothing is left.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	h := &http.Server{Handler: s.handler, ReadHeaderTimeout: s.opts.headerTime, ErrorLog: zap.NewStdLog(s.log.WithOptions(zap.AddCallerSkip(1)))}
	return httpserver.Serve(ctx, h, func() error { return s.Close(context.Cause(ctx)) }, listeners...)
}

// Close ends all sessions with a cause and waits for them. Its error names what
// could not be removed. Further calls wait and return nil.
func (s *Server) Close(cause error) error {
	return s.sessions.closeAll(cause)
}
