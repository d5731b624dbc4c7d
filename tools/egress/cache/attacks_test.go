package cache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestAttacks is attack 34. The positive control is an answer without a fault, which
// the second request gets from the cache.
func TestAttacks(t *testing.T) {
	whole := "the whole content"
	sum := sha256.Sum256([]byte(whole))
	right := Digest{"sha256", hex.EncodeToString(sum[:])}
	raw := func(head string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n"+head+"\r\n\r\n"+whole)
				_ = conn.Close()
			}
		}
	}
	header := func(name, value string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(name, value)
			_, _ = io.WriteString(w, whole)
		}
	}
	for _, tt := range []struct {
		name   string
		answer func(http.ResponseWriter, *http.Request)
		digest Digest
		kept   bool
		fails  bool
	}{
		{name: "control", answer: text(whole), kept: true},
		{name: "right digest", answer: text(whole), digest: right, kept: true},
		{name: "wrong digest", answer: text("the whole contents"), digest: right, fails: true},
		{name: "truncated", answer: raw("Content-Length: 100"), fails: true},
		{name: "truncated chunks", answer: raw("Transfer-Encoding: chunked\r\n\r\nff"), fails: true},
		{name: "ended by the connection", answer: raw("Content-Type: text/plain"), kept: false},
		{name: "Vary: *", answer: header("Vary", "*")},
		{name: "Vary: Accept", answer: header("Vary", "Accept, Cookie"), kept: true},
		{name: "private", answer: header("Cache-Control", "Private")},
		{name: "no-store", answer: header("Cache-Control", "max-age=1, no-store")},
		{name: "encoded", answer: header("Content-Encoding", "gzip")},
		{name: "partial with 200", answer: header("Content-Range", "bytes 0-16/17")},
		{name: "partial", answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-16/100")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, whole)
		}},
		{name: "unrequested 304", answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) }},
		{name: "404", answer: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }},
		{name: "redirect", answer: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://evil.test/")
			w.WriteHeader(http.StatusFound)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := newRegistry(t, tt.answer)
			c := openCache(t, t.TempDir())
			q := g.request("/x", File)
			q.Digest = tt.digest
			_, body, _, err := get(t, c, q, nil)
			if (err != nil) != tt.fails || tt.fails && body == whole+"s" {
				t.Errorf("%q, %v", body, err)
			}
			_, _, result, _ := get(t, c, q, nil)
			if result.Hit != tt.kept || g.hits.Load() != map[bool]int64{true: 1, false: 2}[tt.kept] {
				t.Errorf("kept: %v, want %v; %d requests", result.Hit, tt.kept, g.hits.Load())
			}
		})
	}
}

// TestForgedHeaders checks that no header of a program but Accept reaches the
// registry, whose answer others get.
func TestForgedHeaders(t *testing.T) {
	g := newRegistry(t, func(w http.ResponseWriter, r *http.Request) {
		host := r.Header.Get("X-Forwarded-Host") + r.Header.Get("User-Agent") + r.Header.Get("Accept-Encoding") + r.Header.Get("Origin")
		_, _ = io.WriteString(w, "links to "+host+r.Header.Get("X-Original-Url"))
	})
	c := openCache(t, t.TempDir())
	q := g.request("/x", Index)
	want := "links to caissonidentity"
	_, body, _, err := get(t, c, q, http.Header{"X-Forwarded-Host": {"evil.test"}, "User-Agent": {"evil"}, "Origin": {"evil"}, "X-Original-Url": {"/evil"}, "Accept-Encoding": {"br"}})
	if err != nil || body != want {
		t.Errorf("%q, %v, want %q", body, err, want)
	}
	g.require(t, c, q, want, 1)
	for name, cacheable := range map[string]bool{"Authorization": false, "Cookie": false, "Range": false, "Upgrade": false, "X-Forwarded-Host": true} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.Header.Set(name, "x")
		if Cacheable(r) != cacheable {
			t.Errorf("a request with %s: cacheable is %v", name, !cacheable)
		}
	}
	if Cacheable(httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader("x"))) || Cacheable(httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", strings.NewReader("x"))) {
		t.Error("requests with a body are cacheable")
	}
}

