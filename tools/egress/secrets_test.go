package egress

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
)

const keyValue = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"

// newSecretSession returns a session with the key KEY for /v1/, and its placeholder. The
// session also has the key OTHER of another host.
func newSecretSession(t testing.TB, server *secureServer, rules ...string) (*session, string) {
	t.Helper()
	to, err := rule.ParseEgress("https://localhost:" + server.port + "/v1/")
	if err != nil {
		t.Fatal(err)
	}
	away, err := rule.ParseEgress("https://other.test/")
	if err != nil {
		t.Fatal(err)
	}
	set, err := secret.New([]secret.Secret{{Name: "KEY", Value: keyValue, To: []rule.Rule{to}}, {Name: "OTHER", Value: "another key", To: []rule.Rule{away}}})
	if err != nil {
		t.Fatal(err)
	}
	_, placeholder, _ := strings.Cut(set.Environment()[0], "=")
	return newSession(t, server, func(o *Options) { o.Secrets = set }, rules...), placeholder
}

// otherPlaceholder returns the placeholder of OTHER.
func (s *session) otherPlaceholder() string {
	_, p, _ := strings.Cut(s.opts.Secrets.Environment()[1], "=")
	return p
}

// requireNoKey fails the test if what the session reported has the key.
func (s *session) requireNoKey() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	text, err := json.Marshal([]any{s.opened, s.closed, s.denied, s.requested})
	if err != nil || bytes.Contains(text, []byte(keyValue)) {
		s.t.Errorf("the records have the key: %s, %v", text, err)
	}
}

// TestSecrets is attacks 29 and 31: a placeholder becomes the key where it may, and
// doesn't leave anywhere else. P stands for it.
func TestSecrets(t *testing.T) {
	canaries := startSecure(t, func(http.ResponseWriter, *http.Request) {})
	// An answer that begins before the body has ended can't become a refusal.
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil {
			_, _ = w.Write(body)
		}
	})
	for _, protocol := range protocols {
		s, p := newSecretSession(t, server, "https://localhost:"+server.port+"/ GET,POST", "https://127.0.0.1:"+canaries.port+"/ GET,POST", "http://localhost:"+server.port+"/")
		c, q := s.client(protocol), s.otherPlaceholder()
		res, _ := do(t, c, "GET", server.url("/v1/x"), nil, http.Header{"Authorization": {"Bearer " + p}})
		if got := server.last.Load().Header.Get("Authorization"); res.StatusCode != http.StatusOK || got != "Bearer "+keyValue {
			t.Errorf("%s: %s, the host got %q", protocol, res.Status, got)
		}
		if res, text := do(t, c, "POST", server.url("/v1/x"), onlyReader{strings.NewReader("env: " + p)}, nil); res.StatusCode != http.StatusOK || text != "env: "+p {
			t.Errorf("%s: the key's own host answers a body with the placeholder with %s %q", protocol, res.Status, text)
		}
		hits := server.hits.Load()
		basic := base64.StdEncoding.EncodeToString([]byte(p))
		for name, tt := range map[string]struct {
			url    string
			body   string
			header http.Header
		}{
			"another host":  {"https://127.0.0.1:" + canaries.port + "/", "", http.Header{"Authorization": {"Bearer " + p}}},
			"another path":  {server.url("/v2/"), "", http.Header{"Authorization": {"Bearer " + p}}},
			"query":         {server.url("/v1/?k=" + p), "", nil},
			"escaped query": {server.url(fmt.Sprintf("/v1/?k=%%%02x%s", p[0], p[1:])), "", nil},
			"path":          {server.url("/v1/" + p), "", nil},
			"cookie":        {server.url("/v1/"), "", http.Header{"Cookie": {"k=" + p}}},
			"User-Agent":    {server.url("/v1/"), "", http.Header{"User-Agent": {p}}},
			"other header":  {server.url("/v1/"), "", http.Header{"X-Debug": {p}}},
			"base64":        {server.url("/v1/"), "", http.Header{"X-Debug": {basic}}},
			"body":          {server.url("/v1/"), "key=" + q, nil},
			"long body":     {server.url("/v1/"), strings.Repeat("x", 40<<10) + q, nil},
			"base64 body":   {server.url("/v1/"), "key=" + base64.StdEncoding.EncodeToString([]byte(q)), nil},
		} {
			method, body := "GET", io.Reader(nil)
			if tt.body != "" {
				method, body = "POST", onlyReader{strings.NewReader(tt.body)}
			}
			res, text := do(t, c, method, tt.url, body, tt.header)
			if res.StatusCode != http.StatusForbidden || detailsOf(res) != rule.ReasonSecretMisplaced || strings.Contains(text, p) {
				t.Errorf("%s, %s: %s %s", protocol, name, res.Status, text)
			}
		}
		if n := canaries.hits.Load(); n != 0 {
			t.Errorf("%s: %d requests arrived at another host", protocol, n)
		}
		// Bodies are only found to have one while they are sent.
		if n := server.hits.Load() - hits; n > 3 {
			t.Errorf("%s: %d requests with a misplaced placeholder arrived", protocol, n)
		}
		_ = s.Denials(7)
		s.requireDenied(rule.ReasonSecretMisplaced)
		s.requireNoKey()
	}
}

// onlyReader has no other methods, so that its length isn't known.
type onlyReader struct{ io.Reader }

