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
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// flight is one download, which all requests for its URL wait for. The download
// continues while any of them does.
type flight struct {
	cancel context.CancelFunc
	// ready is closed when header and size are known, or the download has failed.
	ready chan struct{}

	mu      sync.Mutex
	readers int
	changed chan struct{} // closed and replaced at each change of what is below
	entry   entry         // its size is -1 until it is known
	file    *os.File
	written int64 // bytes that may be sent
	done    bool
	err     error
	// direct is an answer that isn't kept, for the request that began the download.
	direct *http.Response
}

// errNotKept is the error of a flight for requests that have to ask themselves,
// since the answer isn't one to keep.
var errNotKept = errors.New("the answer is not kept")

// keptHeaders are the headers of an answer that are kept. Cookies are not.
var keptHeaders = []string{"Content-Type", "Content-Disposition", "Etag", "Last-Modified", "X-Pypi-Last-Serial"}

// fetchHeader returns the headers of a request to the server.
func (q *Request) fetchHeader() http.Header {
	h := http.Header{"User-Agent": {"caisson"}, "Accept-Encoding": {"identity"}}
	if q.Accept != "" {
		h.Set("Accept", q.Accept)
	}
	return h
}

// isKept reports whether an answer is one to keep: whole, for everybody, and the
// same whatever a program sends.
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
	case res.ContentLength > c.opts.MaxFileBytes:
		return false
	}
	// The end of the connection alone doesn't show that the body is whole.
	return res.ContentLength >= 0 || res.ProtoMajor >= 2 || slices.Contains(res.TransferEncoding, "chunked")
}

// join returns the download of a request, and whether this call began it. Requests
// with other expectations of the content don't share one.
func (c *Cache) join(q Request, pin string) (*flight, bool) {
	name := strings.Join([]string{key(q.URL, q.Accept), pin, q.Digest.String()}, " ")
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.flights[name]; f != nil && f.enter() {
		return f, false
	}
	ctx, cancel := context.WithCancel(context.Background())
	// Its readers are this call and the goroutine.
	f := &flight{cancel: cancel, ready: make(chan struct{}), readers: 2, changed: make(chan struct{})}
	c.flights[name] = f
	go func() {
		if !c.download(ctx, f, q, pin) {
			cancel()
		}
		c.mu.Lock()
		if c.flights[name] == f {
			delete(c.flights, name)
		}
		c.mu.Unlock()
		f.leave()
	}()
	return f, true
}

// enter adds a request to a flight. It returns false if the flight has ended, or was
// cancelled since all of its requests had ended.
func (f *flight) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers <= 1 || f.done {
		return false
	}
	f.readers++
	return true
}

// leave ends the use of a flight. The last one closes its file. The last request
// cancels the download.
func (f *flight) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readers--
	if f.readers <= 1 && !f.done {
		f.cancel()
	}
	if f.readers == 0 && f.file != nil {
		_ = f.file.Close()
	}
}

// update changes a flight, and wakes who waits.
func (f *flight) update(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	close(f.changed)
	f.changed = make(chan struct{})
}

// fail ends a flight with an error.
func (f *flight) fail(err error) {
	f.update(func() { f.done, f.err = true, err })
	select {
	case <-f.ready:
	default:
		close(f.ready)
	}
}

// download runs a flight. It reports whether its context is still needed, by the
// body of an answer that isn't kept.
func (c *Cache) download(ctx context.Context, f *flight, q Request, pin string) (inUse bool) {
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
			if !f.uses(content) {
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
		f.fail(err)
	case res.StatusCode == http.StatusNotModified && found && q.Kind == Index:
		_ = res.Body.Close()
		old.Time = c.now()
		if err := c.writeEntry(old); err != nil {
			f.fail(err)
			break
		}
		f.serveEntry(old, content)
	case !c.isKept(res):
		res.Body = &directBody{ReadCloser: res.Body, cancel: f.cancel}
		f.update(func() { f.direct, f.done, f.err = res, true, errNotKept })
		close(f.ready)
		return true
	default:
		c.receive(f, q, res)
		_ = res.Body.Close()
	}
	return false
}

// entryName returns the name of the entry that answers a request.
func entryName(q Request, pin string) string {
	name := key(q.URL, q.Accept)
	if pin != "" {
		name += "-" + pin
	}
	return name
}

// uses reports whether a flight sends a content.
func (f *flight) uses(content *os.File) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file == content
}

// directBody is the body of an answer that isn't kept.
type directBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *directBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel()
	return err
}

// serveEntry makes a flight one for a content that is there already.
func (f *flight) serveEntry(e entry, content *os.File) {
	f.update(func() { f.entry, f.file, f.written, f.done = e, content, e.Size, true })
	close(f.ready)
}

