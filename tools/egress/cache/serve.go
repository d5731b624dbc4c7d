package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Serve answers a program's request, which must be [Cacheable] and allowed by the
// policy. If it returns an error and Result.Status isn't 0, the answer is cut off,
// and the caller must close the connection. Errors come from Fetch and the disk, or
// are a *[DigestError] or *[NotLockedError].
func (c *Cache) Serve(w http.ResponseWriter, r *http.Request, q Request) (Result, error) {
	pin, err := q.Lock.findSum(q.URL, q.Accept)
	if err != nil {
		return Result{}, err
	}
	e, content, found := c.readEntry(entryName(q, pin), q.URL, q.Accept)
	if found {
		defer func() { _ = content.Close() }()
		if pin != "" || c.isFresh(e, content, q) {
			q.Lock.noteContent(e)
			return c.sendContent(w, r, e, content)
		}
	}
	f, first := c.joinFlight(q, pin)
	defer f.removeReader()
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
		return passResponse(w, direct)
	case errors.Is(err, errNotKept):
		return passResponse(w, direct)
	case err != nil:
		return Result{}, err
	}
	res, err := f.sendBody(w, r)
	res.Hit = res.Hit || !first && err == nil
	if err == nil {
		q.Lock.noteContent(entry{URL: q.URL, Accept: q.Accept, SHA256: res.SHA256})
	}
	return res, err
}

// passResponse sends an answer that isn't kept, without cookies.
func passResponse(w http.ResponseWriter, res *http.Response) (Result, error) {
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

// writeHead writes the head of an answer and returns the status. A body follows
// only 200.
func writeHead(w http.ResponseWriter, r *http.Request, e entry) (status int) {
	maps.Copy(w.Header(), e.Header)
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

// sendContent sends a content and checks its hash before the last piece.
func (c *Cache) sendContent(w http.ResponseWriter, r *http.Request, e entry, content io.Reader) (Result, error) {
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

// sendBody sends a download as it arrives. Without a body, it waits for the end.
func (f *flight) sendBody(w http.ResponseWriter, r *http.Request) (Result, error) {
	f.mu.Lock()
	e, fromDisk := f.entry, f.done && f.err == nil
	f.mu.Unlock()
	res := Result{Hit: fromDisk}
	res.Status = writeHead(w, r, e)
	flusher := http.NewResponseController(w)
	buf := make([]byte, 64<<10)
	for {
		f.mu.Lock()
		written, done, failed, changed := f.written, f.done, f.err, f.changed
		res.SHA256 = f.entry.SHA256
		f.mu.Unlock()
		for res.Status == http.StatusOK && res.Bytes < written {
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
		if res.Status == http.StatusOK { // others are only sent if the download is right
			_ = flusher.Flush() // a program waits for it
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return res, r.Context().Err()
		}
	}
}