// TestSplitPlaceholder checks that a host gets no placeholder from a body that arrives
// in pieces, and no complete request.
func TestSplitPlaceholder(t *testing.T) {
	var got bytes.Buffer
	var whole atomic.Bool
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.Copy(&got, r.Body)
		whole.Store(err == nil)
	})
	s, _ := newSecretSession(t, server, "https://localhost:"+server.port+"/ POST")
	p := s.otherPlaceholder()
	if res, _ := do(t, s.client("http/1.1"), "POST", server.url("/v1/"), onlyReader{strings.NewReader("body")}, nil); res.StatusCode != http.StatusOK || got.String() != "body" || !whole.Swap(false) {
		t.Errorf("control: %s, the host got %q", res.Status, got.String())
	}
	conn := s.dialTLS("localhost:" + server.port)
	_, _ = fmt.Fprintf(conn, "POST /v1/ HTTP/1.1\r\nHost: localhost:%s\r\nTransfer-Encoding: chunked\r\n\r\n", server.port)
	for i := range len(p) {
		_, _ = fmt.Fprintf(conn, "1\r\n%s\r\n", p[i:i+1])
		time.Sleep(time.Millisecond)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || detailsOf(res) != rule.ReasonSecretMisplaced {
		t.Errorf("%v, %v", res, err)
	}
	s.requireDenied(rule.ReasonSecretMisplaced)
	s.Close()
	server.Close()
	if whole.Load() || strings.Contains(got.String(), p) {
		t.Errorf("the host got %q, whole: %v", got.String(), whole.Load())
	}
}

// TestPlaceholderInHPACK is the rest of attack 29: a header that HTTP/2 refers to by
// an index is checked like any other.
func TestPlaceholderInHPACK(t *testing.T) {
	server := startSecure(t, func(http.ResponseWriter, *http.Request) {})
	s, p := newSecretSession(t, server, "https://localhost:"+server.port+"/")
	conn := s.dialTLS("localhost:"+server.port, "h2")
	_, _ = io.WriteString(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, conn)
	if err := framer.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for stream := uint32(1); stream <= 5; stream += 2 { // later ones have the header by index
		block.Reset()
		for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost:" + server.port}, {":path", "/v1/"}, {"x-debug", p}} {
			_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
		}
		if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
			t.Fatal(err)
		}
	}
	if stream := block.Len(); stream > 20 {
		t.Errorf("the last header has %d bytes: the table is not used", stream)
	}
	statuses := map[uint32]string{}
	dec := hpack.NewDecoder(4096, nil)
	for len(statuses) < 3 {
		frame, err := framer.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if h, ok := frame.(*http2.HeadersFrame); ok {
			fields, err := dec.DecodeFull(h.HeaderBlockFragment())
			if err != nil {
				t.Fatal(err)
			}
			statuses[h.StreamID] = fields[0].Value
		}
	}
	for stream, status := range statuses {
		if status != "403" {
			t.Errorf("stream %d: %s", stream, status)
		}
	}
	if server.hits.Load() != 0 {
		t.Error("a request arrived")
	}
	s.requireDenied(rule.ReasonSecretMisplaced)
	// The control: the same with another value arrives.
	block.Reset()
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", "localhost:" + server.port}, {":path", "/v1/"}, {"x-debug", "x"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	if err := framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 7, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	awaitTrue(t, "the control", func() bool { return server.hits.Load() == 1 })
}

// TestEchoedSecrets is attack 30: what the host sends back has no key.
func TestEchoedSecrets(t *testing.T) {
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) {
		key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		w.Header().Set("Link", key)
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("X-Echo", key)
		w.Header().Set("Trailer", "X-End")
		switch r.URL.Path {
		case "/v1/error":
			http.Error(w, "bad key "+key, http.StatusUnauthorized)
		case "/v1/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, "key "+key)
			_ = z.Close()
		case "/v1/br":
			w.Header().Set("Content-Encoding", "br")
			_, _ = io.WriteString(w, key)
		case "/v1/range":
			http.ServeContent(w, r, "x", time.Time{}, strings.NewReader("key "+key))
		default:
			for i := range len(key) {
				_, _ = io.WriteString(w, key[i:i+1])
				_ = http.NewResponseController(w).Flush()
			}
		}
		w.Header().Set("X-End", key)
	})
	for _, protocol := range protocols {
		s, p := newSecretSession(t, server, "https://localhost:"+server.port+"/")
		c := s.client(protocol)
		var hints []string
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
			hints = append(hints, h.Get("Link"))
			return nil
		}})
		for path, want := range map[string]string{"/v1/chunks": p, "/v1/error": "bad key " + p + "\n", "/v1/gzip": "key " + p, "/v1/br": "", "/v1/range": "key " + p} {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.url(path), nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header = http.Header{"Authorization": {"Bearer " + p}, "Range": {"bytes=0-9"}, "Accept-Encoding": {"br"}}
			res, err := c.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if path == "/v1/br" {
				if res.StatusCode != http.StatusBadGateway || detailsOf(res) != rule.ReasonProtocol {
					t.Errorf("%s: %s is passed on: %s", protocol, path, res.Status)
				}
				continue
			}
			if got := server.last.Load().Header.Get("Authorization"); err != nil || string(text) != want || got != "Bearer "+keyValue {
				t.Errorf("%s: %s: %q, %v, want %q; the host got %q", protocol, path, text, err, want, got)
			}
			if res.Header.Get("X-Echo") != p || res.Trailer.Get("X-End") != p && path != "/v1/error" && path != "/v1/range" {
				t.Errorf("%s: %s: the headers are %v, the trailers %v", protocol, path, res.Header, res.Trailer)
			}
		}
		for _, hint := range hints {
			if hint != p {
				t.Errorf("%s: an informational response has %q", protocol, hint)
			}
		}
		if len(hints) == 0 {
			t.Errorf("%s: no informational response arrived", protocol)
		}
		s.requireNoKey()
	}
}
