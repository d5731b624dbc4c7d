package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// startCounting starts a server that reads everything, and counts bytes.
func startCounting(t testing.TB, n *atomic.Int64) string {
	t.Helper()
	return startServer(t, func(conn *net.TCPConn) {
		buf := make([]byte, 64<<10)
		for {
			got, err := conn.Read(buf)
			n.Add(int64(got))
			if err != nil {
				return
			}
		}
	})
}

func lastClosed(f *fixture) Closed {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.closed) == 0 {
		return Closed{}
	}
	return f.closed[len(f.closed)-1]
}

// TestHalfClose checks half-closed connections in both directions.
func TestHalfClose(t *testing.T) {
	release := make(chan struct{})
	hostFirst := startServer(t, func(conn *net.TCPConn) {
		_, _ = conn.Write([]byte("bye"))
		_ = conn.CloseWrite()
		got, _ := io.ReadAll(conn)
		if string(got) != "late" {
			t.Errorf("the host got %q", got)
		}
	})
	programFirst := startServer(t, func(conn *net.TCPConn) {
		got, _ := io.ReadAll(conn)
		<-release
		_, _ = conn.Write(append([]byte("after "), got...))
	})
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "tcp://"+hostFirst, "tcp://"+programFirst)
	br, conn := f.tunnel(hostFirst)
	if got, err := io.ReadAll(br); err != nil || string(got) != "bye" {
		t.Errorf("%q, %v", got, err)
	}
	_, _ = conn.Write([]byte("late"))
	_ = conn.CloseWrite()
	f.wg.Wait()
	if c := lastClosed(f); c.Ending != EndingDone || c.Sent != 4 || c.Received != 3 {
		t.Errorf("closed %+v", c)
	}
	br, conn = f.tunnel(programFirst)
	_, _ = conn.Write([]byte("sent"))
	_ = conn.CloseWrite()
	time.Sleep(50 * time.Millisecond)
	close(release)
	if got, err := io.ReadAll(br); err != nil || string(got) != "after sent" {
		t.Errorf("%q, %v", got, err)
	}
	f.wg.Wait()
	if c := lastClosed(f); c.Ending != EndingDone {
		t.Errorf("closed %+v", c)
	}
}

// TestReset checks that a reset on one side is one on the other.
func TestReset(t *testing.T) {
	seen := make(chan error, 1)
	waits := startServer(t, func(conn *net.TCPConn) {
		_, err := io.Copy(io.Discard, conn)
		seen <- err
	})
	resets := startServer(t, func(conn *net.TCPConn) {
		_, _ = io.ReadFull(conn, make([]byte, 1))
		_ = conn.SetLinger(0)
	})
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "tcp://"+waits, "tcp://"+resets)
	_, conn := f.tunnel(waits)
	_, _ = conn.Write([]byte("x"))
	time.Sleep(20 * time.Millisecond)
	_ = conn.SetLinger(0)
	_ = conn.Close()
	if err := <-seen; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the host saw %v", err)
	}
	f.wg.Wait()
	if c := lastClosed(f); c.Ending != EndingProgram {
		t.Errorf("closed %+v", c)
	}
	br, conn := f.tunnel(resets)
	_, _ = conn.Write([]byte("x"))
	_, _ = io.ReadAll(br)
	f.wg.Wait()
	if c := lastClosed(f); c.Ending != EndingHost {
		t.Errorf("closed %+v", c)
	}
}

// TestIdle checks that a connection without bytes ends, in a relay and in HTTP, and
// that one with a byte now and then stays.
func TestIdle(t *testing.T) {
	echo := startEcho(t)
	silent := startServer(t, func(conn *net.TCPConn) { _, _ = io.Copy(io.Discard, conn) })
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "tcp://"+echo, "http://"+silent+"/")
	f.times.idle = 2 * time.Second
	br, conn := f.tunnel(echo)
	for range 5 {
		time.Sleep(f.times.idle / 4)
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := br.ReadByte(); err != nil {
			t.Fatalf("ended though not idle: %v", err)
		}
	}
	start := time.Now()
	_, _ = io.ReadAll(br)
	if d := time.Since(start); d < f.times.idle/2 || d > 20*time.Second {
		t.Errorf("ended after %s", d)
	}
	f.wg.Wait()
	if c := lastClosed(f); c.Ending != EndingIdle {
		t.Errorf("closed %+v", c)
	}
	res, _, conn := f.send("GET http://" + silent + "/ HTTP/1.1\r\nHost: " + silent + "\r\n\r\n")
	_ = conn.Close()
	f.wg.Wait()
	if c := lastClosed(f); res.StatusCode != http.StatusBadGateway || c.Ending != EndingIdle {
		t.Errorf("%s, closed %+v", res.Status, c)
	}
}

