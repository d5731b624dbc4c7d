package mcpserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/policy"
)

const testSecret = "sk-test-0123456789abcdef"

// bench is a server whose sessions run in fake sandboxes with the commands hang
// and say. hang writes a line with a secret and waits for its end.
type bench struct {
	t       *testing.T
	dir     string // the workspace
	state   string
	backend *fakesandbox.Backend
	opts    Options
	server  *Server
	// hanging gets a value when a hang begins, killed when one is ended.
	hanging, killed chan struct{}

	mu      sync.Mutex
	clients []Client
	reports []runner.Report
}

func newBench(t *testing.T, change func(*Options)) *bench {
	t.Helper()
	root := t.TempDir()
	b := &bench{
		t: t, dir: filepath.Join(root, "workspace"), state: filepath.Join(root, "state"), backend: &fakesandbox.Backend{},
		hanging: make(chan struct{}, 100), killed: make(chan struct{}, 100),
	}
	b.backend.Scripts = map[string]fakesandbox.Script{
		"hang": func(ctx context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
			_, _ = io.WriteString(cmd.Stdout, "begun with "+testSecret+"\n")
			b.hanging <- struct{}{}
			<-ctx.Done()
			b.killed <- struct{}{}
			return sandbox.ExitStatus{Cancelled: true, Signal: 15}
		},
		"say": func(_ context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
			_, _ = io.WriteString(cmd.Stdout, "said "+testSecret+"\n")
			return sandbox.ExitStatus{}
		},
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b.write("a.txt", "content\n")
	b.opts = Options{Open: b.open, Version: "test", Ended: func(r runner.Report) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.reports = append(b.reports, r)
	}}
	if change != nil {
		change(&b.opts)
	}
	var err error
	if b.server, err = New(b.opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.server.Close()
		b.backend.RequireGone(t)
	})
	return b
}

func (b *bench) write(name, text string) {
	b.t.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) open(ctx context.Context, c Client) (*Session, error) {
	b.mu.Lock()
	b.clients = append(b.clients, c)
	b.mu.Unlock()
	w, err := runner.OpenWorkspace(b.dir, runner.Protected{State: b.state})
	if err != nil {
		return nil, err
	}
	rules, err := policy.Preset("ci")
	if err != nil {
		return nil, err
	}
	secrets := []redact.Secret{{Name: "KEY", Value: testSecret}}
	dir, err := sessiondir.Create(b.state, secrets)
	if err != nil {
		return nil, err
	}
	s, err := runner.Open(ctx, runner.Options{
		Dir: dir, Workspace: w, Secrets: secrets, User: c.User,
		SandboxOptions: runner.SandboxOptions{Backend: b.backend, Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()}},
		PolicyOptions:  runner.PolicyOptions{Policy: rules},
	})
	if err != nil {
		return nil, err
	}
	return &Session{Runner: s, Redact: redact.New(secrets), Done: func() { _ = errors.Join(dir.Close(), w.Close()) }}, nil
}

func (b *bench) endedSession() runner.Report {
	b.t.Helper()
	for range 500 {
		b.mu.Lock()
		got := slices.Clone(b.reports)
		b.mu.Unlock()
		if len(got) > 0 {
			return got[0]
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.t.Fatal("the session has not ended")
	return runner.Report{}
}

// stdio serves one connection. end closes the server's input, and done has the
// error of ServeStdio.
type stdio struct {
	in   *io.PipeWriter
	out  *io.PipeReader
	done chan error
}

func (b *bench) stdio() *stdio {
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	s := &stdio{in: toServer, out: fromServer, done: make(chan error, 1)}
	go func() {
		s.done <- b.server.ServeStdio(b.t.Context(), in, out)
		_ = out.Close()
		_ = in.Close()
	}()
	b.t.Cleanup(func() { _ = toServer.Close() })
	return s
}

// end closes the server's input and returns the error of ServeStdio.
func (s *stdio) end(t *testing.T) error {
	t.Helper()
	_ = s.in.Close()
	select {
	case err := <-s.done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the server does not end")
		return nil
	}
}

func (b *bench) connect(transport mcp.Transport, o *mcp.ClientOptions) *mcp.ClientSession {
	b.t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "tester", Version: "1"}, o)
	s, err := c.Connect(b.t.Context(), transport, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func (b *bench) overStdio(o *mcp.ClientOptions) (*mcp.ClientSession, *stdio) {
	pipe := b.stdio()
	return b.connect(&mcp.IOTransport{Reader: pipe.out, Writer: pipe.in}, o), pipe
}

// admitByName is an Options.Admit for which the token is the user's name.
func admitByName(w http.ResponseWriter, r *http.Request) (runner.User, bool) {
	name, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		http.Error(w, "no token", http.StatusUnauthorized)
		return runner.User{}, false
	}
	return runner.User{Name: "http:" + name}, true
}

// listen serves HTTP and returns the address of the endpoint.
func (b *bench) listen() string {
	web := httptest.NewServer(b.server.Handler())
	b.t.Cleanup(func() {
		b.server.Close()
		web.CloseClientConnections()
		web.Close()
	})
	return web.URL + Path
}

// bearer is a round tripper with a token.
type bearer string

func (a bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(a))
	return http.DefaultTransport.RoundTrip(r)
}

// overHTTP connects alice's client.
func (b *bench) overHTTP(url string, o *mcp.ClientOptions) *mcp.ClientSession {
	return b.connect(&mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearer("alice")}, MaxRetries: -1}, o)
}

func call(t *testing.T, s *mcp.ClientSession, name string, arguments map[string]any) (string, *mcp.CallToolResult) {
	t.Helper()
	r, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: arguments})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return textOf(r), r
}
