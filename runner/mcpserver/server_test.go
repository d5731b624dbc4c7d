package mcpserver

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/tools"
)

// onePixel is a PNG.
const onePixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// TestTools tests what clients see of tools, over both transports.
func TestTools(t *testing.T) {
	for name, connect := range map[string]func(b *bench) *mcp.ClientSession{
		"stdio": func(b *bench) *mcp.ClientSession { s, _ := b.overStdio(nil); return s },
		"http":  func(b *bench) *mcp.ClientSession { return b.overHTTP(b.listen(), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(o *Options) { o.Admit = admitByName })
			image, err := base64.StdEncoding.DecodeString(onePixel)
			if err != nil {
				t.Fatal(err)
			}
			b.write("dot.png", string(image))
			s := connect(b)
			list, err := s.ListTools(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			offered := map[string]*mcp.Tool{}
			for _, tool := range list.Tools {
				offered[tool.Name] = tool
			}
			for _, want := range []string{"read_file", "list_dir", "glob", "grep", "write_file", "patch_file", "apply_patch", "delete_file", "shell", "shell_output", "shell_kill"} {
				if offered[want] == nil || offered[want].Description == "" || offered[want].InputSchema == nil {
					t.Errorf("%s is offered as %+v", want, offered[want])
				}
			}
			if a := offered["grep"].Annotations; !a.ReadOnlyHint || *a.OpenWorldHint {
				t.Errorf("grep: %+v", a)
			}
			if a := offered["shell"].Annotations; a.ReadOnlyHint || !*a.DestructiveHint || !*a.OpenWorldHint {
				t.Errorf("shell: %+v", a)
			}
			if len(b.backend.Sandboxes) > 0 {
				t.Error("a sandbox was started for a list")
			}
			if text, r := call(t, s, "read_file", map[string]any{"path": "a.txt"}); text != "content\n" || r.IsError {
				t.Errorf("read_file: %q, %+v", text, r)
			}
			if text, r := call(t, s, "read_file", map[string]any{"path": "none"}); !r.IsError || !strings.Contains(text, "none") {
				t.Errorf("a file that is not there: %q, %+v", text, r)
			}
			if text, r := call(t, s, "read_file", map[string]any{"paht": "a.txt"}); !r.IsError || !strings.Contains(text, "path") {
				t.Errorf("an invalid input: %q, %+v", text, r)
			}
			if _, r := call(t, s, "read_file", map[string]any{"path": "dot.png"}); !slices.ContainsFunc(r.Content, func(c mcp.Content) bool {
				i, ok := c.(*mcp.ImageContent)
				return ok && i.MIMEType == "image/png" && len(i.Data) > 0
			}) {
				t.Errorf("an image: %+v", r.Content)
			}
			if text, r := call(t, s, "write_file", map[string]any{"path": "new.txt", "content": "new"}); r.IsError {
				t.Errorf("write_file: %q", text)
			}
			if text, r := call(t, s, "shell", map[string]any{"command": "say"}); r.IsError || !strings.Contains(text, "said") || strings.Contains(text, testSecret) {
				t.Errorf("shell: %q, %+v", text, r)
			}
			_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "nothing"})
			if e, ok := errors.AsType[*jsonrpc.Error](err); !ok || e.Code != jsonrpc.CodeInvalidParams || !strings.Contains(e.Message, `no tool "nothing"`) {
				t.Errorf("an unknown tool: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			r := b.endedSession()
			if len(b.clients) != 1 || b.clients[0].Name != "tester" || r.Usage.ToolCalls != 7 || r.ExitStatus != 0 {
				t.Errorf("%+v, %+v", b.clients, r)
			}
		})
	}
}

// No hint is milder than the class.
func TestHintsOfClasses(t *testing.T) {
	for class, want := range map[tools.Class]string{
		tools.ClassNone: "true <nil> false", tools.ClassRead: "true <nil> false", tools.ClassWrite: "false true false",
		tools.ClassExecute: "false true true", tools.ClassNetwork: "false true true",
	} {
		a := annotateTool(tools.Definition{Class: class})
		show := func(b *bool) string {
			if b == nil {
				return "<nil>"
			}
			return fmt.Sprint(*b)
		}
		if got := fmt.Sprint(a.ReadOnlyHint, " ", show(a.DestructiveHint), " ", show(a.OpenWorldHint)); got != want {
			t.Errorf("%s: %s, want %s", class, got, want)
		}
	}
}

