package fetch

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// serveHello responds with a short text.
func serveHello(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "hello")
}

func TestGet(t *testing.T) {
	u := startServer(t, serveHello)
	f := newLocalFixture(t, Options{}, u)
	res, err := f.get(u + "/a/../x?q=1#top")
	if err != nil {
		t.Fatal(err)
	}
	if res.URL != u+"/x?q=1" || res.Status != 200 || string(res.Body) != "hello" || res.MediaType != "text/plain" || res.Charset != "utf-8" ||
		res.SHA256 != "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" || res.Cached {
		t.Errorf("%+v", res)
	}
	if len(f.denied) != 0 {
		t.Errorf("denied %v", f.denied)
	}
}

func TestGetTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(serveHello))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) //nolint:forbidigo // what net/http takes
	s.StartTLS()
	t.Cleanup(s.Close)
	pool := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	if res, err := newLocalFixture(t, Options{RootCAs: pool}, s.URL).get(s.URL); err != nil || string(res.Body) != "hello" {
		t.Errorf("certificate of a known authority: %v, %v", res, err)
	}
	if _, err := newLocalFixture(t, Options{}, s.URL).get(s.URL); reasonOf(err) != "tls" {
		t.Errorf("certificate of an unknown authority: %v", err)
	}
}

// TestOptions checks which options are refused: above all a missing Egress.
func TestOptions(t *testing.T) {
	egress, _ := limits.NewEgress(limits.DefaultEgressBudget())
	hosts := &limits.Breakers{Name: limits.BreakerFetchHost}
	ok := Options{Egress: egress, Hosts: hosts}
	if _, err := NewClient(ok); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"no egress":        func(o *Options) { o.Egress = nil },
		"no breakers":      func(o *Options) { o.Hosts = nil },
		"negative timeout": func(o *Options) { o.Timeout = -1 },
		"socks proxy":      func(o *Options) { o.Proxy = &url.URL{Scheme: "socks5", Host: "p:1"} },
		"proxy of nothing": func(o *Options) { o.Proxy = &url.URL{Scheme: "http"} },
		"private nonsense": func(o *Options) { o.Private = map[string][]netip.Prefix{"a b": loopback} },
	} {
		o := ok
		change(&o)
		if _, err := NewClient(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestNotAllowed checks that URLs are denied by default and by origin, before any
// connection is made.
func TestNotAllowed(t *testing.T) {
	c := newCanary(t, "127.0.0.1:0")
	c.requireReached(t, nil, c.url+"/x")
	none := newLocalFixture(t, Options{})
	none.requireRefused(c.url, "not_allowed")
	some := newLocalFixture(t, Options{}, c.url+"/guide/", "https://docs.example.com/")
	for u, why := range map[string]string{
		c.url + "/":               "not_allowed",
		c.url + "/guide/..%2fx":   "not_allowed",
		c.url + "/guide/%2e%2e/x": "not_allowed",
		strings.Replace(c.url, "http:", "https:", 1) + "/guide/":         "not_allowed",
		strings.Replace(c.url, "//", "//docs.example.com@", 1):           "userinfo",
		strings.Replace(c.url, "127.0.0.1", "localhost", 1) + "/guide/":  "not_allowed",
		strings.Replace(c.url, "127.0.0.1", "127.1", 1) + "/guide/":      "address",
		strings.Replace(c.url, "127.0.0.1", "2130706433", 1) + "/guide/": "address",
		"file:///etc/passwd": "scheme",
	} {
		some.requireRefused(u, why)
	}
	c.requireUntouched(t)
	secret, err := rule.ParseEgress(c.url + "/guide/secret/")
	if err != nil {
		t.Fatal(err)
	}
	denied := newLocalFixture(t, Options{Deny: []rule.Rule{secret}}, c.url+"/guide/")
	if _, err := denied.get(c.url + "/guide/secret/x"); err == nil || !strings.Contains(err.Error(), "is denied in this session") || strings.Contains(err.Error(), "allowlist") {
		t.Errorf("a denied page of an allowed place: %v", err)
	}
	d := some.requireRefused(strings.Replace(c.url, "//", "//user:hunter2@", 1)+"/a\u202eb", "userinfo")
	if strings.Contains(fmt.Sprint(d), "hunter2") || strings.Contains(d.URL, "\u202e") {
		t.Errorf("recorded %+v", d)
	}
}

// TestPrivateNeedsName checks that the allowlist alone does not permit a private
// address.
func TestPrivateNeedsName(t *testing.T) {
	c := newCanary(t, "127.0.0.1:0")
	c.requireReached(t, nil, c.url)
	d := newFixture(t, Options{}, c.url).requireRefused(c.url, "address")
	if d.Addr != "127.0.0.1" || d.Host != strings.TrimPrefix(c.url, "http://") || d.CallID != "tu_1" {
		t.Errorf("recorded %+v", d)
	}
	c.requireUntouched(t)
}

// TestRedirects is acceptance case 61.
func TestRedirects(t *testing.T) {
	c := newCanary(t, "127.0.0.1:0")
	var seen atomic.Pointer[http.Header]
	other := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		seen.Store(&r.Header)
		serveHello(w, r)
	})
	var hops atomic.Int64
	u := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		hops.Add(1)
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "c00kie"})
		if to := r.URL.Query().Get("to"); to != "" {
			w.Header()["Location"] = []string{to}
			w.WriteHeader(http.StatusFound)
			return
		}
		switch r.URL.Path {
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusMovedPermanently)
		case "/count":
			http.Redirect(w, r, "/count?"+r.URL.RawQuery+"x", http.StatusTemporaryRedirect)
		case "/308":
			w.Header().Set("Location", "relative")
			w.WriteHeader(http.StatusPermanentRedirect)
		case "/300":
			w.Header().Set("Location", c.url)
			w.WriteHeader(http.StatusMultipleChoices)
		case "/refresh":
			w.Header().Set("Refresh", "0; url="+c.url)
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprintf(w, `<meta http-equiv="refresh" content="0; url=%s">moved`, c.url)
		case "/nowhere":
			w.WriteHeader(http.StatusFound)
		default:
			serveHello(w, r)
		}
	})
	f := newLocalFixture(t, Options{}, u, other)

	t.Run("refused", func(t *testing.T) {
		for location, why := range map[string]string{
			c.url:                              "not_allowed",
			c.url + "/x":                       "not_allowed",
			strings.TrimPrefix(c.url, "http:"): "not_allowed",
			"http://169.254.169.254/latest/meta-data/": "not_allowed",
			"file:///etc/passwd":                       "scheme",
			"gopher://127.0.0.1:6379/_INFO":            "scheme",
			strings.Replace(other, "//", "//a:b@", 1):  "userinfo",
			"http://127.1:" + fmt.Sprint(c.port):       "address",
			"\\\\127.0.0.1":                            "invalid_url",
			"http:/x y":                                "invalid_url",
		} {
			d := f.requireRefused(u+"/?to="+url.QueryEscape(location), why)
			if !d.Redirect {
				t.Errorf("%s: recorded %+v, want that a redirect named it", location, d)
			}
		}
		c.requireReached(t, nil, u+"/?to="+url.QueryEscape(c.url))
		c.requireUntouched(t)
	})
	t.Run("followed", func(t *testing.T) {
		res, err := f.get(u + "/?to=" + url.QueryEscape(other+"/x"))
		if err != nil || string(res.Body) != "hello" || res.URL != other+"/x" || len(res.Redirects) != 1 {
			t.Fatalf("%+v, %v", res, err)
		}
		for _, h := range []string{"Cookie", "Authorization", "Referer", "Origin"} {
			if v := seen.Load().Get(h); v != "" {
				t.Errorf("the other host got %s: %s", h, v)
			}
		}
		if res, err := f.get(u + "/308"); err != nil || res.URL != u+"/relative" {
			t.Errorf("308: %+v, %v", res, err)
		}
		if res, err := f.get(u + "/nowhere"); err != nil || res.Status != 302 {
			t.Errorf("302 without Location: %+v, %v", res, err)
		}
	})
	t.Run("bounded", func(t *testing.T) {
		for _, path := range []string{"/loop", "/count"} {
			hops.Store(0)
			if _, err := f.get(u + path); reasonOf(err) != "redirects" {
				t.Errorf("%s: %v", path, err)
			}
			if n := hops.Load(); n != maxRedirects+1 {
				t.Errorf("%s: %d requests, want %d", path, n, maxRedirects+1)
			}
		}
	})
	t.Run("not followed", func(t *testing.T) {
		for _, path := range []string{"/300", "/refresh"} {
			if _, err := f.get(u + path); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		c.requireUntouched(t)
	})
	t.Run("not shown", func(t *testing.T) {
		hits := seen.Swap(nil)
		_ = hits
		asked := func(to string) error {
			_, err := f.Get(t.Context(), Request{URL: u + "/?to=" + url.QueryEscape(to), Asked: true, Refresh: true})
			return err
		}
		if err := asked(other); reasonOf(err) != "redirect_not_shown" || !strings.Contains(err.Error(), other) {
			t.Errorf("another origin than was approved: %v", err)
		}
		if seen.Load() != nil {
			t.Error("the other origin was asked")
		}
		if err := asked("/same"); err != nil {
			t.Errorf("the same origin: %v", err)
		}
	})
}

