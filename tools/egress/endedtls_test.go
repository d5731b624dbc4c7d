package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools/egress/ca"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// secureServer is a TLS server at localhost with its own authority.
type secureServer struct {
	*httptest.Server
	authority *ca.Authority
	port      string
	hits      atomic.Int64
	last      atomic.Pointer[http.Request]
}

func newAuthority(t testing.TB) *ca.Authority {
	t.Helper()
	a, err := ca.New(time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func poolOf(t testing.TB, list ...*ca.Authority) *x509.CertPool {
	t.Helper()
	pool := x509.NewCertPool()
	for _, a := range list {
		pool.AppendCertsFromPEM(a.PEM())
	}
	return pool
}

func startSecure(t testing.TB, handler http.HandlerFunc) *secureServer {
	t.Helper()
	s := &secureServer{authority: newAuthority(t)}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.hits.Add(1)
		s.last.Store(r)
		handler(w, r)
	}))
	s.TLS = s.authority.ServerConfig("localhost")
	s.EnableHTTP2 = true
	s.Config.ErrorLog = discardLog
	s.StartTLS()
	s.port = fmt.Sprint(s.Listener.Addr().(*net.TCPAddr).Port)
	t.Cleanup(s.Close)
	return s
}

// url returns a URL of the server by its name.
func (s *secureServer) url(path string) string { return "https://localhost:" + s.port + path }

// session is a fixture with an authority, for a secure server.
type session struct {
	*fixture
	authority *ca.Authority
}

func newSession(t testing.TB, server *secureServer, edit func(*Options), rules ...string) *session {
	t.Helper()
	s := &session{authority: newAuthority(t)}
	s.fixture = newFixture(t, func(o *Options) {
		o.Guard, o.Authority = allowLoopback(t), s.authority
		if server != nil {
			o.Roots = poolOf(t, server.authority)
		}
		if edit != nil {
			edit(o)
		}
	}, rules...)
	return s
}

// client returns a program's client, which trusts the session's authority.
func (s *session) client(protocol string) *http.Client {
	transport := &http.Transport{
		Proxy:              http.ProxyURL(&url.URL{Scheme: "http", Host: proxyAddr}),
		DialContext:        func(context.Context, string, string) (net.Conn, error) { return s.connectProxy(), nil },
		TLSClientConfig:    &tls.Config{RootCAs: poolOf(s.t, s.authority)},
		ForceAttemptHTTP2:  protocol == "h2",
		DisableCompression: true,
	}
	if protocol != "h2" {
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// do sends a request, and returns the response with its body.
func do(t testing.TB, c *http.Client, method, url string, body io.Reader, header http.Header) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(r.Header, header)
	res, err := c.Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return res, string(text)
}

// dialTLS returns a program's TLS connection through CONNECT.
func (s *session) dialTLS(address string, protocols ...string) *tls.Conn {
	s.t.Helper()
	_, conn := s.tunnel(address)
	host, _, _ := net.SplitHostPort(address)
	secure := tls.Client(conn, &tls.Config{ServerName: host, RootCAs: poolOf(s.t, s.authority), NextProtos: protocols})
	if err := secure.HandshakeContext(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return secure
}

var protocols = []string{"http/1.1", "h2"}

// TestEndedTLS checks that requests over ended TLS are decided one by one, and that
// those which pass arrive unchanged.
func TestEndedTLS(t *testing.T) {
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-End")
		w.Header().Set("X-Seen", r.Host+" "+r.RequestURI+" "+r.Proto)
		_, _ = w.Write(body)
		w.Header().Set("X-End", "end")
	})
	for _, protocol := range protocols {
		t.Run(protocol, func(t *testing.T) {
			s := newSession(t, server, nil, "https://localhost:"+server.port+"/v1/", "https://localhost:"+server.port+"/v1/jobs POST", "-https://localhost:"+server.port+"/v1/admin/")
			c := s.client(protocol)
			res, body := do(t, c, "POST", server.url("/v1/jobs?x=%20a"), strings.NewReader("a body"), nil)
			if want := "localhost:" + server.port + " /v1/jobs?x=%20a HTTP/2.0"; res.StatusCode != http.StatusOK || body != "a body" || res.Header.Get("X-Seen") != want || res.Trailer.Get("X-End") != "end" {
				t.Errorf("%s, %q, %v, %v", res.Status, body, res.Header, res.Trailer)
			}
			if res.ProtoMajor != map[string]int{"h2": 2, "http/1.1": 1}[protocol] {
				t.Errorf("the protocol is %s", res.Proto)
			}
			if res.TLS == nil || res.TLS.PeerCertificates[0].Issuer.String() != res.TLS.VerifiedChains[0][1].Subject.String() || res.TLS.VerifiedChains[0][1].Subject.Organization[0] != "Caisson" {
				t.Error("the certificate is not the session's")
			}
			hits := server.hits.Load()
			for _, tt := range []struct{ method, path, want string }{
				{"GET", "/v2/", "path"},
				{"POST", "/v1/x", "method"},
				{"GET", "/v1/admin/", "not_allowed"},
				{"GET", "/v1/%41dmin", "not_allowed"},
				{"GET", "/v1/../v2", "path"},
				{"GET", "/v1/%2e%2e/v2", "path"},
				{"GET", "/v1/..%2fv2", "not_allowed"},
				{"DELETE", "/v1/jobs", "method"},
				{"TRACE", "/v1/", "method"},
			} {
				res, _ := do(t, c, tt.method, server.url(tt.path), nil, nil)
				if res.StatusCode != http.StatusForbidden || detailsOf(res) != tt.want {
					t.Errorf("%s %s: %s, %q, want %s", tt.method, tt.path, res.Status, detailsOf(res), tt.want)
				}
			}
			if n := server.hits.Load(); n != hits {
				t.Errorf("%d refused requests arrived", n-hits)
			}
			if denied := s.takeDenied(); len(denied) < 4 || denied[0].URL != server.url("/v2/") || denied[0].Command != 7 {
				t.Errorf("the refusals are %+v", denied)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.requested) != 1 || s.requested[0].URL != server.url("/v1/jobs") || !s.requested[0].Complete || s.requested[0].ID != 1 {
				t.Errorf("the requests are %+v", s.requested)
			}
		})
	}
	control := newSession(t, server, nil, "tls://localhost:"+server.port)
	_, conn := control.tunnel("localhost:" + server.port)
	secure := tls.Client(conn, &tls.Config{ServerName: "localhost", RootCAs: poolOf(t, server.authority)})
	if err := secure.HandshakeContext(t.Context()); err != nil {
		t.Errorf("tls:// doesn't stay end to end: %v", err)
	}
}