// TestDamaged checks that a content that changed on disk doesn't arrive whole, and is
// downloaded again.
func TestDamaged(t *testing.T) {
	whole := strings.Repeat("content", 30<<10)
	g := newRegistry(t, text(whole))
	for name, damage := range map[string]func(path string) error{
		"a bit":     func(path string) error { return writeAt(path, []byte("X"), 100) },
		"the end":   func(path string) error { return writeAt(path, []byte("X"), int64(len(whole)-1)) },
		"truncated": func(path string) error { return os.Truncate(path, 10) },
		"emptied":   func(path string) error { return os.Truncate(path, 0) },
		"removed":   os.Remove,
	} {
		g.hits.Store(0)
		dir := t.TempDir()
		c := openCache(t, dir)
		q := g.request("/"+strings.ReplaceAll(name, " ", ""), File)
		g.require(t, c, q, whole, 1)
		list, err := filepath.Glob(filepath.Join(dir, "content", "*", "*"))
		if err != nil || len(list) != 1 {
			t.Fatalf("the contents are %v, %v", list, err)
		}
		if err := damage(list[0]); err != nil {
			t.Fatal(err)
		}
		if _, body, _, err := get(t, c, q, nil); err == nil && body != whole || err != nil && len(body) == len(whole) {
			t.Errorf("%s: %d bytes arrive, %v", name, len(body), err)
		}
		g.require(t, c, q, whole, 2)
	}
}

func writeAt(path string, p []byte, at int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(p, at)
	return errors.Join(err, f.Close())
}

func TestLock(t *testing.T) {
	content := "one"
	g := newRegistry(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, content) })
	dir := t.TempDir()
	c := openCache(t, dir)
	now := time.Now()
	c.now = func() time.Time { return now }
	notes := NewLock()
	q := g.request("/index", Index)
	q.Accept, q.Lock = "text/*, a b", notes
	g.require(t, c, q, "one", 1)
	var file bytes.Buffer
	if _, err := notes.WriteTo(&file); err != nil {
		t.Fatal(err)
	}
	strict, err := ReadLock(bytes.NewReader(file.Bytes()))
	if err != nil {
		t.Fatalf("%v: %s", err, file.String())
	}
	content = "two"
	now = now.Add(time.Hour)
	q.Lock = nil
	g.require(t, c, q, "two", 2) // the index has changed
	q.Lock = strict
	g.require(t, c, q, "one", 2) // and is pinned
	fresh := openCache(t, t.TempDir())
	if _, body, _, err := get(t, fresh, q, nil); !isNotLocked(err) || body == "two" {
		t.Errorf("another content than the pinned one: %q, %v", body, err)
	}
	content = "one"
	g.require(t, fresh, q, "one", 4)
	other := g.request("/other", File)
	other.Lock = strict
	if _, _, result, err := get(t, c, other, nil); !isNotLocked(err) || result.Status != 0 || g.hits.Load() != 4 {
		t.Errorf("a URL without a pin: %+v, %v, %d requests", result, err, g.hits.Load())
	}
	for _, text := range []string{"", "x\n", lockHeader + "\nabc https://a.test/ \"\"\n", lockHeader + "\n" + strings.Repeat("a", 64) + " https://a.test/ x\n", file.String() + file.String()} {
		if _, err := ReadLock(strings.NewReader(text)); err == nil && text != "" {
			t.Errorf("%q is a lock", text)
		}
	}
}

func isNotLocked(err error) bool {
	_, ok := errors.AsType[*NotLockedError](err)
	return ok
}

