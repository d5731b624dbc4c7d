package egress

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools/egress/cache"
	"github.com/caisson-run/caisson/tools/egress/preset"
	"github.com/caisson-run/caisson/tools/egress/rule"
	"github.com/caisson-run/caisson/tools/egress/secret"
)

// newRegistrySession returns a session with the preset go, for a registry at a secure
// server.
func newRegistrySession(t testing.TB, server *secureServer, keep *cache.Cache, lock *cache.Lock, edit func(*Options)) *session {
	t.Helper()
	p, err := preset.New("go", preset.Options{Registries: map[string][]preset.Registry{"go": {{URL: server.url("/")}}}})
	if err != nil {
		t.Fatal(err)
	}
	return newSession(t, server, func(o *Options) {
		o.Policy, o.Mirrors = &rule.Policy{Allow: p.Rules}, p.Mirrors
		o.Registries = &Registries{Preset: p, Cache: keep, Lock: lock}
		if edit != nil {
			edit(o)
		}
	})
}

// getMirror sends a request for a path of the mirror, and returns the response and
// its body.
func (s *session) getMirror(path, header string) (*http.Response, string) {
	s.t.Helper()
	res, _, conn := s.send("GET /go" + path + " HTTP/1.1\r\nHost: " + proxyAddr + "\r\nConnection: close\r\n" + header + "\r\n")
	defer func() { _ = conn.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Errorf("%s: %v", path, err)
	}
	return res, string(body)
}

const moduleFile = "/example.test/m/@v/v1.0.0.zip"

// TestRegistryCache is attack 34 at the server: what one session sends doesn't change
// what another gets, and requests that are not for everybody pass by the cache.
func TestRegistryCache(t *testing.T) {
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s %s %s", r.URL.Path, r.Header.Get("X-Forwarded-Host"), r.Header.Get("Authorization"), r.Header.Get("Range"))
	})
	keep := openTestCache(t)
	a, b := newRegistrySession(t, server, keep, nil, nil), newRegistrySession(t, server, keep, nil, nil)
	want := moduleFile + "   "
	if _, body := a.getMirror(moduleFile, "X-Forwarded-Host: evil.test\r\n"); body != want {
		t.Errorf("the first session got %q", body)
	}
	if _, body := b.getMirror(moduleFile, ""); body != want || server.hits.Load() != 1 {
		t.Errorf("the second session got %q, with %d requests", body, server.hits.Load())
	}
	for i, header := range []string{"Authorization: Bearer x\r\n", "Range: bytes=0-1\r\n", "Cookie: a=b\r\n"} {
		_, _ = a.getMirror(moduleFile, header)
		if n := server.hits.Load(); n != int64(i+2) {
			t.Errorf("%q: %d requests", header, n)
		}
	}
	if _, body := b.getMirror(moduleFile, ""); body != want {
		t.Errorf("the second session got %q", body)
	}
	if res, _ := a.getMirror("/../x", ""); server.hits.Load() != 5 && res.StatusCode == http.StatusOK {
		t.Errorf("a path outside of the mirror: %s", res.Status)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.requested) != 2 || !b.requested[0].Cached || len(b.opened) != 0 {
		t.Errorf("the second session's requests are %+v, its connections %+v", b.requested, b.opened)
	}
}

// TestRegistryLock checks what a lock lets through.
func TestRegistryLock(t *testing.T) {
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })
	notes := cache.NewLock()
	first := newRegistrySession(t, server, openTestCache(t), notes, nil)
	_, _ = first.getMirror(moduleFile, "")
	var text bytes.Buffer
	if _, err := notes.WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	strict, err := cache.ReadLock(&text)
	if err != nil {
		t.Fatal(err)
	}
	s := newRegistrySession(t, server, openTestCache(t), strict, nil)
	if res, body := s.getMirror(moduleFile, ""); res.StatusCode != http.StatusOK || body != moduleFile {
		t.Errorf("%s, %q", res.Status, body)
	}
	hits := server.hits.Load()
	for _, header := range []string{"", "Authorization: x\r\n"} {
		if res, _ := s.getMirror("/example.test/m/@v/v2.0.0.zip", header); detailsOf(res) != rule.ReasonNotLocked {
			t.Errorf("a file that is not locked, with %q: %s", header, res.Status)
		}
	}
	if denied := s.takeDenied(); len(denied) != 2 && len(denied) != 1 || denied[0].Reason != rule.ReasonNotLocked || server.hits.Load() != hits {
		t.Errorf("%+v, %d requests", denied, server.hits.Load()-hits)
	}
}

