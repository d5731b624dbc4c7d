package cache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/limits/state"
)

// flight is one download, shared by all requests for its URL. It continues while
// any of them waits.
type flight struct {
	cancel context.CancelCauseFunc
	// ready is closed when header and size are known, or the download has failed.
	ready chan struct{}

	mu      sync.Mutex
	readers int
	changed chan struct{} // closed and replaced at each change of the fields below
	entry   entry         // its size is -1 until it is known
	file    *os.File
	written int64 // bytes that may be sent
	done    bool
	err     error
	// direct is an answer that isn't kept, for the request that began the download.
	direct *http.Response
}

// errNotKept makes the other requests ask the server themselves.
var errNotKept = errors.New("the answer is not kept")

var errNobodyWaits = errors.New("no request waits for the download any more")

// keptHeaders are the response headers to keep. Never keep cookies.
var keptHeaders = []string{"Content-Type", "Content-Disposition", "Etag", "Last-Modified", "X-Pypi-Last-Serial"}

func (q *Request) fetchHeader() http.Header {
	h := http.Header{"User-Agent": {"caisson"}, "Accept-Encoding": {"identity"}}
	if q.Accept != "" {
		h.Set("Accept", q.Accept)
	}
	return h
}

// isKept reports whether an answer may be kept: it must be complete, meant for
// everybody, and the same whatever a program sends.
func (c *Cache) isKept(res *http.Response) bool {
	cacheControl := strings.ToLower(strings.Join(res.Header.Values("Cache-Control"), ","))
	coding := res.Header.Get("Content-Encoding")
	switch {
	case res.StatusCode != http.StatusOK || res.Header.Get("Content-Range") != "" || res.Uncompressed:
		return false
	case coding != "" && !strings.EqualFold(coding, "identity"):
		return false
	case slices.Contains(res.Header.Values("Vary"), "*") || strings.Contains(cacheControl, "no-store") || strings.Contains(cacheControl, "private"):
		return false
	case res.ContentLength > c.maxFileBytes:
		return false
	}
	// The end of the connection alone doesn't show that the body is whole.
	return res.ContentLength >= 0 || res.ProtoMajor >= 2 || slices.Contains(res.TransferEncoding, "chunked")
}

// joinFlight returns the download for a request, and whether this call began it.
// Requests that expect different contents don't share one.
func (c *Cache) joinFlight(q Request, pin string) (*flight, bool) {
	name := strings.Join([]string{entryKey(q.URL, q.Accept), pin, q.Digest.String()}, " ")
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.flights[name]; f != nil && f.addReader() {
		return f, false
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	// Its readers are this call and the goroutine.
	f := &flight{cancel: cancel, ready: make(chan struct{}), readers: 2, changed: make(chan struct{})}
	c.flights[name] = f
	go func() {
		if !c.guardFlight(ctx, f, q, pin) {
			cancel(nil)
		}
		c.mu.Lock()
		if c.flights[name] == f {
			delete(c.flights, name)
		}
		c.mu.Unlock()
		f.removeReader()
	}()
	return f, true
}

// addReader adds a request. It returns false if the flight has ended, or was
// cancelled because all its requests had ended.
func (f *flight) addReader() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers <= 1 || f.done {
		return false
	}
	f.readers++
	return true
}

// removeReader ends one use of a flight. The last request cancels the download. The
// last use closes the file.
func (f *flight) removeReader() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers--
	if f.readers <= 1 && !f.done {
		f.cancel(errNobodyWaits)
	}
	if f.readers == 0 && f.file != nil {
		_ = f.file.Close()
	}
}

// applyChange changes a flight and wakes its waiters.
func (f *flight) applyChange(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *flight) endFailed(err error) {
	f.applyChange(func() { f.done, f.err = true, err })
	select {
	case <-f.ready:
	default:
		close(f.ready)
	}
}

// PanicError reports a panic during a download. Only that download failed.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// guardFlight is runFlight, except that a panic fails the flight.
func (c *Cache) guardFlight(ctx context.Context, f *flight, q Request, pin string) (inUse bool) {
	defer func() {
		if v := recover(); v != nil {
			inUse = false
			f.endFailed(&PanicError{Value: v, Stack: debug.Stack()})
		}
	}()
	return c.runFlight(ctx, f, q, pin)
}

// runFlight runs a flight. It reports whether ctx is still in use, by the body of
// an answer that isn't kept.
func (c *Cache) runFlight(ctx context.Context, f *flight, q Request, pin string) (inUse bool) {
	name := entryName(q, pin)
	unlock := c.lockDownload(ctx, name)
	defer unlock()
	old, content, found := c.readEntry(name, q.URL, q.Accept)
	if found && (pin != "" || c.isFresh(old, content, q)) { // another process was faster
		f.serveEntry(old, content)
		return false
	}
	if found {
		defer func() {
			if content != nil {
				_ = content.Close()
			}
		}()
	}
	header := q.fetchHeader()
	if found && q.Kind == Index {
		for from, to := range map[string]string{"Etag": "If-None-Match", "Last-Modified": "If-Modified-Since"} {
			if v := old.Header.Get(from); v != "" {
				header.Set(to, v)
			}
		}
	}
	res, err := q.Fetch(ctx, header)
	switch {
	case err != nil:
		f.endFailed(err)
	case res.StatusCode == http.StatusNotModified && found && q.Kind == Index:
		_ = res.Body.Close()
		old.Time = c.now()
		if err := c.writeEntry(old); err != nil {
			f.endFailed(err)
			break
		}
		f.serveEntry(old, content)
		content = nil // the flight closes it
	case !c.isKept(res):
		res.Body = &directBody{ReadCloser: res.Body, cancel: f.cancel}
		f.applyChange(func() { f.direct, f.done, f.err = res, true, errNotKept })
		close(f.ready)
		return true
	default:
		c.receiveBody(f, q, res)
		_ = res.Body.Close()
	}
	return false
}

