package mcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// seenRequest is what a server over HTTP was sent.
type seenRequest struct{ method, session, authorization string }

// recordingServer is a server over HTTP that keeps what it was sent.
type recordingServer struct {
	*httptest.Server
	mu   sync.Mutex
	seen []seenRequest
}

func serveHTTP(t testing.TB, handler http.Handler) *recordingServer {
	t.Helper()
	s := &recordingServer{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, seenRequest{r.Method, r.Header.Get("Mcp-Session-Id"), r.Header.Get("Authorization")})
		s.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// count returns the number of requests that f is true of.
func (s *recordingServer) count(f func(seenRequest) bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.seen {
		if f(r) {
			n++
		}
	}
	return n
}

// sdkHTTPServer returns a server of the SDK with two tools.
func sdkHTTPServer(t testing.TB) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "fake", Version: "1"}, nil)
	addTool(s, "one")
	addTool(s, "two")
	t.Cleanup(func() {
		for session := range s.Sessions() {
			_ = session.Close() // those that a client has lost
		}
	})
	return s
}

func streamableHandler(t testing.TB, o *mcp.StreamableHTTPOptions) http.Handler {
	s := sdkHTTPServer(t)
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, o)
}

func sseHandler(t testing.TB) http.Handler {
	s := sdkHTTPServer(t)
	return mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return s }, nil)
}

// startHTTP starts a Set of servers over HTTP, by their names.
func startHTTP(t testing.TB, servers ...Server) *harness {
	t.Helper()
	h := newHTTP(t, servers...)
	h.Start(t.Context())
	return h
}

// newHTTP returns servers that are not started.
func newHTTP(t testing.TB, servers ...Server) *harness {
	t.Helper()
	return newHarness(t, map[string]serverFunc{}, func(o *Options) {
		o.Servers = append(o.Servers, servers...)
		o.HTTPClient = func(Server) (*http.Client, error) { return &http.Client{Transport: &http.Transport{}}, nil }
	})
}

func TestHTTPServers(t *testing.T) {
	for name, tc := range map[string]struct {
		handler   http.Handler
		sse       bool
		transport string
		session   bool
	}{
		"streamable":           {streamableHandler(t, nil), false, "http", true},
		"streamable with JSON": {streamableHandler(t, &mcp.StreamableHTTPOptions{JSONResponse: true}), false, "http", true},
		"stateless":            {streamableHandler(t, &mcp.StreamableHTTPOptions{Stateless: true}), false, "http", false},
		"sse":                  {sseHandler(t), true, "sse", false},
		"sse, not configured":  {sseHandler(t), false, "sse", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveHTTP(t, tc.handler)
			h := startHTTP(t, Server{Name: "a", URL: s.URL, SSE: tc.sse, Headers: map[string]string{"Authorization": "Bearer secret"}})
			if got, want := h.names(), []string{"a/one", "a/two"}; !slices.Equal(got, want) {
				t.Fatalf("tools %q, want %q; %+v", got, want, eventsOf[ServerFailed](h))
			}
			for range 3 {
				out, err := h.call(t.Context(), "a/two", `{}`)
				if err != nil || outputText(out) != "two" {
					t.Errorf("%q, %v", outputText(out), err)
				}
			}
			if started := eventsOf[ServerStarted](h); len(started) != 1 || started[0].Transport != tc.transport {
				t.Errorf("started: %+v", started)
			}
			if err := h.Close(context.Background()); err != nil {
				t.Fatal(err)
			}
			if n := s.count(func(r seenRequest) bool { return r.authorization != "Bearer secret" }); n > 0 {
				t.Errorf("%d requests without the header", n)
			}
			deleted := s.count(func(r seenRequest) bool { return r.method == http.MethodDelete && r.session != "" })
			if want := map[bool]int{true: 1}[tc.session && started26(h)]; deleted != want {
				t.Errorf("%d sessions ended, want %d", deleted, want)
			}
		})
	}
}

// started26 reports whether the server has sessions: the newest protocol has none.
func started26(h *harness) bool {
	started := eventsOf[ServerStarted](h)
	return len(started) > 0 && started[0].Protocol < "2026-07-28"
}