// TestAuthorities is attacks 5 and 14: an authority unlike the host that was connected
// to, and two of them in one connection.
func TestAuthorities(t *testing.T) {
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) })
	s := newSession(t, server, nil, "https://localhost:"+server.port+"/", "https://evil.test/")
	address := "localhost:" + server.port
	for host, want := range map[string]string{address: "", "evil.test": "authority", "localhost": "authority", "evil.test:" + server.port: "authority", "LOCALHOST:" + server.port: ""} {
		conn := s.dialTLS(address)
		_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || detailsOf(res) != want {
			t.Errorf("Host: %s: %v, %v, want %q", host, res, err, want)
		}
	}
	conn := s.dialTLS(address, "h2")
	transport := &http.Transport{DialTLSContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }, ForceAttemptHTTP2: true}
	h2, err := transport.NewClientConn(t.Context(), "https", address)
	if err != nil {
		t.Fatal(err)
	}
	hits := server.hits.Load()
	for range 2 {
		for host, want := range map[string]string{address: "", "evil.test": "authority", "evil.test:" + server.port: "authority"} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, server.url("/"), nil)
			r.RequestURI, r.Host = "", host
			res, err := h2.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if detailsOf(res) != want {
				t.Errorf(":authority %s: %s %q, want %q", host, res.Status, detailsOf(res), want)
			}
		}
	}
	if n := server.hits.Load() - hits; n != 2 {
		t.Errorf("%d requests arrived, want 2", n)
	}
	_ = h2.Close()
}