// lockDownload waits until no other process downloads the same, or for lockTime.
func (c *Cache) lockDownload(ctx context.Context, name string) (unlock func()) {
	lock := flock.New(filepath.Join(c.dir, "tmp", name+".lock"))
	ctx, cancel := context.WithTimeout(ctx, c.lockTime)
	defer cancel()
	if ok, err := lock.TryLockContext(ctx, 20*time.Millisecond); err != nil || !ok {
		return func() {}
	}
	return func() { _ = lock.Unlock() }
}

// receive reads the body of an answer that is kept. The last piece may only be sent
// when the whole has been checked.
func (c *Cache) receive(f *flight, q Request, res *http.Response) {
	file, err := os.CreateTemp(filepath.Join(c.dir, "tmp"), "download-")
	if err != nil {
		f.fail(fmt.Errorf("create a file of the cache: %w", err))
		return
	}
	defer func() { _ = os.Remove(file.Name()) }() // unless it was renamed
	e := entry{URL: q.URL, Accept: q.Accept, Header: http.Header{}, Size: res.ContentLength, Time: c.now()}
	for _, name := range keptHeaders {
		if v := res.Header.Values(name); len(v) > 0 {
			e.Header[name] = v
		}
	}
	f.update(func() { f.entry, f.file = e, file })
	close(f.ready)
	sum := sha256.New()
	var checked hash.Hash
	hashes := io.Writer(sum)
	if checked = q.Digest.newHash(); checked != nil {
		hashes = io.MultiWriter(sum, checked)
	}
	size, err := c.copyBody(f, io.MultiWriter(file, hashes), res.Body)
	if err != nil {
		f.fail(err)
		return
	}
	if checked != nil {
		if got := (Digest{Algorithm: q.Digest.Algorithm, Sum: hex.EncodeToString(checked.Sum(nil))}); got != q.Digest {
			f.fail(&DigestError{URL: q.URL, Want: q.Digest, Got: got})
			return
		}
		e.Checked = q.Digest
	}
	e.Size, e.SHA256 = size, hex.EncodeToString(sum.Sum(nil))
	if err := q.Lock.check(e); err != nil {
		f.fail(err)
		return
	}
	if err := c.store(e, file); err != nil {
		f.fail(err)
		return
	}
	f.update(func() { f.entry, f.written, f.done = e, size, true })
}

// copyBody copies a body, and lets all but the last piece be sent. It returns the
// number of bytes.
func (c *Cache) copyBody(f *flight, w io.Writer, body io.Reader) (int64, error) {
	var size int64
	buf := make([]byte, 64<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			before := size
			f.update(func() { f.written = before })
			if _, err := w.Write(buf[:n]); err != nil {
				return size, fmt.Errorf("write a file of the cache: %w", err)
			}
			size += int64(n)
		}
		switch {
		case size > c.opts.MaxFileBytes:
			return size, fmt.Errorf("more than %d bytes", c.opts.MaxFileBytes)
		case errors.Is(err, io.EOF):
			return size, nil
		case err != nil:
			return size, err
		}
	}
}

