package secret

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// CodingError reports a response in a coding that can't be searched for a secret.
type CodingError struct{ Coding string }

func (e *CodingError) Error() string {
	return fmt.Sprintf("a host that has a secret answered in the coding %q, not as it was asked to", e.Coding)
}

// echoesFrom returns the spellings of an origin's secrets.
func (s *Set) echoesFrom(o rule.Origin) []echo {
	if s == nil {
		return nil
	}
	var list []echo
	for i := range s.entries {
		if s.entries[i].isFor(o) {
			list = append(list, s.entries[i].echoes...)
		}
	}
	return list
}

// Hide replaces the values of an origin's secrets in its response: in headers, the
// body, trailers, and what follows a change of protocols. It decodes gzip. For
// other codings and partial content, it returns a *CodingError.
func (s *Set) Hide(res *http.Response, o rule.Origin) error {
	echoes := s.echoesFrom(o)
	if echoes == nil {
		return nil
	}
	hideHeader(res.Header, echoes)
	res.Status = "" // the host chooses its text
	coding := strings.ToLower(strings.Join(res.Header.Values("Content-Encoding"), ","))
	hidden := &receivedBody{response: res, echoes: echoes}
	hidden.ReadCloser = res.Body
	hidden.step = hidden.hideBytes
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols:
		if both, ok := res.Body.(io.ReadWriteCloser); ok {
			res.Body = &switchedBody{receivedBody: hidden, Writer: both}
			return nil
		}
	case coding == "gzip" || coding == "x-gzip":
		hidden.ReadCloser = &gzipBody{ReadCloser: res.Body}
		res.Header.Del("Content-Encoding")
		res.Header.Del("Content-Length")
		res.ContentLength = -1
	case coding != "" && coding != "identity":
		return &CodingError{Coding: coding}
	case res.StatusCode == http.StatusPartialContent: // parts of a value can't be found
		return &CodingError{Coding: "partial content"}
	}
	res.Body = hidden
	return nil
}

func hideHeader(h http.Header, echoes []echo) {
	for name, values := range h {
		lower := strings.ToLower(name)
		if slices.ContainsFunc(echoes, func(e echo) bool { return strings.Contains(lower, strings.ToLower(string(e.from))) }) {
			delete(h, name)
			continue
		}
		for i, value := range values {
			values[i] = string(replaceEchoes([]byte(value), echoes))
		}
	}
}

// replaceEchoes replaces values in place.
func replaceEchoes(text []byte, echoes []echo) []byte {
	for _, e := range echoes {
		for rest := text; ; {
			at := bytes.Index(rest, e.from)
			if at < 0 {
				break
			}
			copy(rest[at:], e.to)
			rest = rest[at+len(e.to):]
		}
	}
	return text
}

type receivedBody struct {
	filter
	response *http.Response // for its trailer
	echoes   []echo
}

func (b *receivedBody) hideBytes(data []byte, _ int, err error) (held int, _ error) {
	replaceEchoes(data, b.echoes)
	if err == nil {
		for _, e := range b.echoes {
			held = max(held, matchBeginning(data, e.from, 1))
		}
	}
	if errors.Is(err, io.EOF) {
		hideHeader(b.response.Trailer, b.echoes)
	}
	return held, err
}

// switchedBody is both directions of a connection that changed protocols.
type switchedBody struct {
	*receivedBody
	io.Writer
}

// gzipBody decodes gzip. An empty body, as for HEAD, stays empty.
type gzipBody struct {
	io.ReadCloser
	gzip *gzip.Reader
}

func (b *gzipBody) Read(p []byte) (int, error) {
	if b.gzip == nil {
		r, err := gzip.NewReader(b.ReadCloser)
		if err != nil {
			return 0, err
		}
		b.gzip = r
	}
	return b.gzip.Read(p)
}

// HideWriter returns a response writer that replaces the values of an origin's
// secrets in headers. [Set.Hide] doesn't see informational responses and trailers.
// Finish replaces values in the trailers. It must be called before the handler
// returns.
func (s *Set) HideWriter(w http.ResponseWriter, o rule.Origin) (_ http.ResponseWriter, finish func()) {
	echoes := s.echoesFrom(o)
	if echoes == nil {
		return w, func() {}
	}
	return &hidingWriter{ResponseWriter: w, echoes: echoes}, func() { hideHeader(w.Header(), echoes) }
}

type hidingWriter struct {
	http.ResponseWriter
	echoes []echo
}

func (w *hidingWriter) WriteHeader(status int) {
	hideHeader(w.Header(), w.echoes)
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (w *hidingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
