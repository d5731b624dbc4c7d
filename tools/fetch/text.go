package fetch

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html/charset"
	"golang.org/x/text/transform"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

const (
	// maxTextBytes bounds decoded text. The worst charset turns one byte into
	// three.
	maxTextBytes = 32 << 20
	// sampleBytes is the size of the sample that tells the charset, and whether the
	// body is text.
	sampleBytes = 4096
)

// isReadableType reports whether a media type is text. It accepts "": the bytes
// decide then.
func isReadableType(mediaType string) bool {
	if mediaType == "" || strings.HasPrefix(mediaType, "text/") {
		return true
	}
	kind, ok := strings.CutPrefix(mediaType, "application/")
	if !ok {
		return mediaType == "image/svg+xml" || strings.HasPrefix(mediaType, "message/")
	}
	for _, suffix := range []string{"+json", "+xml", "+yaml"} {
		if strings.HasSuffix(kind, suffix) {
			return true
		}
	}
	switch kind {
	case "json", "xml", "javascript", "ecmascript", "x-javascript", "yaml", "x-yaml", "toml", "x-toml", "graphql",
		"sql", "x-sh", "x-httpd-php", "x-ndjson", "jsonl", "json-seq", "x-tex", "rtf", "typescript", "x-www-form-urlencoded":
		return true
	}
	return false
}

// page is the text of a response for the model, with notes about it.
type page struct {
	text  string
	notes []string
}

func (p *page) addNote(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// newPage returns the text of a response, with HTML as Markdown unless raw is set.
// Its error is a *failure.
func newPage(r Response, raw bool) (page, error) {
	var p page
	text, err := decodeBody(r)
	if err != nil {
		return p, err
	}
	if !raw && isHTML(r, text) {
		text, err = p.convertHTML(text, r.URL)
		if err != nil {
			return p, err
		}
	}
	var hidden int
	p.text, hidden = removeInvisible(text)
	if hidden > 0 {
		p.addNote("%d invisible characters were left out", hidden)
	}
	return p, nil
}

// decodeBody returns the body as UTF-8. Like browsers, it finds the charset in
// the byte order mark, the Content-Type or the page itself.
func decodeBody(r Response) (string, error) {
	sample := r.Body[:min(len(r.Body), sampleBytes)]
	contentType := r.MediaType
	if r.Charset != "" {
		contentType += "; charset=" + r.Charset
	}
	enc, name, certain := charset.DetermineEncoding(sample, contentType)
	if !certain && utf8.Valid(r.Body) || strings.HasSuffix(r.MediaType, "json") {
		name = "utf-8"
	}
	text := string(r.Body)
	if name != "utf-8" {
		out, err := io.ReadAll(io.LimitReader(transform.NewReader(bytes.NewReader(r.Body), enc.NewDecoder()), maxTextBytes+1))
		if err != nil || len(out) > maxTextBytes {
			return "", newFailure("charset", "the response can't be read as %s", name)
		}
		text = string(out)
	}
	text = strings.ToValidUTF8(strings.TrimPrefix(text, "\ufeff"), "\ufffd")
	if isBinary(text) {
		return "", newFailure("content_type", "the response is no text, whatever its type says")
	}
	return text, nil
}

// isBinary reports whether the beginning of a text has a NUL, or many control
// characters or invalid bytes.
func isBinary(text string) bool {
	n, odd := 0, 0
	for _, r := range text {
		n++
		if n > sampleBytes {
			break
		}
		switch {
		case r == 0:
			return true
		case r == utf8.RuneError, r < ' ' && !strings.ContainsRune("\t\n\v\f\r\b\x1b", r):
			odd++
		}
	}
	return odd*10 > min(n, sampleBytes)
}

func isHTML(r Response, text string) bool {
	switch r.MediaType {
	case "text/html", "application/xhtml+xml":
		return true
	case "":
		head := strings.ToLower(strings.TrimSpace(text[:min(len(text), 512)]))
		return strings.HasPrefix(head, "<!doctype html") || strings.HasPrefix(head, "<html")
	}
	return false
}

// removeInvisible removes the characters that a model reads and a person doesn't
// see: controls, marks that reorder text, tags and zero-width characters. It keeps
// joiners in words and emoji.
func removeInvisible(text string) (cleaned string, hidden int) {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	last := ' '
	return strings.Map(func(r rune) rune {
		if isInvisible(r) || utf8text.IsJoiner(r) && !utf8text.MayJoin(last, r) {
			hidden++
			return -1
		}
		last = r
		return r
	}, text), hidden
}

func isInvisible(r rune) bool {
	switch {
	case r == '\n', r == '\t', r == '\u200c', r == '\u200d', r == '\u200e', r == '\u200f', r == '\u00ad':
		return false
	case r >= 0xe0100 && r <= 0xe01ef: // variation selectors that only encode
		return true
	}
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Zl, unicode.Zp)
}