// TestHeaderTime checks that a program that sends its request a byte at a time is cut
// off.
func TestHeaderTime(t *testing.T) {
	f := newFixture(t, nil, "public")
	f.times.header = 200 * time.Millisecond
	for _, text := range []string{"", "G", "GET http://example.com/ HTTP/1.1\r\nHost:", "CONNECT example", "\x05\x01", "\x05\x01\x00\x05\x01"} {
		conn := f.connectProxy()
		_, _ = io.WriteString(conn, text)
		start := time.Now()
		_, _ = io.ReadAll(conn)
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%q: ended after %s", text, d)
		}
		_ = conn.Close()
		f.wg.Wait()
		if d := f.Denials(7); len(d) != 1 || d[0].Reason != rule.ReasonTimeout {
			t.Errorf("%q: reported %+v", text, d)
		}
	}
}

// TestManyConnections is attack 26: a thousand connections, with slow readers and
// writers, leave the memory as it was, and at most 64 are served at once.
func TestManyConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("opens 1,000 connections")
	}
	server := startServer(t, func(conn *net.TCPConn) {
		_, _ = conn.Write(bytes.Repeat([]byte("x"), 1<<20)) // more than all buffers
		_, _ = io.Copy(io.Discard, conn)
	})
	var f *fixture
	var most atomic.Int64
	f = newFixture(t, func(o *Options) {
		o.Guard = allowLoopback(t)
		o.Opened = func(Opened) error {
			most.Store(max(most.Load(), int64(f.openNow()+1)))
			return nil
		}
	}, "tcp://"+server)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := heap()
	var peak atomic.Uint64
	var wg sync.WaitGroup
	tokens := make(chan struct{}, 200)
	for i := range 1000 {
		tokens <- struct{}{}
		wg.Go(func() {
			defer func() { <-tokens }()
			conn := f.connectProxy()
			defer func() { _ = conn.Close() }()
			_, _ = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", server, server)
			br := bufio.NewReader(conn)
			if _, err := http.ReadResponse(br, &http.Request{Method: http.MethodConnect}); err != nil {
				return
			}
			switch i % 4 {
			case 0: // reads nothing for a while, and goes
				time.Sleep(20 * time.Millisecond)
			case 1: // resets
				_ = conn.SetLinger(0)
			case 2: // half-closes, and reads all
				_ = conn.CloseWrite()
				_, _ = io.Copy(io.Discard, br)
			default: // writes slowly
				for range 10 {
					_, _ = conn.Write([]byte("x"))
					time.Sleep(time.Millisecond)
				}
			}
			if i == 500 {
				peak.Store(heap())
			}
		})
	}
	wg.Wait()
	f.wg.Wait()
	after := heap()
	t.Logf("memory before %d KiB, amid %d KiB, after %d KiB; %d at once", before>>10, peak.Load()>>10, after>>10, most.Load())
	if most.Load() > maxConns {
		t.Errorf("%d connections at once", most.Load())
	}
	if after > before+4<<20 {
		t.Errorf("memory grew from %d to %d KiB", before>>10, after>>10)
	}
	if open, opened := f.openNow(), len(f.opened); open != 0 || opened != 1000 {
		t.Errorf("%d connections are open, %d were opened", open, opened)
	}
}

// TestDenialsAreAggregated checks that equal refusals are reported once at first, and
// their number when they are taken.
func TestDenialsAreAggregated(t *testing.T) {
	f := newFixture(t, nil)
	for range 5 {
		f.try(WayConnect, "a.test", 443)
	}
	for range 3 {
		_, _, conn := f.send("CONNECT b.test:443 HTTP/1.1\r\n\r\n")
		_ = conn.Close()
		f.wg.Wait()
	}
	if d := f.takeDenied(); len(d) != 1 || d[0].Count != 1 {
		t.Errorf("reported %+v", d)
	}
	if d := f.Denials(7); len(d) != 1 || d[0].Count != 3 || d[0].Host != "b.test" {
		t.Errorf("taken %+v", d)
	}
	if d := f.takeDenied(); len(d) != 1 || d[0].Count != 2 {
		t.Errorf("reported %+v", d)
	}
	if d := f.Denials(7); len(d) != 0 {
		t.Errorf("taken twice: %+v", d)
	}
}

