package egress

import (
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/preset"
)

// TestGitServices is attack 18: a push to a URL that may be fetched from.
func TestGitServices(t *testing.T) {
	server := startSecure(t, func(http.ResponseWriter, *http.Request) {})
	s := newSession(t, server, nil, "git+https://localhost:"+server.port+"/org/")
	c := s.client("h2")
	for _, tt := range []struct {
		method, path string
		hits         int64
	}{
		{"GET", "/org/r.git/info/refs?service=git-upload-pack", 1},
		{"POST", "/org/r.git/git-upload-pack", 1},
		{"GET", "/org/r.git/info/refs?service=git-receive-pack", 0},
		{"POST", "/org/r.git/git-receive-pack", 0},
		{"GET", "/other/r.git/info/refs?service=git-upload-pack", 0},
		{"POST", "/org/r.git/info/lfs/objects/batch", 0},
		{"PUT", "/org/r.git/info/lfs/objects/x", 0},
	} {
		before := server.hits.Load()
		res, _ := do(t, c, tt.method, server.url(tt.path), nil, nil)
		if n := server.hits.Load() - before; n != tt.hits || (res.StatusCode == http.StatusForbidden) != (tt.hits == 0) {
			t.Errorf("%s %s: %s, %d hits", tt.method, tt.path, res.Status, n)
		}
		if reason := detailsOf(res); (reason == "") != (tt.hits == 1) {
			t.Errorf("%s %s: reason %q", tt.method, tt.path, reason)
		} else if reason != "" && !slices.ContainsFunc(s.takeDenied(), func(d Denied) bool { return d.Reason == reason }) {
			t.Errorf("%s %s: no report has %q", tt.method, tt.path, reason)
		}
		_ = s.Denials(7) // so that the next equal one is reported again
	}
}

// TestRedirects is attack 20: a redirect is passed on, and where it leads is decided
// like any request.
func TestRedirects(t *testing.T) {
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
	})
	s := newSession(t, server, nil, "https://localhost:"+server.port+"/a/")
	for to, want := range map[string]string{"https://localhost:" + server.port + "/b/": "path", "https://169.254.169.254/": "", "http://10.0.0.1/": "not_allowed"} {
		c := s.client("h2")
		c.CheckRedirect = nil
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.url("/a/?to="+url.QueryEscape(to)), nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Do(r)
		if err == nil {
			_ = res.Body.Close()
		}
		if err == nil && (res.StatusCode != http.StatusForbidden || detailsOf(res) != want) || err != nil && want != "" {
			t.Errorf("%s: %v, %v", to, res, err)
		}
	}
}

// TestStalledStreams is attack 26 for ended TLS: responses that a program asks for and
// doesn't read are not collected.
func TestStalledStreams(t *testing.T) {
	const streams, size = 40, 4 << 20
	var sent atomic.Int64
	server := startSecure(t, func(w http.ResponseWriter, _ *http.Request) {
		for range size >> 15 {
			n, err := w.Write(make([]byte, 32<<10))
			if err != nil {
				return
			}
			sent.Add(int64(n))
		}
	})
	s := newSession(t, server, nil, "https://localhost:"+server.port+"/")
	c := s.client("h2")
	c.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10, MaxReceiveBufferPerConnection: 1 << 20}
	for range streams {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.url("/"), nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
	}
	time.Sleep(500 * time.Millisecond)
	// Sockets and the buffers of responses hold bytes besides HTTP/2's buffers.
	if n := sent.Load(); n > maxHostBuffer+20<<20 || n >= streams*size/2 {
		t.Errorf("%d bytes were sent to a program that reads none", n)
	} else {
		t.Logf("%d bytes were sent", n)
	}
}

// TestPlaceholders checks that what presets and sandboxes call the proxy is the same.
func TestPlaceholders(t *testing.T) {
	if preset.ProxyPlaceholder != sandbox.ProxyPlaceholder {
		t.Errorf("%s is not %s", preset.ProxyPlaceholder, sandbox.ProxyPlaceholder)
	}
}