// gzipZeros returns n zeros, compressed.
func gzipZeros(t testing.TB, n int64) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.CopyN(w, endlessReader{}, n); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// endlessReader is an endless sequence of the letter a.
type endlessReader struct{}

func (endlessReader) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

// TestDecompression is acceptance case 65.
func TestDecompression(t *testing.T) {
	const limit = 1 << 20
	block := gzipZeros(t, 8<<20) // one member: 8 MiB in 8 KiB
	empty := gzipZeros(t, 0)
	answers := map[string]struct {
		coding string
		body   func(w io.Writer)
		want   string // reason, or "" and the text ok
	}{
		"gzip":     {"gzip", func(w io.Writer) { z := gzip.NewWriter(w); _, _ = io.WriteString(z, "ok"); _ = z.Close() }, ""},
		"x-gzip":   {"x-gzip", func(w io.Writer) { z := gzip.NewWriter(w); _, _ = io.WriteString(z, "ok"); _ = z.Close() }, ""},
		"identity": {"identity", func(w io.Writer) { _, _ = io.WriteString(w, "ok") }, ""},
		"bomb": {"gzip", func(w io.Writer) {
			for range 1280 {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}, "too_large"}, // 10 GiB
		"endless empty": {"gzip", func(w io.Writer) {
			for {
				if _, err := w.Write(empty); err != nil {
					return
				}
			}
		}, "too_large"},
		"endless":      {"", func(w io.Writer) { _, _ = io.Copy(w, endlessReader{}) }, "too_large"},
		"twice":        {"gzip, gzip", func(w io.Writer) { _, _ = w.Write(block) }, "encoding"},
		"br":           {"br", func(w io.Writer) { _, _ = w.Write(block) }, "encoding"},
		"zstd":         {"zstd", func(w io.Writer) { _, _ = w.Write(block) }, "encoding"},
		"deflate":      {"deflate", func(w io.Writer) { z, _ := flate.NewWriter(w, 9); _, _ = io.WriteString(z, "x"); _ = z.Close() }, "encoding"},
		"hostile name": {"gz\x1b[2Jip", func(w io.Writer) { _, _ = w.Write(block) }, "protocol"},
		"not gzip":     {"gzip", func(w io.Writer) { _, _ = io.WriteString(w, "hello") }, "protocol"},
		"cut":          {"gzip", func(w io.Writer) { _, _ = w.Write(gzipZeros(t, 1000)[:20]) }, "protocol"},
	}
	u := startRawServer(t, func(context.Context, net.Conn) {})
	for name, tt := range answers {
		t.Run(name, func(t *testing.T) {
			u = startRawServer(t, func(_ context.Context, w net.Conn) {
				head := "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
				if tt.coding != "" {
					head += "Content-Encoding: " + tt.coding + "\r\n"
				}
				_, _ = io.WriteString(w, head+"Connection: close\r\n\r\n")
				tt.body(w)
			})
			f := newLocalFixture(t, Options{MaxBytes: limit}, u)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			res, err := f.get(u)
			runtime.ReadMemStats(&after)
			if reasonOf(err) != tt.want || err == nil && string(res.Body) != "ok" {
				t.Errorf("%.60q, %v, want %q", res.Body, err, tt.want)
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 32<<20 {
				t.Errorf("%d MiB were allocated for a response bounded by 1 MiB", grown>>20)
			}
			if bytes, _ := f.opts.Egress.Used(); bytes > 2*limit+wireOverhead {
				t.Errorf("%d bytes went over the connection", bytes)
			}
		})
	}
}

// TestLengths is the part of case 65 about wrong lengths.
func TestLengths(t *testing.T) {
	for name, tt := range map[string]struct{ head, body, want, text string }{
		"too long":          {"Content-Length: 100\r\n", "short", "protocol", ""},
		"too short":         {"Content-Length: 2\r\n", "okay", "", "ok"},
		"huge":              {"Content-Length: 99999999999999\r\n", "x", "protocol", ""},
		"two":               {"Content-Length: 2\r\nContent-Length: 3\r\n", "oka", "protocol", ""},
		"negative":          {"Content-Length: -1\r\n", "ok", "protocol", ""},
		"chunked cut":       {"Transfer-Encoding: chunked\r\n", "5\r\nhel", "protocol", ""},
		"chunked nonsense":  {"Transfer-Encoding: chunked\r\n", "zz\r\nhello", "protocol", ""},
		"chunked":           {"Transfer-Encoding: chunked\r\n", "2\r\nok\r\n0\r\n\r\n", "", "ok"},
		"unknown transfer":  {"Transfer-Encoding: gzip, chunked\r\n", "2\r\nok\r\n0\r\n\r\n", "protocol", ""},
		"no length, closed": {"Connection: close\r\n", "ok", "", "ok"},
	} {
		t.Run(name, func(t *testing.T) {
			u := startRawServer(t, func(_ context.Context, w net.Conn) {
				_, _ = io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"+tt.head+"\r\n"+tt.body)
			})
			res, err := newLocalFixture(t, Options{}, u).get(u)
			if reasonOf(err) != tt.want || string(res.Body) != tt.text {
				t.Errorf("%.60q, %v, want %q", res.Body, err, tt.want)
			}
		})
	}
}

// TestSlowPeers is acceptance case 66: with a peer that stalls, the fetch ends by
// one of its own limits and leaves no connection.
func TestSlowPeers(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
	drip := func(ctx context.Context, w net.Conn, text string) {
		for ctx.Err() == nil {
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	for name, tt := range map[string]struct {
		answer func(ctx context.Context, w net.Conn)
		want   string
	}{
		"nothing":      {func(ctx context.Context, _ net.Conn) { <-ctx.Done() }, "timeout"},
		"header drips": {func(ctx context.Context, w net.Conn) { _, _ = io.WriteString(w, ok+"X: "); drip(ctx, w, "a") }, "timeout"},
		"body drips":   {func(ctx context.Context, w net.Conn) { _, _ = io.WriteString(w, ok+"\r\n"); drip(ctx, w, "a") }, "timeout"},
		"body stalls": {func(ctx context.Context, w net.Conn) {
			_, _ = io.WriteString(w, ok+"Content-Length: 9\r\n\r\nab")
			<-ctx.Done()
		}, "timeout"},
		"100 stalls": {func(ctx context.Context, w net.Conn) {
			_, _ = io.WriteString(w, "HTTP/1.1 100 Continue\r\n\r\n")
			<-ctx.Done()
		}, "timeout"},
		"100 forever": {func(ctx context.Context, w net.Conn) {
			drip(ctx, w, strings.Repeat("HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n", 1000))
		}, "protocol"},
		"huge header": {func(_ context.Context, w net.Conn) {
			_, _ = io.WriteString(w, ok+"X: ")
			_, _ = io.CopyN(w, endlessReader{}, 10<<20)
		}, "protocol"},
		"many headers": {func(_ context.Context, w net.Conn) {
			_, _ = io.WriteString(w, ok+strings.Repeat("X: y\r\n", 100_000)+"\r\n")
		}, "protocol"},
		"not HTTP": {func(_ context.Context, w net.Conn) { _, _ = io.WriteString(w, "SSH-2.0-x\r\n") }, "protocol"},
		"closes":   {func(context.Context, net.Conn) {}, "protocol"},
		"answers, stays": {func(ctx context.Context, w net.Conn) {
			_, _ = io.WriteString(w, ok+"Content-Length: 2\r\n\r\nok")
			<-ctx.Done()
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			u := startRawServer(t, tt.answer)
			f := newLocalFixture(t, Options{Timeout: 400 * time.Millisecond, Idle: 200 * time.Millisecond}, u)
			if tt.want != "timeout" {
				f = newLocalFixture(t, Options{}, u)
			}
			if _, err := f.get(u); reasonOf(err) != tt.want {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
	t.Run("TLS stalls", func(t *testing.T) {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0") // the kernel accepts, nobody answers
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		u := "https://" + l.Addr().String()
		if _, err := newLocalFixture(t, Options{Timeout: 200 * time.Millisecond}, u).get(u); reasonOf(err) != "timeout" {
			t.Errorf("%v, want a timeout", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		why := errors.New("the user has seen enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		u := startRawServer(t, func(ctx context.Context, _ net.Conn) { cancel(why); <-ctx.Done() })
		f := newLocalFixture(t, Options{}, u)
		if _, err := f.Get(ctx, Request{URL: u}); !errors.Is(err, why) {
			t.Errorf("%v, want the cause", err)
		}
		if _, err := f.opts.Hosts.Begin(strings.TrimPrefix(u, "http://")); err != nil {
			t.Error(err)
		}
	})
}

// TestEgressBudget checks that the session's budget is exact to the byte, also for
// running fetches, and that it limits the hosts.
func TestEgressBudget(t *testing.T) {
	long := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.CopyN(w, endlessReader{}, 200_000) }
	u, other := startServer(t, long), newCanary(t, "127.0.0.1:0")
	egress, err := limits.NewEgress(limits.EgressBudget{Bytes: 100_000, Hosts: 1})
	if err != nil {
		t.Fatal(err)
	}
	f := newLocalFixture(t, Options{Egress: egress}, u, "http://localhost/")
	if _, err := f.get(u); reasonOf(err) != "egress_bytes" {
		t.Errorf("a long response: %v", err)
	}
	if used, _ := egress.Used(); used != 100_000 {
		t.Errorf("%d bytes used, want all and no more", used)
	}
	if f.denied[0].Reason != "egress_bytes" {
		t.Errorf("recorded %+v", f.denied)
	}
	f.requireRefused(u, "egress_bytes")
	egress, _ = limits.NewEgress(limits.EgressBudget{Bytes: 1 << 20, Hosts: 1})
	f = newLocalFixture(t, Options{Egress: egress}, u, fmt.Sprintf("http://localhost:%d/", other.port))
	if _, err := f.get(u); err != nil {
		t.Error(err)
	}
	f.requireRefused(fmt.Sprintf("http://localhost:%d/", other.port), "egress_hosts")
	if _, err := f.get(u + "/again"); err != nil {
		t.Errorf("the host that was known: %v", err)
	}
	other.requireUntouched(t)
}

// TestBreaker checks that the circuit breaker of a failing host opens, and closes
// after a successful trial.
func TestBreaker(t *testing.T) {
	var down atomic.Bool
	var hits atomic.Int64
	down.Store(true)
	u := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		if down.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		serveHello(w, r)
	})
	healthy := startServer(t, serveHello)
	now := time.Unix(1_700_000_000, 0)
	hosts := &limits.Breakers{Name: limits.BreakerFetchHost, Now: func() time.Time { return now }}
	f := newLocalFixture(t, Options{Hosts: hosts}, u, healthy)
	for range limits.BreakerFailures {
		if res, err := f.get(u); err != nil || res.Status != 503 {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	for range 3 {
		_, err := f.get(u)
		trip, ok := errors.AsType[*limits.TrippedError](err)
		if !ok || trip.Breaker != limits.BreakerFetchHost || !strings.Contains(err.Error(), "CIRCUIT_BREAKER_TRIPPED") {
			t.Fatalf("%v, want the breaker", err)
		}
	}
	if n := hits.Load(); n != limits.BreakerFailures {
		t.Errorf("%d requests, want none while it is open", n)
	}
	if _, err := f.get(healthy); err != nil {
		t.Errorf("another host: %v", err)
	}
	down.Store(false)
	now = now.Add(limits.BreakerCooldown)
	if res, err := f.get(u); err != nil || res.Status != 200 {
		t.Errorf("the trial: %+v, %v", res, err)
	}
	if len(f.denied) != 0 {
		t.Errorf("a breaker is no refusal of the policy: %+v", f.denied)
	}
}

// TestProxyEnvironment is acceptance case 67: the environment's proxies are
// ignored, in any spelling.
func TestProxyEnvironment(t *testing.T) {
	proxy := newCanary(t, "127.0.0.1:0")
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"} {
		t.Setenv(name, proxy.url)
	}
	t.Setenv("NO_PROXY", "")
	through, err := url.Parse(proxy.url)
	if err != nil {
		t.Fatal(err)
	}
	// net/http reads the environment once per process, and ignores it for loopback.
	// So the control sets the proxy itself.
	proxy.requireReached(t, &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(through), DisableKeepAlives: true}}, "http://docs.example.com/")
	u := startServer(t, serveHello)
	if _, err := newLocalFixture(t, Options{}, u).get(u); err != nil {
		t.Error(err)
	}
	proxy.requireUntouched(t)
}

// TestProxy checks which requests are refused with a configured proxy.
func TestProxy(t *testing.T) {
	var asked atomic.Pointer[string]
	p := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Store(new(r.Method + " " + r.RequestURI))
		if r.Method == http.MethodConnect {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		serveHello(w, r)
	})
	proxy, err := url.Parse(p)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, Options{Proxy: proxy}, "http://docs.invalid/", "https://docs.invalid/", "http://10.0.0.5/")
	if res, err := f.get("http://docs.invalid/x"); err != nil || string(res.Body) != "hello" || *asked.Load() != "GET http://docs.invalid/x" {
		t.Errorf("%+v, %v, %v", res, err, asked.Load())
	}
	if _, err := f.get("https://docs.invalid/x"); reasonOf(err) != "protocol" || *asked.Load() != "CONNECT docs.invalid:443" {
		t.Errorf("a proxy that refuses: %v, %v", err, *asked.Load())
	}
	asked.Store(nil)
	f.requireRefused("http://10.0.0.5/", "address")
	f.requireRefused("http://other.invalid/", "not_allowed")
	if asked.Load() != nil {
		t.Errorf("the proxy was asked for what is not allowed: %s", *asked.Load())
	}
}

// TestUnreachable checks the failure for a server or proxy that accepts no
// connections.
func TestUnreachable(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	u := server.URL
	server.Close()
	proxy, err := url.Parse(u)
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]*fixture{"server": newLocalFixture(t, Options{}, u), "proxy": newFixture(t, Options{Proxy: proxy}, "http://docs.invalid/")} {
		address := u
		if name == "proxy" {
			address = "http://docs.invalid/"
		}
		_, err := f.get(address)
		if _, known := errors.AsType[*net.OpError](err); !known || reasonOf(err) != "connect" {
			t.Errorf("%s: %v, want that no connection could be made, and why", name, err)
		}
	}
}

func TestCache(t *testing.T) {
	var hits atomic.Int64
	var text atomic.Pointer[string]
	text.Store(new("one"))
	u := startServer(t, func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		w.Header().Set("Content-Type", "text/plain")
		if r.URL.Path == "/gone" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, *text.Load())
	})
	dir := t.TempDir() + "/fetched"
	f := newLocalFixture(t, Options{Dir: dir}, u)
	get := func(path string, refresh bool) Response {
		t.Helper()
		res, err := f.Get(t.Context(), Request{URL: u + path, Refresh: refresh})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	first := get("/a", false)
	text.Store(new("two"))
	second := get("/x/../a", false)
	if !second.Cached || string(second.Body) != "one" || second.SHA256 != first.SHA256 || second.MediaType != "text/plain" || hits.Load() != 1 {
		t.Errorf("%+v after %d requests", second, hits.Load())
	}
	if third := get("/a", true); third.Cached || string(third.Body) != "two" || hits.Load() != 2 {
		t.Errorf("force_refresh: %+v", third)
	}
	if fourth := get("/a", false); !fourth.Cached || string(fourth.Body) != "two" {
		t.Errorf("after it: %+v", fourth)
	}
	tamperFile(t, dir, get("/a", false).SHA256)
	if fifth := get("/a", false); fifth.Cached || string(fifth.Body) != "two" {
		t.Errorf("changed file: %+v", fifth)
	}
	if sixth := get("/a", false); !sixth.Cached || string(sixth.Body) != "two" {
		t.Errorf("after a changed file: %+v", sixth)
	}
	hits.Store(0)
	get("/gone", false)
	if get("/gone", false); hits.Load() != 2 {
		t.Error("an error was kept")
	}
	none := newLocalFixture(t, Options{}, u)
	hits.Store(0)
	_, _ = none.get(u)
	_, _ = none.get(u)
	if hits.Load() != 2 {
		t.Error("stored without a directory")
	}
}

// TestDeniedCannotBeRecorded checks that a refusal that can't be recorded is an
// error that ends the run.
func TestDeniedCannotBeRecorded(t *testing.T) {
	f := newLocalFixture(t, Options{})
	f.opts.Denied = func(Denial) error { return tools.ErrRecord }
	if _, err := f.get("http://127.0.0.1/"); !errors.Is(err, tools.ErrRecord) {
		t.Errorf("%v, want %v", err, tools.ErrRecord)
	}
}