func entryName(q Request, pin string) string {
	name := entryKey(q.URL, q.Accept)
	if pin != "" {
		name += "-" + pin
	}
	return name
}

// directBody is the body of an answer that isn't kept. Closing it ends the flight's
// context.
type directBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *directBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// serveEntry completes a flight with a content that is there already.
func (f *flight) serveEntry(e entry, content *os.File) {
	f.applyChange(func() { f.entry, f.file, f.written, f.done = e, content, e.Size, true })
	close(f.ready)
}

// lockDownload waits until no other process downloads the same entry, or for
// lockTime. Then it goes on without the lock.
func (c *Cache) lockDownload(ctx context.Context, name string) (unlock func()) {
	if c.temporary { // no other process uses the cache
		return func() {}
	}
	lock, err := state.Acquire(ctx, filepath.Join(c.dir, "tmp", name+".lock"), c.lockTime)
	if err != nil {
		return func() {}
	}
	return func() { _ = lock.Release() }
}

// receiveBody reads the body of an answer to keep. The last piece may be sent only
// after the whole has been checked.
func (c *Cache) receiveBody(f *flight, q Request, res *http.Response) {
	file, err := os.CreateTemp(filepath.Join(c.dir, "tmp"), "download-")
	if err != nil {
		f.endFailed(fmt.Errorf("create a file of the cache: %w", err))
		return
	}
	defer func() { _ = os.Remove(file.Name()) }() // unless it was renamed
	e := entry{URL: q.URL, Accept: q.Accept, Header: http.Header{}, Size: res.ContentLength, Time: c.now()}
	for _, name := range keptHeaders {
		if v := res.Header.Values(name); len(v) > 0 {
			e.Header[name] = v
		}
	}
	f.applyChange(func() { f.entry, f.file = e, file })
	close(f.ready)
	sum := sha256.New()
	var checked hash.Hash
	hashes := io.Writer(sum)
	if checked = q.Digest.newHash(); checked != nil {
		hashes = io.MultiWriter(sum, checked)
	}
	size, err := c.copyBody(f, io.MultiWriter(file, hashes), res.Body)
	if err != nil {
		f.endFailed(err)
		return
	}
	if checked != nil {
		if got := (Digest{Algorithm: q.Digest.Algorithm, Sum: hex.EncodeToString(checked.Sum(nil))}); got != q.Digest {
			f.endFailed(&DigestError{URL: q.URL, Want: q.Digest, Got: got})
			return
		}
		e.Checked = q.Digest
	}
	e.Size, e.SHA256 = size, hex.EncodeToString(sum.Sum(nil))
	if err := q.Lock.checkContent(e); err != nil {
		f.endFailed(err)
		return
	}
	if err := c.storeContent(e, file); err != nil {
		f.endFailed(err)
		return
	}
	f.applyChange(func() { f.entry, f.written, f.done = e, size, true })
}

// copyBody copies a body and lets all but the last piece be sent. It returns the
// size.
func (c *Cache) copyBody(f *flight, w io.Writer, body io.Reader) (int64, error) {
	var size int64
	buf := make([]byte, 64<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			before := size
			f.applyChange(func() { f.written = before })
			if _, err := w.Write(buf[:n]); err != nil {
				return size, fmt.Errorf("write a file of the cache: %w", err)
			}
			size += int64(n)
		}
		switch {
		case size > c.maxFileBytes:
			return size, fmt.Errorf("more than %d bytes", c.maxFileBytes)
		case errors.Is(err, io.EOF):
			return size, nil
		case err != nil:
			return size, err
		}
	}
}

func (c *Cache) storeContent(e entry, file *os.File) error {
	path := c.contentPath(e.SHA256)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("create a directory of the cache: %w", err)
	}
	var err error
	if !c.temporary {
		err = file.Sync()
	}
	if err := errors.Join(err, os.Rename(file.Name(), path)); err != nil {
		return fmt.Errorf("write a file of the cache: %w", err)
	}
	if err := c.writeEntry(e); err != nil {
		return err
	}
	c.limitVariants(hashText(e.URL))
	c.mu.Lock()
	c.used += e.Size
	full := c.used > c.maxBytes
	c.mu.Unlock()
	if full {
		return c.removeUnused()
	}
	return nil
}

// isFresh reports whether an entry may be used without asking the server.
func (c *Cache) isFresh(e entry, content io.ReadSeeker, q Request) bool {
	if q.Kind == Index {
		age := c.now().Sub(e.Time)
		return age >= 0 && age < IndexAge
	}
	sum := q.Digest.newHash()
	if sum == nil || q.Digest == e.Checked {
		return true
	}
	if q.Digest.Algorithm == "sha256" {
		return q.Digest.Sum == e.SHA256
	}
	_, err := io.Copy(sum, content)
	if err == nil {
		_, err = content.Seek(0, io.SeekStart)
	}
	return err == nil && hex.EncodeToString(sum.Sum(nil)) == q.Digest.Sum
}