// TestUpstream checks that all connections are made through the upstream proxy, by
// CONNECT, and plain HTTP by requests, and that a failure of it has no fallback.
func TestUpstream(t *testing.T) {
	canary := newCanary(t, "127.0.0.1:0")
	var asked []string
	var mu sync.Mutex
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.Method+" "+r.RequestURI+" "+r.Header.Get("Proxy-Authorization"))
		mu.Unlock()
		switch {
		case strings.HasPrefix(r.Host, "down.test"):
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.Method == http.MethodConnect:
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\nearly ")
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		default:
			_, _ = io.WriteString(w, "secret")
		}
	}))
	defer proxy.Close()
	u, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword("me", "pw")
	f := newFixture(t, func(o *Options) { o.Upstream, o.Guard = u, allowLoopback(t) },
		"tcp://far.test:5432", "http://far.test/", "tcp://down.test:443", "tcp://10.0.0.5:80", "public", "tcp://"+rule.HostName+":*")
	br, conn := f.tunnel("far.test:5432")
	_, _ = conn.Write([]byte("x"))
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(br); err != nil || string(got) != "early x" {
		t.Errorf("%q, %v", got, err)
	}
	if got := f.try(WayHTTP, "far.test", 80); !got.reached {
		t.Errorf("%+v", got)
	}
	res, _, _ := f.send("CONNECT down.test:443 HTTP/1.1\r\n\r\n")
	if res.StatusCode != http.StatusBadGateway || detailsOf(res) != rule.ReasonConnect {
		t.Errorf("a proxy that fails: %s %v", res.Status, res.Header)
	}
	for _, literal := range []string{"10.0.0.5", "169.254.169.254", "127.0.0.1"} {
		if got := f.try(WayConnect, literal, 80); got.typed != rule.ReasonAddress {
			t.Errorf("%s: %+v", literal, got)
		}
	}
	if got := f.try(WayConnect, rule.HostName, int(canary.port)); !got.reached || canary.hits.Load() != 1 {
		t.Errorf("this machine: %+v", got)
	}
	want := []string{"CONNECT far.test:5432 Basic bWU6cHc=", "GET http://far.test/ Basic bWU6cHc=", "CONNECT down.test:443 Basic bWU6cHc="}
	mu.Lock()
	defer mu.Unlock()
	if fmt.Sprint(asked) != fmt.Sprint(want) {
		t.Errorf("the proxy was asked %q", asked)
	}
}

// TestHalfClosedRequest checks that a program that half-closes behind its request
// gets the response: net/http would cancel it.
func TestHalfClosedRequest(t *testing.T) {
	s := startHTTP(t, func(*http.Request, []byte) string {
		time.Sleep(100 * time.Millisecond)
		return "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"
	})
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, "http://"+s.addr+"/")
	conn := f.connectProxy()
	_, _ = fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", s.addr, s.addr)
	_ = conn.CloseWrite()
	if got := readAnswer(conn); !got.reached {
		t.Errorf("%+v", got)
	}
}