// TestBounds checks the sizes of contents and of all of them.
func TestBounds(t *testing.T) {
	g := newRegistry(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/big" {
			w.Header().Set("Content-Length", "2000")
		}
		_, _ = io.WriteString(w, strings.Repeat(r.URL.Path[1:2], 1000))
		if strings.HasPrefix(r.URL.Path, "/big") {
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, strings.Repeat("b", 1000))
		}
	})
	dir := t.TempDir()
	c := openCache(t, dir)
	c.maxBytes = 3500
	c.maxFileBytes = 1500
	for i := range 6 {
		g.require(t, c, g.request(fmt.Sprintf("/%d", i), File), strings.Repeat(fmt.Sprint(i), 1000), int64(i+1))
		time.Sleep(5 * time.Millisecond) // times of files
	}
	g.require(t, c, g.request("/5", File), strings.Repeat("5", 1000), 6)
	g.require(t, c, g.request("/0", File), strings.Repeat("0", 1000), 7)
	var total int64
	list, err := filepath.Glob(filepath.Join(dir, "content", "*", "*"))
	for _, path := range list {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if err != nil || total > 3500 {
		t.Errorf("%d bytes of contents, %v", total, err)
	}
	g.require(t, c, g.request("/big", File), strings.Repeat("b", 2000), 8) // not kept
	if _, _, result, err := get(t, c, g.request("/bigger", File), nil); err == nil || result.Hit {
		t.Errorf("a body without a length that is too large: %+v, %v", result, err)
	}
}

// TestKilled checks what a killed process leaves: a part of a download, and an entry
// without a content.
func TestKilled(t *testing.T) {
	g := newRegistry(t, text("whole"))
	dir := t.TempDir()
	c := openCache(t, dir)
	q := g.request("/x", File)
	g.require(t, c, q, "whole", 1)
	part := filepath.Join(dir, "tmp", "download-1")
	if err := os.WriteFile(part, []byte("who"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(part, old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.entryPath(entryKey(q.URL, "")), []byte(`{"url":`), 0o600); err != nil {
		t.Fatal(err)
	}
	c = openCache(t, dir)
	if _, err := os.Stat(part); !os.IsNotExist(err) {
		t.Errorf("a part of a download is kept: %v", err)
	}
	g.require(t, c, q, "whole", 2)
}

// TestProcesses checks that a download of one process is used by another that asks
// at the same time. Two caches of one directory share nothing in memory.
func TestProcesses(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	g := newRegistry(t, func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-finish
		_, _ = io.WriteString(w, "content")
	})
	dir := t.TempDir()
	a, b := openCache(t, dir), openCache(t, dir)
	q := g.request("/x", File)
	var wg sync.WaitGroup
	wg.Go(func() { g.require(t, a, q, "content", 1) })
	<-begun
	wg.Go(func() { g.require(t, b, q, "content", 1) })
	time.Sleep(100 * time.Millisecond)
	close(finish)
	wg.Wait()
}

// TestVariants checks that a program can't fill a disk with entries, which are as many as
// its Accept headers.
func TestVariants(t *testing.T) {
	g := newRegistry(t, text("the same"))
	dir := t.TempDir()
	c := openCache(t, dir)
	q := g.request("/file", File)
	const variants = 3 * maxVariants
	for i := range variants {
		q.Accept = fmt.Sprintf("text/%d", i)
		g.require(t, c, q, "the same", int64(i+1))
	}
	g.require(t, c, q, "the same", variants) // the control: the last one is kept
	paths, err := filepath.Glob(filepath.Join(dir, "entries", "*", "*"))
	if err != nil || len(paths) != 2*maxVariants {
		t.Errorf("%d entries, want %d: %v", len(paths), 2*maxVariants, err)
	}
	for size, want := range map[int]bool{maxAcceptBytes: true, maxAcceptBytes + 1: false} {
		r := &http.Request{Method: http.MethodGet, Header: http.Header{"Accept": {strings.Repeat("x", size)}}}
		if Cacheable(r) != want {
			t.Errorf("cacheable with an Accept header of %d bytes: %t", size, !want)
		}
	}
}
