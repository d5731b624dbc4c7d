package server

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// dial sends the beginning of a request, and keeps the connection.
func (w *testEnv) dial(text string) (net.Conn, *bufio.Reader) {
	w.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.base, "http://"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(5 * time.Minute)); err != nil {
		w.t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		w.t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// wantCut reads an answer, after which the server must close the connection.
func wantCut(t *testing.T, name string, r *bufio.Reader, status int) {
	t.Helper()
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Errorf("%s: no answer: %v", name, err)
		return
	}
	if res.StatusCode != status || !res.Close {
		t.Errorf("%s: %d, closes %t, want %d", name, res.StatusCode, res.Close, status)
	}
	_, err = io.Copy(io.Discard, res.Body)
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if err != nil && (errors.Is(err, os.ErrDeadlineExceeded) || !errors.Is(err, syscall.ECONNRESET)) {
		t.Errorf("%s: the connection is left open: %v", name, err)
	}
}

// A request that is refused before its body is read is answered even if the
// rest never comes, and its connection is closed. Bodies and headers have an
// hour here, so that no time-out does it.
func TestRefusalsReadNoBody(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) { o.headerTime, o.bodyTime = time.Hour, time.Hour })
	const host, kind = "Host: localhost\r\n", "Content-Type: application/json\r\n"
	auth := host + "Authorization: Bearer " + aliceToken + "\r\n"
	var cases sync.WaitGroup
	defer cases.Wait()
	for name, c := range map[string]struct {
		head   string
		status int
	}{
		"no token":        {"POST /sessions HTTP/1.1\r\n" + host + kind, 401},
		"a GET, no token": {"GET /sessions HTTP/1.1\r\n" + host, 401},
		"foreign Host":    {"POST /sessions HTTP/1.1\r\nHost: evil.test\r\n" + kind, 403},
		"foreign Origin":  {"POST /sessions HTTP/1.1\r\n" + auth + "Origin: https://evil.test\r\n" + kind, 403},
		"a form":          {"POST /sessions HTTP/1.1\r\n" + auth + "Content-Type: text/plain\r\n", 415},
		"a GET":           {"GET /sessions HTTP/1.1\r\n" + auth + kind, 400},
		"open, POST":      {"POST /healthz HTTP/1.1\r\n" + host + kind, 405},
		"open":            {"GET /healthz HTTP/1.1\r\n" + host, 200},
		"asks first":      {"POST /sessions HTTP/1.1\r\n" + host + kind + "Expect: 100-continue\r\n", 401},
		"HTTP/1.0":        {"POST /sessions HTTP/1.0\r\n" + host + kind, 401},
	} {
		for _, body := range []string{
			"Content-Length: 1000\r\n\r\n{", // below what net/http would wait for
			"Content-Length: 1000000\r\n\r\n{",
			"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
		} {
			if strings.HasPrefix(body, "Transfer") && name == "HTTP/1.0" {
				continue // it has no chunks
			}
			cases.Go(func() {
				_, r := w.dial(c.head + body)
				wantCut(t, name+", "+body[:20], r, c.status)
			})
		}
	}
	_, r := w.dial("POST /sessions HTTP/1.1\r\n" + auth + kind + "Content-Length: 1073741824\r\n\r\n{")
	wantCut(t, "too long", r, 413)
	_, r = w.dial("GET /sessions HTTP/1.1\r\n" + auth + "X: " + strings.Repeat("x", 64<<10))
	wantCut(t, "long headers", r, 431)
	// Control: a body that comes whole, and whose connection is used again.
	conn, r := w.dial("POST /sessions HTTP/1.1\r\n" + auth + kind + "Content-Length: 2\r\n\r\n{")
	for _, rest := range []string{"}", "GET /sessions HTTP/1.1\r\n" + auth + "\r\n"} {
		if _, err := io.WriteString(conn, rest); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.Close || res.StatusCode != 422 && res.StatusCode != 200 {
			t.Errorf("the control: %s, closes %t, %v", res.Status, res.Close, err)
		}
	}
}

// TestEndlessRequests sends without end what is allowed and what is not: each
// is cut by its size.
func TestEndlessRequests(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) { o.headerTime, o.bodyTime = time.Hour, time.Hour })
	auth := "Host: localhost\r\nAuthorization: Bearer " + aliceToken + "\r\n"
	chunked := "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, c := range map[string]struct{ head, piece string }{
		"headers":          {"GET /sessions HTTP/1.1\r\n", "X: y\r\n"},
		"one header":       {"GET /sessions HTTP/1.1\r\nX: ", "y"},
		"the first line":   {"GET /", "x"},
		"body":             {"POST /sessions HTTP/1.1\r\n" + auth + chunked, "10\r\n" + strings.Repeat(" ", 16) + "\r\n"},
		"body, no token":   {"POST /sessions HTTP/1.1\r\nHost: localhost\r\n" + chunked, "1\r\n{\r\n"},
		"a chunk's length": {"POST /sessions HTTP/1.1\r\n" + auth + chunked, "0"},
		"trailers":         {"POST /sessions HTTP/1.1\r\n" + auth + chunked + "2\r\n{}\r\n0\r\n", "X: y\r\n"},
	} {
		conn, _ := w.dial(c.head)
		for piece := []byte(strings.Repeat(c.piece, 512)); ; {
			_, err := conn.Write(piece)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: it is neither taken nor cut", name)
			}
			if err != nil {
				break
			}
		}
	}
	if n := len(w.server.sessions.sessions); n != 0 {
		t.Errorf("%d sessions were started", n)
	}
}

// TestSlowRequests stops in the middle of requests: the connection is cut when
// their time is over.
func TestSlowRequests(t *testing.T) {
	w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) { o.headerTime, o.bodyTime = time.Hour, 50*time.Millisecond })
	auth := "Host: localhost\r\nAuthorization: Bearer " + aliceToken + "\r\nContent-Type: application/json\r\n"
	for name, head := range map[string]string{
		"body":             "POST /sessions HTTP/1.1\r\n" + auth + "Content-Length: 1000\r\n\r\n{",
		"chunks":           "POST /sessions HTTP/1.1\r\n" + auth + "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
		"an unknown path":  "POST /none HTTP/1.1\r\n" + auth + "Content-Length: 1000\r\n\r\n{",
		"its continuation": "POST /sessions HTTP/1.1\r\n" + auth + "Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n",
	} {
		_, r := w.dial(head)
		if strings.HasPrefix(name, "its") {
			if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 100 {
				t.Errorf("%s: %v, %v", name, res, err)
			}
		}
		wantCut(t, name, r, 408)
	}
	// The port has no other protocol, which would have other bounds.
	_, r := w.dial("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	if line, err := r.ReadString('\n'); err == nil && !strings.HasPrefix(line, "HTTP/1.1 4") && !strings.HasPrefix(line, "HTTP/1.1 5") {
		t.Errorf("HTTP/2 is answered with %q", line)
	}
	_, r = w.dial("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n")
	if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 200 {
		t.Errorf("an upgrade to HTTP/2: %v, %v", res, err)
	}
	hasty := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) { o.headerTime = 50 * time.Millisecond })
	for name, head := range map[string]string{"headers": "GET /sessions HTTP/1.1\r\nHost: loc", "a line": "GE"} {
		_, r := hasty.dial(head)
		if _, err := io.Copy(io.Discard, r); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection is left open", name)
		}
	}
}
