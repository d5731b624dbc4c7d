package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
)

// instructions are for the client's model.
const instructions = `The files and commands of these tools are those of a sandbox, which lasts as long as this connection. ` +
	`Paths are relative to the workspace; commands start there. Nothing else of the user's machine is visible, ` +
	`and commands have no network unless the operator allowed hosts. A command that runs on, such as a server, takes "background": true in shell; ` +
	`shell_output, shell_kill and shell_input take its handle. A call that is refused by the policy stays refused: do not repeat it.`

// Server offers tools to clients. It is safe for concurrent use.
type Server struct {
	opts Options
	log  *zap.Logger
	mcp  *mcp.Server
	web  *mcp.StreamableHTTPHandler

	mu      sync.Mutex
	clients map[*mcp.ServerSession]*client
	closed  bool
}

// New returns a server that serves no client yet.
func New(o Options) (*Server, error) {
	if o.Open == nil {
		return nil, errors.New("new MCP server: Options.Open is missing")
	}
	o.setDefaults()
	s := &Server{opts: o, log: o.Logger, clients: map[*mcp.ServerSession]*client{}}
	s.mcp = mcp.NewServer(&mcp.Implementation{Name: "caisson", Title: "Caisson sandbox", Version: o.Version}, &mcp.ServerOptions{
		Instructions: instructions, Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}},
	})
	s.mcp.AddReceivingMiddleware(s.handleTools)
	s.web = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s.mcp }, &mcp.StreamableHTTPOptions{
		MaxRequestBodyBytes: maxMessageBytes, DisableLocalhostProtection: true, // Options.Admit has checked Host
	})
	return s, nil
}

var (
	errGone     = errors.New("the client is gone")
	errStopping = errors.New("the server stops")
)

// ServeStdio serves one client, which writes to in and reads from out, until in
// or ctx ends, and closes its session. It closes neither in nor out, and may
// leave a read of in behind. It returns an error if the client could no longer
// be served, for example after an invalid message.
func (s *Server) ServeStdio(ctx context.Context, in io.Reader, out io.Writer) error {
	ended := make(chan struct{})
	input := &endReader{r: in, ended: ended}
	ss, err := s.mcp.Connect(ctx, &mcp.IOTransport{Reader: input, Writer: keepOpen{out}, MaxLineLength: maxMessageBytes}, nil)
	if err != nil {
		return fmt.Errorf("serve client: %w", err)
	}
	done := make(chan error, 1)
	go func() { done <- ss.Wait() }()
	select {
	case <-ctx.Done():
		s.closeClients(context.Cause(ctx))
		return nil
	case err = <-done:
		s.closeClients(errGone)
	case <-ended:
		s.closeClients(errGone)
		select {
		case err = <-done:
		case <-time.After(drainTime): // no one reads the responses
		}
	}
	if err != nil && !errors.Is(err, mcp.ErrConnectionClosed) && !input.isAtEnd() {
		return fmt.Errorf("serve client: %w", err)
	}
	return nil
}

// endReader reports the end of its reader.
type endReader struct {
	r     io.Reader
	ended chan struct{}
	once  sync.Once
}

func (e *endReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if err != nil {
		e.once.Do(func() { close(e.ended) })
	}
	return n, err
}

func (e *endReader) isAtEnd() bool {
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

func (e *endReader) Close() error { return nil }

type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }

// userKey is the context key of the user whom Options.Admit returned.
type userKey struct{}

// handleTools serves the methods about tools, and admits clients.
func (s *Server) handleTools(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		ss, ok := req.GetSession().(*mcp.ServerSession)
		if !ok {
			return next(ctx, method, req)
		}
		switch r := req.(type) {
		case *mcp.ServerRequest[*mcp.InitializeParams]:
			if _, err := s.clientOf(ctx, ss); err != nil {
				return nil, err
			}
		case *mcp.ListToolsRequest:
			c, err := s.clientOf(ctx, ss)
			if err != nil {
				return nil, err
			}
			return c.listTools(ctx)
		case *mcp.CallToolRequest:
			c, err := s.clientOf(ctx, ss)
			if err != nil {
				return nil, err
			}
			return c.callTool(ctx, r.Params)
		}
		return next(ctx, method, req)
	}
}

// codeUnavailable is our own error code of the protocol.
const codeUnavailable = -32001

// clientOf returns the client of a connection. Its first request admits it.
func (s *Server) clientOf(ctx context.Context, ss *mcp.ServerSession) (*client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[ss]; c != nil {
		return c, nil
	}
	switch {
	case s.closed:
		return nil, &jsonrpc.Error{Code: codeUnavailable, Message: "The server stops."}
	case ss.ID() != "" && len(s.clients) >= s.opts.MaxSessions:
		return nil, &jsonrpc.Error{Code: codeUnavailable, Message: fmt.Sprintf("There are %d sessions already, as many as this server takes. Try again later, or end one.", len(s.clients))}
	}
	c := &client{server: s, conn: ss, slots: make(chan struct{}, maxCalls)}
	c.user, _ = ctx.Value(userKey{}).(runner.User)
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	s.clients[ss] = c
	go func() {
		_ = ss.Wait() // the reason does not matter
		c.closeSession(errGone)
	}()
	return c, nil
}

// findClient returns the client with an HTTP session ID, or nil.
func (s *Server) findClient(id string) *client {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ss, c := range s.clients {
		if ss.ID() == id {
			return c
		}
	}
	return nil
}

func (s *Server) forgetClient(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.clients, c.conn)
}

// closeClients ends all clients, and waits for that. It admits no more.
func (s *Server) closeClients(cause error) {
	s.mu.Lock()
	s.closed = true
	var all []*client
	for _, c := range s.clients {
		all = append(all, c)
	}
	s.mu.Unlock()
	var group sync.WaitGroup
	for _, c := range all {
		group.Go(func() { c.closeSession(cause) })
	}
	group.Wait()
}