// A file can be read while a command runs, progress has the command's output
// without secrets, and a cancelled command ends.
func TestCallsAtOnce(t *testing.T) {
	for name, connect := range map[string]func(b *bench, o *mcp.ClientOptions) *mcp.ClientSession{
		"stdio": func(b *bench, o *mcp.ClientOptions) *mcp.ClientSession { s, _ := b.overStdio(o); return s },
		"http":  func(b *bench, o *mcp.ClientOptions) *mcp.ClientSession { return b.overHTTP(b.listen(), o) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(o *Options) { o.Admit = admitByName })
			progress := make(chan *mcp.ProgressNotificationParams, 100)
			s := connect(b, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { progress <- r.Params }})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				p := &mcp.CallToolParams{Name: "shell", Arguments: map[string]any{"command": "hang"}}
				p.SetProgressToken("token")
				_, err := s.CallTool(ctx, p)
				ended <- err
			}()
			<-b.hanging
			if text, _ := call(t, s, "read_file", map[string]any{"path": "a.txt"}); text != "content\n" {
				t.Errorf("a read beside a command: %q", text)
			}
			select {
			case p := <-progress:
				if p.ProgressToken != "token" || p.Progress <= 0 || !strings.Contains(p.Message, "begun with") || strings.Contains(p.Message, testSecret) {
					t.Errorf("progress %+v", p)
				}
			case <-time.After(10 * time.Second):
				t.Error("no progress")
			}
			if len(b.killed) > 0 {
				t.Error("the command was ended before it was cancelled")
			}
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("a cancelled call: %v", err)
			}
			select {
			case <-b.killed:
			case <-time.After(10 * time.Second):
				t.Error("the command of a cancelled call runs on")
			}
			if text, r := call(t, s, "shell", map[string]any{"command": "say"}); r.IsError {
				t.Errorf("a command after a cancelled one: %q", text)
			}
			_ = s.Close()
			if r := b.endedSession(); r.Usage.ToolCalls != 3 || r.ExitStatus != 0 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestProgressIsBounded tests the rate and the size of notifications.
func TestProgressIsBounded(t *testing.T) {
	var mu sync.Mutex
	var sent []string
	var last float64
	p := newProgress(redact.New(nil), func(elapsed float64, message string) error {
		mu.Lock()
		defer mu.Unlock()
		if elapsed <= last {
			t.Errorf("progress goes from %v to %v", last, elapsed)
		}
		last = elapsed
		sent = append(sent, message)
		return nil
	})
	piece := strings.Repeat("x", 1000)
	for until := time.Now().Add(3 * progressEvery); time.Now().Before(until); {
		p.addOutput("stdout", piece)
	}
	p.stopSending()
	p.addOutput("stdout", "late")
	mu.Lock()
	defer mu.Unlock()
	if len(sent) < 1 || len(sent) > 4 {
		t.Errorf("%d notifications in %v", len(sent), 3*progressEvery)
	}
	for _, m := range sent {
		if len(m) > maxProgressBytes {
			t.Errorf("a notification of %d bytes", len(m))
		}
	}
}