// TestSmuggling is attack 15 inside of ended TLS: requests that servers may read
// differently. The positive control is the first.
func TestSmuggling(t *testing.T) {
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	s := newSession(t, server, nil, "https://localhost:"+server.port+"/ GET,POST")
	head := "POST / HTTP/1.1\r\nHost: localhost:" + server.port + "\r\n"
	for name, tt := range map[string]struct {
		text string
		hits int64
	}{
		"control":                 {head + "Content-Length: 1\r\n\r\nx", 1},
		"two lengths":             {head + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy", 0},
		"length and chunks":       {head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n", 0},
		"obs-fold":                {head + "X-A: 1\r\n 2\r\n\r\n", 0},
		"space before the colon":  {head + "X-A : 1\r\n\r\n", 0},
		"chunked twice":           {head + "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 0},
		"LF alone":                {"GET / HTTP/1.1\nHost: localhost:" + server.port + "\n\n", 0},
		"two hosts":               {head + "Host: evil.test\r\n\r\n", 0},
		"absolute target":         {"GET https://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", 0},
		"CONNECT":                 {"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n", 0},
		"method override":         {head + "X-HTTP-Method-Override: DELETE\r\n\r\n", 0},
		"method override with _":  {head + "X_HTTP_Method: DELETE\r\n\r\n", 0},
		"TRACE":                   {"TRACE / HTTP/1.1\r\nHost: localhost:" + server.port + "\r\n\r\n", 0},
		"preface of HTTP/2":       {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0},
		"a second request behind": {head + "Content-Length: 0\r\n\r\nGET /2 HTTP/1.1\r\nHost: evil.test\r\n\r\n", 1},
	} {
		before := server.hits.Load()
		conn := s.dialTLS("localhost:" + server.port)
		_, _ = io.WriteString(conn, tt.text)
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || (detailsOf(res) == "") != (tt.hits == 1) {
			t.Errorf("%s: %v, %v", name, res, err)
		}
		_ = conn.Close()
		time.Sleep(20 * time.Millisecond)
		if n := server.hits.Load() - before; n != tt.hits {
			t.Errorf("%s: %d requests arrived, want %d", name, n, tt.hits)
		}
		if denied := s.takeDenied(); tt.hits == 0 && (len(denied) != 1 || res != nil && denied[0].Reason != detailsOf(res)) {
			t.Errorf("%s: reported %+v", name, denied)
		}
		_ = s.Denials(7) // so that the next equal one is reported again
	}
	// A bad chunk is only found while the body is sent: no complete request arrives.
	conn := s.dialTLS("localhost:" + server.port)
	_, _ = io.WriteString(conn, head+"Transfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n0\r\n\r\n")
	if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil && res.StatusCode == http.StatusOK {
		t.Errorf("a bad chunk: %s", res.Status)
	}
	h2 := s.client("h2")
	for name, want := range map[string]string{"X-Http-Method-Override": "method", "X_method_override": "method", "X-Original-Url": "path", "X_rewrite_url": "path"} {
		if res, _ := do(t, h2, "GET", server.url("/"), nil, http.Header{name: {"DELETE"}}); detailsOf(res) != want {
			t.Errorf("HTTP/2 with %s: %s", name, res.Status)
		}
	}
}

// TestNotTLS is attack 13: other bytes than TLS at a port where TLS ends.
func TestNotTLS(t *testing.T) {
	server := startSecure(t, func(http.ResponseWriter, *http.Request) {})
	s := newSession(t, server, nil, "https://localhost:"+server.port+"/")
	for _, text := range []string{"SSH-2.0-x\r\n", "GET / HTTP/1.1\r\nHost: localhost:" + server.port + "\r\n\r\n", "\x00\x01"} {
		_, conn := s.tunnel("localhost:" + server.port)
		_, _ = io.WriteString(conn, text)
		_, _ = io.Copy(io.Discard, conn)
		if denied := s.takeDenied(); len(denied) != 1 || denied[0].Reason != rule.ReasonNotTLS {
			if !(len(denied) == 0 && text != "SSH-2.0-x\r\n") { // equal refusals are counted
				t.Errorf("%q: %+v", text, denied)
			}
		}
	}
	if server.hits.Load() != 0 {
		t.Error("a request arrived")
	}
	// Without an authority, TLS isn't ended and isn't passed on either.
	s = newSession(t, server, func(o *Options) { o.Authority = nil }, "https://localhost:"+server.port+"/")
	_, conn := s.tunnel("localhost:" + server.port)
	if err := tls.Client(conn, &tls.Config{ServerName: "localhost", RootCAs: poolOf(t, server.authority)}).HandshakeContext(t.Context()); err == nil {
		t.Error("TLS passes end to end where requests have to be read")
	}
	if server.hits.Load() != 0 {
		t.Error("a request arrived without an authority")
	}
}

// TestServerNames is attack 32 at the server: another name in the handshake.
func TestServerNames(t *testing.T) {
	server := startSecure(t, func(http.ResponseWriter, *http.Request) {})
	s := newSession(t, server, nil, "https://localhost:"+server.port+"/", "https://other.test:"+server.port+"/")
	_, conn := s.tunnel("localhost:" + server.port)
	err := tls.Client(conn, &tls.Config{ServerName: "other.test", RootCAs: poolOf(t, s.authority)}).HandshakeContext(t.Context())
	awaitTrue(t, "the report of the refusal", func() bool { // the alert is sent before it
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.denied) > 0
	})
	if denied := s.takeDenied(); err == nil || len(denied) != 1 || denied[0].Reason != rule.ReasonSNI || server.hits.Load() != 0 {
		t.Errorf("%v, %+v", err, denied)
	}
	b := newSession(t, server, nil, "https://localhost:"+server.port+"/")
	_, conn = b.tunnel("localhost:" + server.port)
	if err := tls.Client(conn, &tls.Config{ServerName: "localhost", RootCAs: poolOf(t, s.authority)}).HandshakeContext(t.Context()); err == nil {
		t.Error("session A trusts the authority of session B")
	}
}

// TestUpstreamCertificates is attack 33. The positive control is TestEndedTLS.
func TestUpstreamCertificates(t *testing.T) {
	for name, edit := range map[string]func(*tls.Config, *ca.Authority){
		"another host": func(c *tls.Config, a *ca.Authority) {
			c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return a.Leaf("other.test") }
		},
		"unknown authority": func(c *tls.Config, _ *ca.Authority) {
			other := newAuthority(t)
			c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return other.Leaf("localhost") }
		},
		"expired": func(c *tls.Config, _ *ca.Authority) {
			short, err := ca.New(time.Now().Add(50 * time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return short.Leaf("localhost") }
			time.Sleep(1100 * time.Millisecond) // certificates have seconds
		},
	} {
		server := startSecure(t, func(http.ResponseWriter, *http.Request) {})
		edit(server.TLS, server.authority)
		s := newSession(t, server, nil, "https://localhost:"+server.port+"/")
		for _, protocol := range protocols {
			res, body := do(t, s.client(protocol), "GET", server.url("/"), nil, nil)
			if res.StatusCode != http.StatusBadGateway || detailsOf(res) != rule.ReasonTLS {
				t.Errorf("%s: %s, %s", name, res.Status, body)
			}
		}
		if server.hits.Load() != 0 {
			t.Errorf("%s: a request arrived", name)
		}
	}
}

// TestUpgrades is attack 21: WebSocket passes, and a change of protocols that no one
// asked for doesn't.
func TestUpgrades(t *testing.T) {
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) {
		conn, bw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, "no hijack", http.StatusInternalServerError)
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		if r.Header.Get("Upgrade") != "" {
			line, _ := bw.ReadString('\n')
			_, _ = io.WriteString(conn, "got "+line)
		}
	})
	server.TLS.NextProtos = []string{"http/1.1"}
	s := newSession(t, server, nil, "https://localhost:"+server.port+"/")
	conn := s.dialTLS("localhost:" + server.port)
	_, _ = fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: localhost:%s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", server.port)
	br := bufio.NewReader(conn)
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", res, err)
	}
	_, _ = io.WriteString(conn, "hello\n")
	if line, err := br.ReadString('\n'); line != "got hello\n" {
		t.Errorf("%q, %v", line, err)
	}
	_ = conn.Close()
	if res, _ := do(t, s.client("http/1.1"), "GET", server.url("/"), nil, nil); detailsOf(res) != rule.ReasonProtocol {
		t.Errorf("unrequested 101: %s", res.Status)
	}
}

// TestEventStream checks that events arrive one by one, over both protocols.
func TestEventStream(t *testing.T) {
	next := make(chan struct{})
	server := startSecure(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	})
	s := newSession(t, server, nil, "https://localhost:"+server.port+"/")
	for _, protocol := range protocols {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.url("/"), nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := s.client(protocol).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		br := bufio.NewReader(res.Body)
		for i := range 3 {
			if line, err := br.ReadString('\n'); line != fmt.Sprintf("data: %d\n", i) {
				t.Errorf("%s: %q, %v", protocol, line, err)
			}
			_, _ = br.ReadString('\n')
			next <- struct{}{}
		}
		_ = res.Body.Close()
	}
}
