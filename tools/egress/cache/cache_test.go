package cache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// registry is a server whose answers are counted.
type registry struct {
	*httptest.Server
	hits atomic.Int64
	// answer is called for each request.
	answer func(w http.ResponseWriter, r *http.Request)
}

func newRegistry(t testing.TB, answer func(w http.ResponseWriter, r *http.Request)) *registry {
	t.Helper()
	g := &registry{answer: answer}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.hits.Add(1)
		g.answer(w, r)
	}))
	t.Cleanup(g.Close)
	return g
}

func text(s string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
}

func openCache(t testing.TB, dir string) *Cache {
	t.Helper()
	c, err := Open(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// request returns a request to the registry.
func (g *registry) request(path string, kind Kind) Request {
	return Request{URL: g.URL + path, Kind: kind, Fetch: func(ctx context.Context, h http.Header) (*http.Response, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL+path, nil)
		if err != nil {
			return nil, err
		}
		r.Header = h
		return (&http.Transport{DisableKeepAlives: true, DisableCompression: true}).RoundTrip(r)
	}}
}

// get sends a program's request to a cache, through a server, and returns what
// arrives.
func get(t testing.TB, c *Cache, q Request, header http.Header) (res *http.Response, body string, result Result, err error) {
	t.Helper()
	done := make(chan struct{})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		result, err = c.Serve(w, r, q)
		switch {
		case err != nil && result.Status != 0:
			panic(http.ErrAbortHandler)
		case err != nil:
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	proxy.Config.ErrorLog = nil
	defer proxy.Close()
	r, reqErr := http.NewRequestWithContext(t.Context(), http.MethodGet, proxy.URL, nil)
	if reqErr != nil {
		t.Fatal(reqErr)
	}
	maps.Copy(r.Header, header)
	res, getErr := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(r)
	if getErr != nil {
		<-done
		return nil, "", result, errors.Join(err, getErr)
	}
	defer func() { _ = res.Body.Close() }()
	read, readErr := io.ReadAll(res.Body)
	<-done
	return res, string(read), result, errors.Join(err, readErr)
}

// require gets a URL and requires its body and the registry's hits.
func (g *registry) require(t *testing.T, c *Cache, q Request, want string, hits int64) Result {
	t.Helper()
	_, body, result, err := get(t, c, q, nil)
	if err != nil || body != want || result.Bytes != int64(len(want)) {
		t.Errorf("%s: %.60q, %+v, %v, want %.60q", q.URL, body, result, err, want)
	}
	if n := g.hits.Load(); n != hits {
		t.Errorf("%s: the registry was asked %d times, want %d", q.URL, n, hits)
	}
	return result
}

func TestFilesAndIndexes(t *testing.T) {
	version := "1"
	g := newRegistry(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"`+version+`"`)
		w.Header().Set("Set-Cookie", "a=b")
		if r.Header.Get("If-None-Match") == `"`+version+`"` {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, r.URL.Path+version+r.Header.Get("Accept"))
	})
	dir := t.TempDir()
	c := openCache(t, dir)
	now := time.Now()
	c.now = func() time.Time { return now }
	file, index := g.request("/file", File), g.request("/index", Index)
	if g.require(t, c, file, "/file1", 1).Hit || !g.require(t, c, file, "/file1", 1).Hit {
		t.Error("hits are not told from downloads")
	}
	g.require(t, c, index, "/index1", 2)
	g.require(t, c, index, "/index1", 2)
	json := index
	json.Accept = "application/json"
	g.require(t, c, json, "/index1application/json", 3)
	g.require(t, c, index, "/index1", 3)
	now = now.Add(IndexAge)
	g.require(t, c, index, "/index1", 4) // 304
	g.require(t, c, index, "/index1", 4)
	version = "2"
	now = now.Add(IndexAge)
	g.require(t, c, index, "/index2", 5)
	g.require(t, c, file, "/file1", 5)
	now = now.Add(-time.Hour) // the clock was set back
	g.require(t, c, index, "/index2", 6)
	again := openCache(t, dir) // another process
	g.require(t, again, file, "/file1", 6)
	res, body, _, err := get(t, c, file, http.Header{"If-None-Match": {`W/"x", "1"`}})
	if err != nil || res.StatusCode != http.StatusNotModified || body != "" || res.Header.Get("Set-Cookie") != "" {
		t.Errorf("a conditional request: %v, %q, %v", res, body, err)
	}
	var seen []string
	c.Visit(index.URL, func(r io.Reader) bool {
		text, _ := io.ReadAll(r)
		seen = append(seen, string(text))
		return true
	})
	if len(seen) != 2 {
		t.Errorf("the contents of an index are %q", seen)
	}
}

// TestSharedDownload checks that requests at one time have one download, whichever of them
// ends first, and that a body is sent as it arrives.
func TestSharedDownload(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	part := strings.Repeat("x", 200<<10)
	g := newRegistry(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, part)
		_ = http.NewResponseController(w).Flush()
		close(begun)
		<-finish
		_, _ = io.WriteString(w, "end")
	})
	c := openCache(t, t.TempDir())
	q := g.request("/big", File)
	ctx, cancel := context.WithCancel(t.Context())
	first := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	firstDone := make(chan error, 1)
	arrived := newWatcher(100 << 10)
	go func() {
		_, err := c.Serve(arrived, first, q)
		firstDone <- err
	}()
	<-begun
	<-arrived.reached // before the download has ended
	var wg sync.WaitGroup
	joined := make(chan struct{}, 20)
	for range 20 {
		wg.Go(func() {
			w := newWatcher(1)
			go func() { <-w.reached; joined <- struct{}{} }()
			if _, err := c.Serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil), q); err != nil || w.String() != part+"end" {
				t.Errorf("%d bytes, %v", w.Len(), err)
			}
		})
	}
	for range 20 {
		<-joined
	}
	cancel() // the others go on
	if err := <-firstDone; !errors.Is(err, context.Canceled) {
		t.Errorf("the request that was cancelled: %v", err)
	}
	close(finish)
	wg.Wait()
	if n := g.hits.Load(); n != 1 {
		t.Errorf("%d downloads", n)
	}
	g.require(t, c, q, part+"end", 1)
}

// watcher is a writer of responses that reports when a number of bytes has arrived.
type watcher struct {
	bytes.Buffer
	header  http.Header
	after   int
	reached chan struct{}
	once    sync.Once
}

func newWatcher(after int) *watcher {
	return &watcher{header: http.Header{}, after: after, reached: make(chan struct{})}
}

func (w *watcher) Header() http.Header { return w.header }
func (*watcher) WriteHeader(int)       {}
func (*watcher) Flush()                {}
func (w *watcher) Write(p []byte) (int, error) {
	n, err := w.Buffer.Write(p)
	if w.Buffer.Len() >= w.after {
		w.once.Do(func() { close(w.reached) })
	}
	return n, err
}

// TestCancelledDownload checks that a download ends when no request waits for it, and
// that the next request begins again.
func TestCancelledDownload(t *testing.T) {
	ended := make(chan struct{}, 1)
	first := true
	g := newRegistry(t, func(w http.ResponseWriter, r *http.Request) {
		if !first {
			_, _ = io.WriteString(w, "whole")
			return
		}
		first = false
		_, _ = io.WriteString(w, "who")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		ended <- struct{}{}
	})
	dir := t.TempDir()
	c := openCache(t, dir)
	q := g.request("/x", File)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := c.Serve(newWatcher(1), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil), q); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	<-ended
	g.require(t, c, q, "whole", 2)
	if list, err := filepath.Glob(filepath.Join(dir, "tmp", "download-*")); err != nil || len(list) > 0 {
		t.Errorf("downloads are left: %v, %v", list, err)
	}
}

func FuzzReadLock(f *testing.F) {
	f.Add(lockHeader + "\n" + strings.Repeat("a", 64) + " https://a.test/ \"\"\n")
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ReadLock(strings.NewReader(s))
		if err != nil {
			return
		}
		var b bytes.Buffer
		if _, err := l.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		again, err := ReadLock(&b)
		if err != nil || len(again.sums) != len(l.sums) {
			t.Fatalf("%q is read again as %d lines, %v", s, len(again.sums), err)
		}
	})
}

func BenchmarkServe(b *testing.B) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 4<<16)
	g := newRegistry(b, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) })
	c := openCache(b, b.TempDir())
	q := g.request("/x", File)
	r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/", nil)
	if _, err := c.Serve(discard{http.Header{}}, r, q); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := c.Serve(discard{http.Header{}}, r, q); err != nil {
			b.Fatal(err)
		}
	}
}

type discard struct{ h http.Header }

func (d discard) Header() http.Header       { return d.h }
func (discard) WriteHeader(int)             {}
func (discard) Write(p []byte) (int, error) { return len(p), nil }