// legacy makes a server answer as one of before the newest protocol does, so that it has
// sessions and streams that can be resumed.
func legacy(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil || bytes.Contains(text, []byte(`"server/discover"`)) {
			http.Error(w, "method not found", http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(text))
		if r.Method == http.MethodPost {
			r.Header.Set("X-Body", string(text))
		}
		handler.ServeHTTP(w, r)
	})
}

// TestHTTPSessionEnds: a session is ended at the server.
func TestHTTPSessionEnds(t *testing.T) {
	s := serveHTTP(t, legacy(streamableHandler(t, nil)))
	h := startHTTP(t, Server{Name: "a", URL: s.URL})
	if out, err := h.call(t.Context(), "a/one", `{}`); err != nil || outputText(out) != "one" {
		t.Fatalf("%q, %v; %+v", outputText(out), err, eventsOf[ServerFailed](h))
	}
	if err := h.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := s.count(func(r seenRequest) bool { return r.method == http.MethodDelete && r.session != "" }); n != 1 {
		t.Errorf("%d sessions ended, want 1", n)
	}
}

// TestHTTPSessionIsLost: a server that has forgotten the session gets a new one.
func TestHTTPSessionIsLost(t *testing.T) {
	var lost atomic.Value
	lost.Store("")
	inner := streamableHandler(t, nil)
	s := serveHTTP(t, legacy(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if id := r.Header.Get("Mcp-Session-Id"); id != "" && id == lost.Load() {
			http.Error(w, "no such session", http.StatusNotFound)
			return
		}
		inner.ServeHTTP(w, r)
	})))
	h := startHTTP(t, Server{Name: "a", URL: s.URL})
	s.mu.Lock()
	for _, r := range s.seen {
		if r.session != "" {
			lost.Store(r.session)
		}
	}
	s.mu.Unlock()
	if _, err := h.call(t.Context(), "a/one", `{}`); err == nil {
		t.Fatal("the call of the lost session succeeded")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for { // the end may not have been noticed yet
		out, err := h.call(ctx, "a/one", `{}`)
		if err == nil && outputText(out) == "one" {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("%q, %v", outputText(out), err)
		}
	}
	if stopped := eventsOf[ServerStopped](h); len(stopped) != 1 || !errors.Is(stopped[0].Err, mcp.ErrSessionMissing) {
		t.Errorf("stopped: %+v", stopped)
	}
}

// TestHTTPStreamIsResumed: the answer to a call whose stream was cut comes by another one.
func TestHTTPStreamIsResumed(t *testing.T) {
	server := sdkHTTPServer(t)
	started, goOn := make(chan struct{}), make(chan struct{})
	server.AddTool(&mcp.Tool{Name: "slow", InputSchema: map[string]any{"type": "object"}}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1})
		close(started)
		<-goOn
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "slow"}}}, nil
	})
	inner := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)})
	var cut atomic.Int32
	s := serveHTTP(t, legacy(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.Header.Get("X-Body"), `"slow"`) && cut.Add(1) == 1 {
			ctx, cancel := context.WithCancel(r.Context())
			go func() { // the client has the first event then
				<-started
				time.Sleep(200 * time.Millisecond)
				cancel()
				close(goOn)
			}()
			inner.ServeHTTP(w, r.WithContext(ctx))
			panic(http.ErrAbortHandler)
		}
		inner.ServeHTTP(w, r)
	})))
	h := startHTTP(t, Server{Name: "a", URL: s.URL})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	out, err := h.call(ctx, "a/slow", `{}`)
	if err != nil || outputText(out) != "slow" {
		t.Fatalf("%q, %v; %+v", outputText(out), err, eventsOf[ServerStopped](h))
	}
	if cut.Load() == 0 {
		t.Error("no stream was cut")
	}
}

// canary counts the requests that must not reach it.
func canary(t testing.TB) (*httptest.Server, *atomic.Int32) {
	t.Helper()
	var hits atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		hits.Add(1)
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(s.Close)
	return s, &hits
}