// TestResponses checks what of responses and requests passes the proxy.
func TestResponses(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/chunks":
			w.Header().Set("Trailer", "X-Sum")
			for range 3 {
				_, _ = io.WriteString(w, "part ")
				_ = http.NewResponseController(w).Flush()
			}
			w.Header().Set("X-Sum", "15")
		case "/empty":
			w.WriteHeader(http.StatusNoContent)
		case "/hints":
			w.Header().Set("Link", "</x>")
			w.WriteHeader(http.StatusEarlyHints)
			_, _ = io.WriteString(w, "done")
		case "/cut":
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "short")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/cutchunks":
			_, _ = io.WriteString(w, "short")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "/early":
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		default:
			body, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, "%s %v %s %q", body, err, r.Header.Get("X-Forwarded-For"), r.Header.Get("User-Agent"))
		}
	}))
	defer s.Close()
	host := strings.TrimPrefix(s.URL, "http://")
	f := newFixture(t, func(o *Options) { o.Guard = allowLoopback(t) }, s.URL+"/ GET,HEAD,POST")
	send := func(method, path, rest string) (*http.Response, string, error) {
		res, _, conn := f.send(method + " " + s.URL + path + " HTTP/1.1\r\nHost: " + host + "\r\n" + rest)
		defer func() { _ = conn.Close() }()
		body, err := io.ReadAll(res.Body)
		return res, string(body), err
	}
	if res, body, err := send("GET", "/chunks", "\r\n"); err != nil || body != "part part part " || res.Trailer.Get("X-Sum") != "15" {
		t.Errorf("chunks: %q, %v, %v", body, res.Trailer, err)
	}
	if res, body, err := send("HEAD", "/", "\r\n"); err != nil || body != "" || res.ContentLength <= 0 {
		t.Errorf("HEAD: %v, %q, %v", res, body, err)
	}
	if res, body, err := send("GET", "/empty", "\r\n"); err != nil || res.StatusCode != 204 || body != "" {
		t.Errorf("204: %v, %q, %v", res, body, err)
	}
	for _, path := range []string{"/cut", "/cutchunks"} {
		if _, body, err := send("GET", path, "\r\n"); err == nil || body != "short" {
			t.Errorf("%s: %q, %v: it looks complete", path, body, err)
		}
	}
	if _, body, err := send("POST", "/", "X-Forwarded-For: 10.0.0.1\r\nContent-Length: 3\r\n\r\nabc"); err != nil || body != `abc <nil>  ""` {
		t.Errorf("POST: %q, %v", body, err)
	}
	// A program that waits for 100.
	conn := f.connectProxy()
	_, _ = fmt.Fprintf(conn, "POST %s/ HTTP/1.1\r\nHost: %s\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n", s.URL, host)
	br := bufio.NewReader(conn)
	if line, err := br.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" {
		t.Errorf("expect: %q, %v", line, err)
	}
	_, _ = br.ReadString('\n')
	_, _ = io.WriteString(conn, "abc")
	if res, err := http.ReadResponse(br, nil); err != nil || res.StatusCode != 200 {
		t.Errorf("expect: %v, %v", res, err)
	}
	// A host that answers before the body was sent.
	conn = f.connectProxy()
	_, _ = fmt.Fprintf(conn, "POST %s/early HTTP/1.1\r\nHost: %s\r\nContent-Length: 1000000\r\n\r\nbegin", s.URL, host)
	if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("early: %v, %v", res, err)
	}
	conn = f.connectProxy()
	_, _ = fmt.Fprintf(conn, "GET %s/chunks HTTP/1.0\r\n\r\n", s.URL)
	if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || res.TransferEncoding != nil {
		t.Errorf("HTTP/1.0: %v, %v", res, err)
	} else if body, err := io.ReadAll(res.Body); err != nil || string(body) != "part part part " {
		t.Errorf("HTTP/1.0: %q, %v", body, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.requested {
		if complete := !strings.HasPrefix(r.URL, s.URL+"/cut"); r.Complete != complete || r.ID == 0 || r.Status == 0 {
			t.Errorf("requested %+v", r)
		}
	}
}

// TestClose checks that closing a server ends its connections and questions.
func TestClose(t *testing.T) {
	echo := startEcho(t)
	asked := make(chan struct{})
	f := newFixture(t, func(o *Options) {
		o.Guard = allowLoopback(t)
		o.Ask = func(ctx context.Context, _ Question) (Answer, error) {
			close(asked)
			<-ctx.Done()
			return Answer{}, ctx.Err()
		}
	}, "tcp://"+echo)
	br, _ := f.tunnel(echo)
	waiting := f.connectProxy()
	_, _ = io.WriteString(waiting, "CONNECT unknown.test:443 HTTP/1.1\r\n\r\n")
	<-asked
	f.Close()
	if _, err := io.ReadAll(br); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Error(err)
	}
	if got, _ := io.ReadAll(waiting); len(got) != 0 {
		t.Errorf("got %q", got)
	}
	if c := lastClosed(f); c.Ending != EndingCanceled {
		t.Errorf("closed %+v", c)
	}
	conn := f.connectProxy()
	if got, _ := io.ReadAll(conn); len(got) != 0 {
		t.Errorf("a closed server answers %q", got)
	}
	f.Close()
}
