package mcpserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
)

const (
	initialize  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}` + "\n"
	initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"
)

func clientOfUser(name string) *http.Client { return &http.Client{Transport: bearer(name)} }

func (s *stdio) lines() <-chan string {
	out := make(chan string, 100_000)
	go func() {
		defer close(out)
		r := bufio.NewReader(s.out)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			out <- line
		}
	}()
	return out
}

// Input that is no message of the protocol ends the connection, or is refused,
// and holds neither memory nor a sandbox.
func TestHostileInput(t *testing.T) {
	endless := func(n int64) io.Reader { return io.LimitReader(repeated('x'), n) }
	for name, tt := range map[string]struct {
		input io.Reader
		fails bool   // ServeStdio returns an error
		want  string // a part of the last line
	}{
		"1 GB in one line":  {input: io.MultiReader(strings.NewReader(initialize+`{"jsonrpc":"2.0","id":1,"method":"`), endless(1<<30)), fails: true},
		"deep JSON":         {input: strings.NewReader(initialize + `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + strings.Repeat("[", 100_000) + "\n"), fails: true},
		"deep arguments":    {input: strings.NewReader(initialize + `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","arguments":{"path":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}}}` + "\n"), fails: true},
		"no JSON":           {input: strings.NewReader("GET / HTTP/1.1\r\n\r\n"), fails: true},
		"NUL":               {input: strings.NewReader("\x00\x00\n"), fails: true},
		"no initialize":     {input: strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"shell","arguments":{"command":"say"}}}` + "\n"), want: "initialization"},
		"unknown method":    {input: strings.NewReader(initialize + `{"jsonrpc":"2.0","id":1,"method":"shutdown"}` + "\n"), want: "-32601"},
		"a stray response":  {input: strings.NewReader(initialize + `{"jsonrpc":"2.0","id":77,"result":{}}` + "\n" + `{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n"), want: `"id":1,"result":{}`},
		"no name of a tool": {input: strings.NewReader(initialize + `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{}}` + "\n"), want: `no tool`},
		"nothing":           {input: strings.NewReader("")},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil)
			pipe := b.stdio()
			lines := pipe.lines()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if _, err := io.Copy(pipe.in, tt.input); err != nil && !tt.fails {
				t.Error(err)
			}
			// The answer, or the server's end, comes before the end of the
			// input.
			last, late := "", time.After(time.Minute)
			for open := tt.fails || tt.want != ""; open && (tt.fails || !strings.Contains(last, tt.want)); {
				select {
				case last, open = <-lines:
				case <-late:
					t.Fatalf("the last line is %.300q", last)
				}
			}
			if !strings.Contains(last, tt.want) {
				t.Errorf("the last line is %.300q", last)
			}
			err := pipe.end(t)
			if (err != nil) != tt.fails {
				t.Errorf("ServeStdio: %v", err)
			}
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 256<<20 {
				t.Errorf("the heap has grown by %d MiB", grown>>20)
			}
			if len(b.backend.Sandboxes) > 0 {
				t.Error("a sandbox was started")
			}
		})
	}
}

// repeated is an endless reader of one byte.
type repeated byte

func (r repeated) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(r)
	}
	return len(p), nil
}