// flood writes text until the client goes away.
func flood(w http.ResponseWriter, r *http.Request, text string) {
	block := []byte(strings.Repeat(text, 1+(64<<10)/len(text)))
	for r.Context().Err() == nil {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

// TestHostileHTTPServers: each is stopped or fails, for the reason that is expected, and
// does nothing to another server.
func TestHostileHTTPServers(t *testing.T) {
	other, hits := canary(t)
	events := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
	}
	for name, tc := range map[string]struct {
		sse     bool
		handler http.HandlerFunc
		want    string
	}{
		"endless JSON": {false, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			flood(w, r, `{"jsonrpc":"2.0",`)
		}, "deeper than 128"},
		"a large answer": {false, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			flood(w, r, `                    `)
		}, "larger than the limit"},
		"deep JSON": {false, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, strings.Repeat("[", 100_000))
		}, "deeper than 128"},
		"deep events": {false, func(w http.ResponseWriter, _ *http.Request) {
			events(w)
			_, _ = io.WriteString(w, ": ]]]]\ndata: "+strings.Repeat(`[`, 100)+"\ndata: "+strings.Repeat(`[`, 100)+"\n\n")
		}, "deeper than 128"},
		"an event that does not end": {false, func(w http.ResponseWriter, r *http.Request) {
			events(w)
			flood(w, r, "data: x\n")
		}, ""},
		"a line that does not end": {false, func(w http.ResponseWriter, r *http.Request) {
			events(w)
			_, _ = io.WriteString(w, "data: ")
			flood(w, r, "x")
		}, ""},
		"a flood of events": {false, func(w http.ResponseWriter, r *http.Request) {
			events(w)
			flood(w, r, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n\n")
		}, "faster than the limit"},
		"a flood of comments": {false, func(w http.ResponseWriter, r *http.Request) {
			events(w)
			flood(w, r, ":\n\n")
		}, "faster than the limit"},
		"silence": {false, func(w http.ResponseWriter, r *http.Request) {
			events(w)
			<-r.Context().Done()
		}, "timed out"},
		"no answer": {false, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "timed out"},
		"a page": {false, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>")
		}, "unsupported content type"},
		"an error that does not end": {false, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			flood(w, r, "x")
		}, "larger than the limit"},
		"a redirect elsewhere": {false, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		}, "at another host"},
		"a redirect to metadata": {false, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://169.254.169.254/latest/", http.StatusPermanentRedirect)
		}, "at another host"},
		"a redirect to a page": {false, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/page", http.StatusSeeOther)
		}, "request for a page"},
		"a loop of redirects": {false, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path+"x", http.StatusTemporaryRedirect)
		}, "too many redirects"},
		"a long session": {false, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Mcp-Session-Id", strings.Repeat("x", 5000))
		}, "identifier of the session"},
		"sse with an endpoint elsewhere": {true, func(w http.ResponseWriter, r *http.Request) {
			events(w)
			_, _ = fmt.Fprintf(w, "event: endpoint\ndata: %s/steal\n\n", other.URL)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, "at another host"},
		"sse without an endpoint": {true, func(w http.ResponseWriter, r *http.Request) {
			events(w)
			<-r.Context().Done()
		}, "timed out"},
		"sse with a flood": {true, func(w http.ResponseWriter, r *http.Request) {
			events(w)
			if r.Method == http.MethodPost {
				return
			}
			_, _ = io.WriteString(w, "event: endpoint\ndata: /messages\n\n")
			flood(w, r, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n\n")
		}, "faster than the limit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A server notices that a client has gone away once it has read the request.
			read := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				tc.handler(w, r)
			})
			timeout := 2 * time.Minute
			if tc.want == "timed out" {
				timeout = 3 * time.Second
			}
			hostile, good := serveHTTP(t, read), serveHTTP(t, streamableHandler(t, nil))
			began := time.Now()
			h := newHTTP(t, Server{Name: "bad", URL: hostile.URL, SSE: tc.sse, StartTimeout: timeout}, Server{Name: "good", URL: good.URL})
			h.limits.lines = pace{10, 1000} // a slow machine exceeds it too
			h.Start(t.Context())
			failed := eventsOf[ServerFailed](h)
			told := func(text string) bool { return len(failed) > 0 && strings.Contains(failed[0].Err.Error(), text) }
			closed := name == "a page" && told("client is closing") // the SDK ends the connection too, and tells either
			if len(failed) == 0 || failed[0].Server != "bad" || !told(tc.want) && !closed {
				t.Errorf("failed: %+v, want %q", failed, tc.want)
			}
			if took := time.Since(began); took > timeout+30*time.Second {
				t.Errorf("the start took %s", took)
			}
			if out, err := h.call(t.Context(), "good/one", `{}`); err != nil || outputText(out) != "one" {
				t.Errorf("the other server: %q, %v", outputText(out), err)
			}
		})
	}
	t.Cleanup(func() {
		if n := hits.Load(); n > 0 {
			t.Errorf("%d requests reached another host", n)
		}
	})
}

