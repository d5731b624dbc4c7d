package egress

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// TestHostileResponses checks that nothing that a host answers ends the process, or
// reaches a program as another response than the host's or a refusal.
func TestHostileResponses(t *testing.T) {
	var answer atomic.Pointer[string]
	at := startServer(t, func(conn *net.TCPConn) {
		_, _ = http.ReadRequest(bufio.NewReader(conn))
		_, _ = io.WriteString(conn, *answer.Load())
	})
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "http://"+at+"/")
	for _, c := range []struct{ answer, want string }{
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "200"}, // the control
		{"HTTP/1.1 042 x\r\nContent-Length: 2\r\n\r\nok", "502"},
		{"HTTP/1.1 000 x\r\nContent-Length: 2\r\n\r\nok", "502"},
		{"HTTP/1.1 999 x\r\nContent-Length: 2\r\n\r\nok", "999"},
		{"HTTP/1.1 101 x\r\n\r\n", "502"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok", "502"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "502"},
		{"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 1<<20) + "\r\n\r\n", "502"},
		{strings.Repeat("HTTP/1.1 103 x\r\nLink: y\r\n\r\n", 10000), "502"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Length, X\r\n\r\n2\r\nok\r\n0\r\nContent-Length: 9\r\nX: y\r\n\r\n", "502"},
	} {
		answer.Store(&c.answer)
		conn := f.connectProxy()
		_, _ = fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", at, at)
		br := bufio.NewReader(conn)
		got := ""
		for got == "" || got == "103" {
			res, err := http.ReadResponse(br, &http.Request{Method: "GET"})
			if err != nil {
				got = err.Error()
				break
			}
			got = fmt.Sprintf("%03d", res.StatusCode)
		}
		if got != c.want {
			t.Errorf("%.60q: the program got %s, want %s", c.answer, got, c.want)
		}
		_ = conn.Close()
	}
}

// TestManyStreams checks that the streams of HTTP/2, of which a program opens far more
// than connections, don't become as many requests, connections and files of this process.
func TestManyStreams(t *testing.T) {
	const conns, streams = 6, 90
	var begun atomic.Int64
	release := make(chan struct{})
	server := startSecure(t, func(http.ResponseWriter, *http.Request) {
		begun.Add(1)
		<-release
	})
	s := newSession(t, server, nil, "https://localhost:"+server.port+"/")
	var wg sync.WaitGroup
	var answered atomic.Int64
	for range conns {
		c := s.client("h2")
		for range streams {
			wg.Go(func() {
				if res, _ := do(t, c, "GET", server.url("/"), nil, nil); res.StatusCode == http.StatusOK {
					answered.Add(1)
				}
			})
		}
	}
	awaitTrue(t, "the first requests", func() bool { return begun.Load() >= maxRequests })
	time.Sleep(200 * time.Millisecond)
	if n := begun.Load(); n != maxRequests {
		t.Errorf("%d requests at once, want %d", n, maxRequests)
	}
	close(release)
	wg.Wait()
	if n := answered.Load(); n != conns*streams { // the control: the others only waited
		t.Errorf("%d requests were answered, want %d", n, conns*streams)
	}
}

// TestKeptConnections checks that a program that names many hosts doesn't keep a
// connection to each of them.
func TestKeptConnections(t *testing.T) {
	at := startServer(t, func(conn *net.TCPConn) {
		br := bufio.NewReader(conn)
		for {
			if _, err := http.ReadRequest(br); err != nil {
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	port := portOf(t, at)
	names := []string{"localhost", "127.0.0.1", rule.HostName}
	var rules []string
	for _, name := range names {
		rules = append(rules, fmt.Sprintf("http://%s:%d/", name, port))
	}
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, rules...)
	conn := f.connectProxy()
	br := bufio.NewReader(conn)
	for _, name := range names {
		_, _ = fmt.Fprintf(conn, "GET http://%s:%d/ HTTP/1.1\r\nHost: %s:%d\r\n\r\n", name, port, name, port)
		res, err := http.ReadResponse(br, &http.Request{Method: http.MethodGet})
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v, %v", name, res, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
	}
	awaitTrue(t, "one connection is kept", func() bool { return f.openNow() == 1 })
}

// TestOnceEndsWithCommand checks that an answer for one command isn't one for the
// command of another sandbox that has its number.
func TestOnceEndsWithCommand(t *testing.T) {
	var asked atomic.Int64
	at := startEcho(t)
	address := fmt.Sprintf("localhost:%d", portOf(t, at))
	f := newFixture(t, func(o *Options) {
		o.Guard = allowLoopback(t)
		o.Ask = func(context.Context, Question) (Answer, error) {
			asked.Add(1)
			return Answer{Verdict: VerdictOnce}, nil
		}
	})
	for range 2 { // the control: one question for the command
		f.tunnel(address)
	}
	if n := asked.Load(); n != 1 {
		t.Fatalf("%d questions for one command", n)
	}
	f.EndCommand(7)
	f.tunnel(address)
	if n := asked.Load(); n != 2 {
		t.Errorf("%d questions, want one more for the next command", n)
	}
}

// TestUnrequestedSwitchOfRegistry checks that a registry can't make a program take its
// connection for one of another protocol.
func TestUnrequestedSwitchOfRegistry(t *testing.T) {
	status := "200 OK"
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 "+status+"\r\nContent-Length: 2\r\n\r\nok")
		_ = conn.Close()
	})
	server.TLS.NextProtos = []string{"http/1.1"}
	s := newRegistrySession(t, server, openTestCache(t), nil, nil)
	if res, _ := s.getMirror("/example.test/m/@v/v1.0.1.zip", ""); res.StatusCode != http.StatusOK { // the control
		t.Fatalf("%s", res.Status)
	}
	status = "101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade"
	if res, _ := s.getMirror("/example.test/m/@v/v1.0.2.zip", ""); res.StatusCode != http.StatusBadGateway {
		t.Errorf("the program got %s", res.Status)
	}
}

// TestEchoInParts is attack 30 by ways that a program chooses: compressed messages of a
// WebSocket, and parts of a response by a header that some servers take for Range.
func TestEchoInParts(t *testing.T) {
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Upgrade") != "":
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			extensions := strings.Join(r.Header["Sec-Websocket-Extensions"], ",")
			_, _ = io.WriteString(conn, "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n["+extensions+"]")
		case r.URL.Path == "/v1/part": // whatever was asked for
			w.Header().Set("Content-Range", "bytes 0-9/20")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, r.Header.Get("Authorization")[7:17])
		default:
			_, _ = io.WriteString(w, r.Header.Get("Request-Range")+"whole")
		}
	})
	server.TLS.NextProtos = []string{"http/1.1"}
	s, placeholder := newSecretSession(t, server, "https://localhost:"+server.port+"/v1/")
	header := http.Header{"Authorization": {"Bearer " + placeholder}, "Request-Range": {"bytes=0-9"}}
	c := s.client("http/1.1")
	if res, body := do(t, c, "GET", server.url("/v1/whole"), nil, header); res.StatusCode != http.StatusOK || body != "whole" {
		t.Errorf("a whole response: %s, %q", res.Status, body)
	}
	if res, body := do(t, c, "GET", server.url("/v1/part"), nil, header); res.StatusCode != http.StatusBadGateway || strings.Contains(body, keyValue[:10]) {
		t.Errorf("a part: %s, %q", res.Status, body)
	}
	conn := s.dialTLS("localhost:"+server.port, "http/1.1")
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "GET /v1/ws HTTP/1.1\r\nHost: localhost:"+server.port+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Authorization: Bearer "+placeholder+"\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
	br := bufio.NewReader(conn)
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", res, err)
	}
	if got, err := br.ReadString(']'); err != nil || got != "[]" {
		t.Errorf("the server was offered the extensions %q, %v", got, err)
	}
}