// store puts a downloaded file and its entry into place.
func (c *Cache) store(e entry, file *os.File) error {
	path := c.contentPath(e.SHA256)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("create a directory of the cache: %w", err)
	}
	if err := errors.Join(file.Sync(), os.Rename(file.Name(), path)); err != nil {
		return fmt.Errorf("write a file of the cache: %w", err)
	}
	if err := c.writeEntry(e); err != nil {
		return err
	}
	c.mu.Lock()
	c.used += e.Size
	full := c.used > c.opts.MaxBytes
	c.mu.Unlock()
	if full {
		return c.prune()
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

// Serve answers a program's request, which must be [Cacheable], and one that the
// policy allows. If it returns an error and Result.Status isn't 0, the answer is cut
// off: the caller must close the connection. Errors are those of Fetch, a
// *[DigestError], a *[NotLockedError], and of the disk.
func (c *Cache) Serve(w http.ResponseWriter, r *http.Request, q Request) (Result, error) {
	pin, err := q.Lock.find(q.URL, q.Accept)
	if err != nil {
		return Result{}, err
	}
	e, content, found := c.readEntry(entryName(q, pin), q.URL, q.Accept)
	if found {
		defer func() { _ = content.Close() }()
		if pin != "" || c.isFresh(e, content, q) {
			q.Lock.note(e)
			return c.send(w, r, e, content)
		}
	}
	f, first := c.join(q, pin)
	defer f.leave()
	select {
	case <-f.ready:
	case <-r.Context().Done():
		return Result{}, r.Context().Err()
	}
	f.mu.Lock()
	direct, err := f.direct, f.err
	f.mu.Unlock()
	switch {
	case errors.Is(err, errNotKept) && q.Lock.IsStrict():
		if first {
			_ = direct.Body.Close()
		}
		return Result{}, &NotLockedError{URL: q.URL}
	case errors.Is(err, errNotKept) && !first:
		if direct, err = q.Fetch(r.Context(), q.fetchHeader()); err != nil {
			return Result{}, err
		}
		return pass(w, direct)
	case errors.Is(err, errNotKept):
		return pass(w, direct)
	case err != nil:
		return Result{}, err
	}
	res, err := f.send(w, r)
	res.Hit = res.Hit || !first && err == nil
	if err == nil {
		q.Lock.note(entry{URL: q.URL, Accept: q.Accept, SHA256: res.SHA256})
	}
	return res, err
}

// pass sends an answer that isn't kept, without cookies.
func pass(w http.ResponseWriter, res *http.Response) (Result, error) {
	defer func() { _ = res.Body.Close() }()
	for name, values := range res.Header {
		if !slices.Contains([]string{"Set-Cookie", "Connection", "Keep-Alive", "Transfer-Encoding", "Trailer", "Upgrade"}, name) {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(res.StatusCode)
	n, err := io.Copy(w, res.Body)
	return Result{Status: res.StatusCode, Bytes: n}, err
}

// writeHead writes the head of an answer. It reports whether a body follows.
func writeHead(w http.ResponseWriter, r *http.Request, e entry) (status int) {
	for name, values := range e.Header {
		w.Header()[name] = values
	}
	tag := e.Header.Get("Etag")
	if wanted := r.Header.Get("If-None-Match"); tag != "" && wanted != "" {
		for one := range strings.SplitSeq(wanted, ",") {
			if one = strings.TrimSpace(one); one == "*" || strings.TrimPrefix(one, "W/") == strings.TrimPrefix(tag, "W/") {
				w.WriteHeader(http.StatusNotModified)
				return http.StatusNotModified
			}
		}
	}
	if e.Size >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(e.Size, 10))
	}
	w.WriteHeader(http.StatusOK)
	return http.StatusOK
}

// send sends a content, and checks its hash before the last piece.
func (c *Cache) send(w http.ResponseWriter, r *http.Request, e entry, content io.Reader) (Result, error) {
	res := Result{Hit: true, SHA256: e.SHA256}
	if res.Status = writeHead(w, r, e); res.Status != http.StatusOK {
		return res, nil
	}
	sum := sha256.New()
	buf, last := make([]byte, 64<<10), make([]byte, 0, 64<<10)
	for {
		n, err := io.ReadFull(content, buf)
		if n > 0 {
			if _, err := w.Write(last); err != nil {
				return res, err
			}
			res.Bytes += int64(len(last))
			_, _ = sum.Write(buf[:n])
			last = append(last[:0], buf[:n]...)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return res, err
		}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != e.SHA256 {
		c.removeEntry(e)
		return res, &DigestError{URL: e.URL, Want: Digest{"sha256", e.SHA256}, Got: Digest{"sha256", got}}
	}
	_, err := w.Write(last)
	res.Bytes += int64(len(last))
	return res, err
}

// send sends what a flight downloads, as it arrives.
func (f *flight) send(w http.ResponseWriter, r *http.Request) (Result, error) {
	f.mu.Lock()
	e, fromDisk := f.entry, f.done && f.err == nil
	f.mu.Unlock()
	res := Result{Hit: fromDisk}
	if res.Status = writeHead(w, r, e); res.Status != http.StatusOK {
		return f.awaitEnd(r.Context(), res)
	}
	flusher := http.NewResponseController(w)
	buf := make([]byte, 64<<10)
	for {
		f.mu.Lock()
		written, done, failed, changed := f.written, f.done, f.err, f.changed
		res.SHA256 = f.entry.SHA256
		f.mu.Unlock()
		for res.Bytes < written {
			n, err := f.file.ReadAt(buf[:min(int64(len(buf)), written-res.Bytes)], res.Bytes)
			if n == 0 {
				return res, err
			}
			if _, err := w.Write(buf[:n]); err != nil {
				return res, err
			}
			res.Bytes += int64(n)
		}
		if done {
			return res, failed
		}
		_ = flusher.Flush() // a program waits for it
		select {
		case <-changed:
		case <-r.Context().Done():
			return res, r.Context().Err()
		}
	}
}

// awaitEnd waits for the end of a download whose body isn't sent.
func (f *flight) awaitEnd(ctx context.Context, res Result) (Result, error) {
	for {
		f.mu.Lock()
		done, failed, changed := f.done, f.err, f.changed
		res.SHA256 = f.entry.SHA256
		f.mu.Unlock()
		if done {
			return res, failed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return res, ctx.Err()
		}
	}
}