// Most of 1,000 calls at once are refused, and the others end with the client.
func TestFloodOfCalls(t *testing.T) {
	b := newBench(t, nil)
	pipe := b.stdio()
	lines := pipe.lines()
	const n = 1_000
	var all bytes.Buffer
	all.WriteString(initialize + initialized)
	for i := range n {
		fmt.Fprintf(&all, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"shell","arguments":{"command":"hang"}}}`+"\n", i+1)
	}
	if _, err := io.Copy(pipe.in, &all); err != nil {
		t.Fatal(err)
	}
	<-b.hanging
	refused := 0
	for refused < n-maxCalls {
		select {
		case l := <-lines:
			if strings.Contains(l, "Too many calls") {
				refused++
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%d calls were refused, want %d", refused, n-maxCalls)
		}
	}
	if err := pipe.end(t); err != nil {
		t.Error(err)
	}
	r := b.endedSession()
	if r.Usage.ToolCalls > maxCalls || len(b.backend.Sandboxes) != 1 {
		t.Errorf("%d calls, %d sandboxes", r.Usage.ToolCalls, len(b.backend.Sandboxes))
	}
}

// post sends a user's message, and returns the status and the body of the
// response.
func post(t *testing.T, url, user, session, body string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if user != "" {
		r.Header.Set("Authorization", "Bearer "+user)
	}
	if session != "" {
		r.Header.Set(sessionHeader, session)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

func endSession(t *testing.T, url, user, session string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+user)
	r.Header.Set(sessionHeader, session)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// Bodies that never come fill only their own user's requests.
func TestSlowRequestsOfOneUser(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Admit = admitByName })
	url := b.listen()
	for i, status := 1, 0; status != http.StatusServiceUnavailable; i++ {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimSuffix(strings.TrimPrefix(url, "http://"), Path))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "POST "+Path+" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer alice\r\nContent-Length: 9\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if i < maxRequests { // each slot is free again after a while
			continue
		}
		resp, _ := post(t, url, "alice", "nonesuch", "{}")
		status = resp.StatusCode
	}
	if resp, _ := post(t, url, "bob", "nonesuch", "{}"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("another user: %s", resp.Status)
	}
}

// A session takes no request of another user, nor one without its ID.
func TestSessionsBelongToTheirUser(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Admit = admitByName })
	url := b.listen()
	resp, _ := post(t, url, "alice", "", initialize)
	id := resp.Header.Get(sessionHeader)
	if resp.StatusCode != http.StatusOK || id == "" {
		t.Fatalf("initialize: %s", resp.Status)
	}
	post(t, url, "alice", id, initialized)
	read := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"a.txt"}}}`
	if resp, text := post(t, url, "alice", id, read); resp.StatusCode != http.StatusOK || !strings.Contains(text, "content") {
		t.Errorf("its user: %s %s", resp.Status, text)
	}
	for name, tt := range map[string]struct {
		user, session string
		status        int
	}{
		"another user":        {"mallory", id, http.StatusNotFound},
		"no token":            {"", id, http.StatusUnauthorized},
		"an unknown id":       {"alice", "nonesuch", http.StatusNotFound},
		"an id cut short":     {"alice", id[:len(id)-1], http.StatusNotFound},
		"no id, no handshake": {"alice", "", http.StatusOK},
	} {
		resp, text := post(t, url, tt.user, tt.session, read)
		if resp.StatusCode != tt.status || strings.Contains(text, "content\\n") {
			t.Errorf("%s: %s %s", name, resp.Status, text)
		}
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Accept", "text/event-stream")
			r.Header.Set("Authorization", "Bearer "+tt.user)
			r.Header.Set(sessionHeader, tt.session)
			if tt.user == "" {
				r.Header.Del("Authorization")
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode < 400 {
				t.Errorf("%s of %s: %s", method, name, resp.Status)
			}
		}
	}
	if resp, text := post(t, url, "alice", id, read); resp.StatusCode != http.StatusOK || !strings.Contains(text, "content") {
		t.Errorf("its user, afterwards: %s %s", resp.Status, text)
	}
}

// TestLimitsOfHTTP tests the bounds of sessions and bodies, and paths.
func TestLimitsOfHTTP(t *testing.T) {
	b := newBench(t, func(o *Options) { o.Admit, o.MaxSessions = admitByName, 2 })
	url := b.listen()
	var ids []string
	for range 2 {
		resp, _ := post(t, url, "alice", "", initialize)
		ids = append(ids, resp.Header.Get(sessionHeader))
	}
	if _, text := post(t, url, "alice", "", initialize); !strings.Contains(text, "2 sessions already") {
		t.Errorf("a third session: %s", text)
	}
	if status := endSession(t, url, "alice", ids[0]); status != http.StatusNoContent {
		t.Fatalf("DELETE: %d", status)
	}
	if resp, text := post(t, url, "alice", "", initialize); resp.Header.Get(sessionHeader) == "" {
		t.Errorf("a session in place of one that ended: %s", text)
	}
	big, err := json.Marshal(strings.Repeat("x", maxMessageBytes))
	if err != nil {
		t.Fatal(err)
	}
	if resp, _ := post(t, url, "alice", ids[1], string(big)); resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a large body: %s", resp.Status)
	}
	if resp, _ := post(t, strings.TrimSuffix(url, Path)+"/", "alice", "", initialize); resp.StatusCode != http.StatusNotFound {
		t.Errorf("another path: %s", resp.Status)
	}
	if resp, _ := post(t, url, "alice", ids[1], "["+strings.Repeat("[", 100_000)); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("deep JSON: %s", resp.Status)
	}
	for range 50 { // connections that never initialize hold nothing
		post(t, url, "alice", "", `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	}
	b.server.mu.Lock()
	defer b.server.mu.Unlock()
	if len(b.server.clients) != 2 {
		t.Errorf("%d clients", len(b.server.clients))
	}
}