// TestRedirectControl: a client without the guard follows the redirect, with the header.
func TestRedirectControl(t *testing.T) {
	other, hits := canary(t)
	s := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	c := &http.Client{Transport: &http.Transport{}}
	defer c.CloseIdleConnections()
	res, err := c.Post(s.URL, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if hits.Load() != 1 {
		t.Errorf("%d hits", hits.Load())
	}
}

// TestStreamsArePaced: a server that ends its streams at once, with news each time, is
// not asked as fast as it likes.
func TestStreamsArePaced(t *testing.T) {
	inner := streamableHandler(t, nil)
	var id atomic.Int64
	s := serveHTTP(t, legacy(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "retry: 1\nid: %d\n\n", id.Add(1))
			return
		}
		inner.ServeHTTP(w, r)
	})))
	h := startHTTP(t, Server{Name: "a", URL: s.URL})
	time.Sleep(3 * time.Second)
	if n, most := int(id.Load()), newHTTPLimits(defaultFrameLimits).streams.burst+2*4; n < 2 || n > most {
		t.Errorf("%d streams in 3 s, want 2 to %d", n, most)
	}
	if out, err := h.call(t.Context(), "a/one", `{}`); err != nil || outputText(out) != "one" {
		t.Errorf("%q, %v", outputText(out), err)
	}
}

// TestSilentStream: a server whose stream does not begin is used without it.
func TestSilentStream(t *testing.T) {
	inner := streamableHandler(t, nil)
	s := serveHTTP(t, legacy(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			<-r.Context().Done()
			return
		}
		inner.ServeHTTP(w, r)
	})))
	h := startHTTP(t, Server{Name: "a", URL: s.URL, StartTimeout: 15 * time.Second})
	if out, err := h.call(t.Context(), "a/one", `{}`); err != nil || outputText(out) != "one" {
		t.Errorf("%q, %v; %+v", outputText(out), err, eventsOf[ServerFailed](h))
	}
}

func FuzzNesting(f *testing.F) {
	f.Add("data: {\"a\":[1,\"]}\\\"\"]}\n\n", 3)
	f.Fuzz(func(t *testing.T, text string, cut int) {
		var whole, parts nesting
		deepest, values := whole.scanBytes([]byte(text), true)
		cut = min(max(cut, 0), len(text))
		firstDeepest, firstValues := parts.scanBytes([]byte(text[:cut]), true)
		nextDeepest, nextValues := parts.scanBytes([]byte(text[cut:]), true)
		if max(firstDeepest, nextDeepest) != deepest || max(firstValues, nextValues) != values || parts != whole {
			t.Errorf("%q cut at %d: %d deep with %d values, then %d with %d, want %d with %d", text, cut, firstDeepest, firstValues, nextDeepest, nextValues, deepest, values)
		}
	})
}

// TestValuesOverHTTP: the bound is for one message, whatever text comes between messages.
func TestValuesOverHTTP(t *testing.T) {
	for _, test := range []struct {
		stream bool
		text   string
		want   bool // that it is refused
	}{
		{true, strings.Repeat("data: [1,2,3,4]\n\n", 10), false},
		{true, "data: [1,2,3,\ndata: 4,5]\n\n", true},
		{true, "data: [1,2,3,4,5]\n\ndata: 1\n\n", true},
		{false, "[1,\n\n2,3,4,5]", true},
		{false, "[1,2,3,4]", false},
	} {
		limits := newHTTPLimits(defaultFrameLimits)
		guard := &guardTransport{limits: limits, lines: limits.lines.newLimiter(), bytes: limits.bytes.newLimiter()}
		guard.limits.values = 4
		body := &guardedBody{t: guard, stream: test.stream, left: 1000}
		if err := body.check([]byte(test.text)); (err != nil) != test.want {
			t.Errorf("%q: %v", test.text, err)
		}
	}
}