// TestKeyedRegistry checks that nothing of a host that has a secret is kept.
func TestKeyedRegistry(t *testing.T) {
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("Authorization")) })
	to, err := rule.ParseEgress(server.url("/"))
	if err != nil {
		t.Fatal(err)
	}
	keys, err := secret.New([]secret.Secret{{Name: "KEY", Value: keyValue, To: []rule.Rule{to}}})
	if err != nil {
		t.Fatal(err)
	}
	_, p, _ := strings.Cut(keys.Environment()[0], "=")
	keep := openTestCache(t)
	s := newRegistrySession(t, server, keep, nil, func(o *Options) { o.Secrets = keys })
	if _, body := s.getMirror(moduleFile, "Authorization: Bearer "+p+"\r\n"); body != "Bearer "+p {
		t.Errorf("%q", body)
	}
	_, _ = s.getMirror(moduleFile, "") // without the key too
	other := newRegistrySession(t, server, keep, nil, nil)
	if _, body := other.getMirror(moduleFile, ""); body != "" || server.hits.Load() != 3 {
		t.Errorf("another session got %q, after %d requests", body, server.hits.Load())
	}
}

// TestDownloadOutlivesProgram checks that a download for which others wait goes on
// when the program that began it has gone, and that the session's end ends it.
func TestDownloadOutlivesProgram(t *testing.T) {
	begun, finish := make(chan struct{}, 2), make(chan struct{})
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("x", 100<<10))
		_ = http.NewResponseController(w).Flush()
		begun <- struct{}{}
		select {
		case <-finish:
		case <-r.Context().Done():
		}
	})
	keep := openTestCache(t)
	a, b := newRegistrySession(t, server, keep, nil, nil), newRegistrySession(t, server, keep, nil, nil)
	_, _, conn := a.send("GET /go" + moduleFile + " HTTP/1.1\r\nHost: " + proxyAddr + "\r\n\r\n")
	<-begun
	res, _, second := b.send("GET /go" + moduleFile + " HTTP/1.1\r\nHost: " + proxyAddr + "\r\n\r\n")
	_ = conn.Close()
	time.Sleep(50 * time.Millisecond)
	close(finish)
	if n, err := io.Copy(io.Discard, res.Body); n != 100<<10 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	_ = second.Close()
	if server.hits.Load() != 1 {
		t.Errorf("%d downloads", server.hits.Load())
	}
	finish = make(chan struct{})
	_, _, conn = a.send("GET /go/example.test/m/@v/v1.0.1.zip HTTP/1.1\r\nHost: " + proxyAddr + "\r\n\r\n")
	<-begun
	done := make(chan struct{})
	go func() {
		a.Close()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("the session doesn't end while a download is under way")
	}
	_ = conn.Close()
}

// TestHundredSessionsOneDownload checks that 100 sessions with the same files download
// each byte once.
func TestHundredSessionsOneDownload(t *testing.T) {
	const files, size, sessions = 5, 50 << 10, 100
	var sent atomic.Int64
	server := startSecure(t, func(w http.ResponseWriter, _ *http.Request) {
		n, _ := w.Write(make([]byte, size))
		sent.Add(int64(n))
	})
	keep := openTestCache(t)
	var received atomic.Int64
	var wg sync.WaitGroup
	slots := make(chan struct{}, 20)
	for range sessions {
		s := newRegistrySession(t, server, keep, nil, nil)
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			conn := s.connectProxy()
			defer func() { _ = conn.Close() }()
			br := bufio.NewReader(conn)
			for i := range files {
				_, _ = fmt.Fprintf(conn, "GET /go/example.test/m/@v/v1.0.%d.zip HTTP/1.1\r\nHost: %s\r\n\r\n", i, proxyAddr)
				res, err := http.ReadResponse(br, nil)
				if err != nil {
					t.Error(err)
					return
				}
				n, err := io.Copy(io.Discard, res.Body)
				if err != nil {
					t.Error(err)
				}
				received.Add(n)
			}
		})
	}
	wg.Wait()
	if sent.Load() != files*size || received.Load() != sessions*files*size {
		t.Errorf("%d bytes were downloaded, %d arrived, want %d and %d", sent.Load(), received.Load(), files*size, sessions*files*size)
	}
}
