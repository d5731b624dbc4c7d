package egress

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"strconv"
	"strings"
	"sync"
	"time"
)

// responseWriter writes the response to one HTTP/1 request. It is an
// [http.ResponseWriter], [http.Flusher] and [http.Hijacker].
type responseWriter struct {
	c      *client
	header http.Header
	// head reports whether the response has no body, old whether the program speaks
	// HTTP/1.0.
	head, old bool
	body      *requestBody

	mu       sync.Mutex // guards what follows, because of interim responses
	bw       *bufio.Writer
	wrote    bool
	closing  bool // whether the connection ends after the response
	hijacked bool
	left     int64 // bytes of the body that are missing, if it has a length
	hasBody  bool
	chunks   io.WriteCloser
	trailers []string
	err      error
}

// newResponseWriter returns a writer for the response to a request. Nil is a
// request that was not understood: the connection ends after the response.
func newResponseWriter(c *client, req *http.Request) *responseWriter {
	w := &responseWriter{c: c, header: http.Header{}, bw: bufio.NewWriter(c)}
	if req == nil {
		w.closing = true
		return w
	}
	w.head, w.old, w.closing = req.Method == http.MethodHead, !req.ProtoAtLeast(1, 1), req.Close
	return w
}

func (w *responseWriter) Header() http.Header { return w.header }

// WriteHeader may be called with interim statuses first.
func (w *responseWriter) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(status)
}

func (w *responseWriter) writeHeader(status int) {
	switch {
	case w.wrote || w.hijacked:
		return
	case status < 200 && status != http.StatusSwitchingProtocols:
		if !w.old {
			w.writeHead(status)
			w.flushBuffer()
		}
		return
	}
	w.wrote = true
	h := w.header
	for _, name := range []string{"Connection", "Transfer-Encoding", "Keep-Alive", "Proxy-Connection"} {
		h.Del(name)
	}
	for _, names := range h["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			w.trailers = append(w.trailers, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	w.hasBody = !w.head && status != http.StatusNoContent && status != http.StatusNotModified
	length, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	switch {
	case err == nil && len(h["Content-Length"]) == 1 && length >= 0 && (len(w.trailers) == 0 || w.old || !w.hasBody):
		w.left = length // trailers need chunks
	case !w.hasBody:
		h.Del("Content-Length")
	case w.old:
		h.Del("Content-Length")
		w.closing = true
		w.left = -1
	default:
		h.Del("Content-Length")
		h.Set("Transfer-Encoding", "chunked")
		w.chunks = httputil.NewChunkedWriter(w.bw)
	}
	if w.closing {
		h.Set("Connection", "close")
	}
	w.writeHead(status)
}

func (w *responseWriter) writeHead(status int) {
	text := http.StatusText(status)
	if text == "" {
		text = "status"
	}
	_, err := fmt.Fprintf(w.bw, "HTTP/1.1 %d %s\r\n", status, text)
	if err == nil {
		err = w.header.WriteSubset(w.bw, w.trailerSet())
	}
	if err == nil {
		_, err = w.bw.WriteString("\r\n")
	}
	w.keepError(err)
}

// trailerSet returns the header fields to write after the body.
func (w *responseWriter) trailerSet() map[string]bool {
	out := map[string]bool{}
	for _, name := range w.trailers {
		out[name] = true
	}
	for name := range w.header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			out[name] = true
		}
	}
	return out
}

func (w *responseWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	switch {
	case w.err != nil:
		return 0, w.err
	case w.hijacked:
		return 0, http.ErrHijacked
	case !w.hasBody:
		return 0, http.ErrBodyNotAllowed
	case w.chunks != nil:
		n, err := w.chunks.Write(p)
		w.keepError(err)
		return n, err
	case w.left >= 0 && int64(len(p)) > w.left:
		w.keepError(http.ErrContentLength)
		return 0, w.err
	}
	if w.left >= 0 {
		w.left -= int64(len(p))
	}
	n, err := w.bw.Write(p)
	w.keepError(err)
	return n, err
}

func (w *responseWriter) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	w.flushBuffer()
}

func (w *responseWriter) flushBuffer() { w.keepError(w.bw.Flush()) }

func (w *responseWriter) keepError(err error) {
	if w.err == nil {
		w.err = err
	}
}

// Hijack returns a connection that also reads what the program has sent already.
func (w *responseWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrote || w.hijacked {
		return nil, nil, errors.New("the response has begun")
	}
	w.hijacked = true
	conn := netConn{w.c}
	return conn, bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn)), nil
}

// SetWriteDeadline sets the time until which the program must have received what is
// written. The zero time means that only the idle time counts.
func (w *responseWriter) SetWriteDeadline(t time.Time) error {
	by := int64(0)
	if !t.IsZero() {
		by = t.UnixNano()
	}
	w.c.writeBy.Store(by)
	return nil
}

func (w *responseWriter) setClosing() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closing = true
}

func (w *responseWriter) writeContinue() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.wrote || w.hijacked {
		return nil
	}
	_, err := w.bw.WriteString("HTTP/1.1 100 Continue\r\n\r\n")
	w.keepError(err)
	w.flushBuffer()
	return w.err
}

// finishResponse ends the response. An error means that the program got no complete
// response.
func (w *responseWriter) finishResponse() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	if w.hasBody && w.left > 0 {
		w.keepError(io.ErrUnexpectedEOF)
	}
	if w.err == nil && w.chunks != nil {
		w.writeTrailers()
	}
	if w.err == nil {
		w.flushBuffer()
	}
	return w.err
}

func (w *responseWriter) writeTrailers() {
	w.keepError(w.chunks.Close())
	trailers := http.Header{}
	for name := range w.trailerSet() {
		if values := w.header[name]; len(values) > 0 {
			trailers[strings.TrimPrefix(name, http.TrailerPrefix)] = values
		}
	}
	w.keepError(trailers.Write(w.bw))
	_, err := w.bw.WriteString("\r\n")
	w.keepError(err)
}

// requestBody is the body of a request. If the program waits for 100 Continue, the
// first Read sends it.
type requestBody struct {
	io.ReadCloser
	w *responseWriter

	mu           sync.Mutex
	mustContinue bool
	done         bool // whether it was read to its end
}

func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	ask := b.mustContinue
	b.mustContinue = false
	b.mu.Unlock()
	if ask {
		if err := b.w.writeContinue(); err != nil {
			return 0, err
		}
	}
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		b.mu.Lock()
		b.done = true
		b.mu.Unlock()
	}
	return n, err
}

// Close leaves the rest of the body where it is: reading it could take forever.
func (*requestBody) Close() error { return nil }

func (b *requestBody) isDone() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.done
}