// Nothing is left of a client that goes away, in any way, while its command
// runs.
func TestClientGone(t *testing.T) {
	hang := func(b *bench, s *mcp.ClientSession) {
		go func() {
			_, _ = s.CallTool(b.t.Context(), &mcp.CallToolParams{Name: "shell", Arguments: map[string]any{"command": "hang"}})
		}()
		<-b.hanging
	}
	gone := func(b *bench) {
		b.t.Helper()
		select {
		case <-b.killed:
		case <-time.After(20 * time.Second):
			b.t.Fatal("the command runs on")
		}
		if r := b.endedSession(); r.Reason != loop.StopCancelled || len(r.Left) > 0 {
			b.t.Errorf("%+v", r)
		}
		b.backend.RequireGone(b.t)
	}
	t.Run("end of input", func(t *testing.T) {
		b := newBench(t, nil)
		s, pipe := b.overStdio(nil)
		hang(b, s)
		if err := pipe.end(t); err != nil {
			t.Error(err)
		}
		gone(b)
	})
	t.Run("reader gone", func(t *testing.T) {
		b := newBench(t, nil)
		s, pipe := b.overStdio(nil)
		hang(b, s)
		_ = pipe.out.Close()
		_ = pipe.end(t)
		gone(b)
	})
	t.Run("DELETE", func(t *testing.T) {
		b := newBench(t, func(o *Options) { o.Admit = admitByName })
		url := b.listen()
		s := b.overHTTP(url, nil)
		hang(b, s)
		if status := endSession(t, url, "alice", s.ID()); status != http.StatusNoContent {
			t.Errorf("status %d", status)
		}
		gone(b)
	})
	t.Run("server stops", func(t *testing.T) {
		b := newBench(t, func(o *Options) { o.Admit = admitByName })
		s := b.overHTTP(b.listen(), nil)
		hang(b, s)
		b.server.Close()
		gone(b)
	})
	t.Run("idle", func(t *testing.T) {
		b := newBench(t, func(o *Options) { o.Admit, o.IdleTime = admitByName, 100*time.Millisecond })
		url := b.listen()
		s := b.connect(&mcp.StreamableClientTransport{Endpoint: url, HTTPClient: clientOfUser("alice"), MaxRetries: -1, DisableStandaloneSSE: true}, nil)
		if text, r := call(t, s, "shell", map[string]any{"command": "say"}); r.IsError {
			t.Error(text)
		}
		b.endedSession()
		b.backend.RequireGone(t)
		if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "shell"}); err == nil {
			t.Error("the id of a session that has ended is taken")
		}
	})
}

// A client is asked for its roots only if they matter.
func TestRoots(t *testing.T) {
	for name, tt := range map[string]struct {
		asks, http bool
		version    string
		want       []string
	}{
		"stdio":     {asks: true, version: "2025-06-18", want: []string{"file:///src/project"}},
		"http":      {asks: true, http: true, version: "2025-11-25", want: []string{"file:///src/project"}},
		"without":   {asks: true, version: withoutRoots}, // of this version on, no server can ask
		"not asked": {version: "2025-06-18"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(o *Options) { o.AsksRoots, o.Admit = tt.asks, admitByName })
			var transport mcp.Transport
			if pipe := b.stdio(); tt.http {
				transport = &mcp.StreamableClientTransport{Endpoint: b.listen(), HTTPClient: clientOfUser("alice")}
			} else {
				transport = &mcp.IOTransport{Reader: pipe.out, Writer: pipe.in}
			}
			c := mcp.NewClient(&mcp.Implementation{Name: "rooted", Version: "1"}, nil)
			c.AddRoots(&mcp.Root{URI: "file:///src/project"}) //nolint:staticcheck // clients of earlier versions have them
			s, err := c.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: tt.version})
			if err != nil {
				t.Fatal(err)
			}
			call(t, s, "read_file", map[string]any{"path": "a.txt"})
			_ = s.Close()
			b.endedSession()
			if !slices.Equal(b.clients[0].Roots, tt.want) {
				t.Errorf("roots %q", b.clients[0].Roots)
			}
		})
	}
}

// A client is told why it has no session, and may try again.
func TestOpenFails(t *testing.T) {
	b := newBench(t, nil)
	failing := true
	open := b.opts.Open
	b.server.opts.Open = func(ctx context.Context, c Client) (*Session, error) {
		if failing {
			return nil, errors.New("the workspace is gone")
		}
		return open(ctx, c)
	}
	s, _ := b.overStdio(nil)
	if _, err := s.ListTools(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "the workspace is gone") {
		t.Errorf("list: %v", err)
	}
	if text, r := call(t, s, "read_file", map[string]any{"path": "a.txt"}); !r.IsError || text != "the workspace is gone" {
		t.Errorf("call: %q", text)
	}
	failing = false
	if text, r := call(t, s, "read_file", map[string]any{"path": "a.txt"}); r.IsError {
		t.Errorf("another call: %q", text)
	}
}

// The end of the session is an error of the calls that follow.
func TestSessionOver(t *testing.T) {
	b := newBench(t, nil)
	s, _ := b.overStdio(nil)
	call(t, s, "read_file", map[string]any{"path": "a.txt"})
	b.server.mu.Lock()
	var over *runner.Session
	for _, c := range b.server.clients {
		over = c.session.Runner
	}
	b.server.mu.Unlock()
	over.Close()
	if text, r := call(t, s, "read_file", map[string]any{"path": "a.txt"}); !r.IsError || !strings.Contains(text, "session is over") {
		t.Errorf("%q, %+v", text, r)
	}
}
