package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"html"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

// minHeld is the number of bytes at the end of a body that must match a spelling to
// be held back until the next bytes arrive. Fewer are sent at once: requests whose
// body is a dialogue would wait for each other.
const minHeld = 8

// spellText returns the spellings of a text to look for: as it is, in hexadecimal,
// and in base64 at each offset.
func spellText(text string) [][]byte {
	list := [][]byte{[]byte(text), []byte(hex.EncodeToString([]byte(text))), []byte(strings.ToUpper(hex.EncodeToString([]byte(text))))}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for before := range 3 {
			list = append(list, base64Inner(enc, text, before))
		}
	}
	return list
}

// base64Inner returns the part of a text's base64 that doesn't depend on the
// surrounding bytes, if before bytes modulo 3 precede the text.
func base64Inner(enc *base64.Encoding, text string, before int) []byte {
	encoded := enc.EncodeToString([]byte(strings.Repeat("\x00", before) + text))
	from := (before*8 + 5) / 6
	to := (before + len(text)) * 8 / 6
	return []byte(encoded[from:to])
}

// unescaper decodes percent-encoding and JSON's \u escapes of ASCII, and drops line
// breaks, in a text that arrives in pieces.
type unescaper struct{ pending []byte }

func (u *unescaper) appendPlain(dst, p []byte) []byte {
	text := append(u.pending, p...)
	u.pending = nil
	for i := 0; i < len(text); i++ {
		if plain := bytes.IndexAny(text[i:], "\r\n%\\"); plain != 0 {
			if plain < 0 {
				plain = len(text) - i
			}
			dst = append(dst, text[i:i+plain]...)
			i += plain - 1
			continue
		}
		size, prefix := 1, ""
		switch text[i] {
		case '\r', '\n':
			continue
		case '%':
			size, prefix = 3, "%"
		case '\\':
			size, prefix = 6, `\u00`
		}
		rest := text[i:min(i+size, len(text))]
		if len(rest) < size && strings.HasPrefix(prefix, string(rest[:min(len(rest), len(prefix))])) {
			u.pending = slices.Clone(rest)
			return dst
		}
		if len(rest) == size && size > 1 && bytes.HasPrefix(rest, []byte(prefix)) {
			if c, err := strconv.ParseUint(string(rest[len(prefix):]), 16, 8); err == nil {
				dst = append(dst, byte(c))
				i += size - 1
				continue
			}
		}
		dst = append(dst, text[i])
	}
	return dst
}

// scanner looks for placeholders in a text that arrives in pieces.
type scanner struct {
	set       *Set
	unescaper unescaper
	raw       []byte // the end of what arrived, shorter than a spelling
	plain     []byte // the same, unescaped
}

// scanBytes returns the name of the secret whose placeholder ends in p, or "".
func (s *scanner) scanBytes(p []byte) string {
	s.raw = append(s.raw, p...)
	s.plain = s.unescaper.appendPlain(s.plain, p)
	longest := 1
	for i := range s.set.entries {
		e := &s.set.entries[i]
		for _, spelling := range e.misplaced {
			if bytes.Contains(s.raw, spelling) || bytes.Contains(s.plain, spelling) {
				return e.Name
			}
			longest = max(longest, len(spelling))
		}
	}
	s.raw = slices.Clone(s.raw[max(0, len(s.raw)-longest+1):])
	s.plain = slices.Clone(s.plain[max(0, len(s.plain)-longest+1):])
	return ""
}

// countHeld returns how many bytes at the end of the text may begin a placeholder.
func (s *scanner) countHeld() int {
	held := 0
	for i := range s.set.entries {
		for _, spelling := range s.set.entries[i].misplaced {
			held = max(held, matchBeginning(s.raw, spelling, minHeld))
		}
	}
	return held
}

// matchBeginning returns the length of the longest proper prefix of want that ends
// text, or 0 if it is shorter than shortest.
func matchBeginning(text, want []byte, shortest int) int {
	for n := min(len(text), len(want)-1); n >= shortest; n-- {
		if bytes.HasSuffix(text, want[:n]) {
			return n
		}
	}
	return 0
}

// filter passes a stream through step. step gets the bytes that were not passed on
// yet, of which the last n have just arrived, and the error behind them. It may change
// the bytes and the error, and returns how many bytes at the end to keep back.
type filter struct {
	io.ReadCloser
	step  func(data []byte, n int, err error) (held int, _ error)
	buf   [16 << 10]byte
	held  []byte
	ready []byte
	err   error
}

func (f *filter) Read(p []byte) (int, error) {
	for len(f.ready) == 0 {
		if f.err != nil {
			return 0, f.err
		}
		n, err := f.ReadCloser.Read(f.buf[:])
		data := append(f.held, f.buf[:n]...)
		held, err := f.step(data, n, err)
		f.ready = data[:len(data)-held]
		f.held = slices.Clone(data[len(data)-held:])
		f.err = err
	}
	n := copy(p, f.ready)
	f.ready = f.ready[n:]
	return n, nil
}

// sentBody is a request body, which must not hold a placeholder. The ones of the
// target's own secrets pass unchanged: they are worth nothing, and a program that has
// printed its environment may have one in each later request.
type sentBody struct {
	filter
	request   *http.Request // for its trailer
	set       *Set
	scan      scanner
	misplaced func(*MisplacedError)
}

func newSentBody(s *Set, r *http.Request, target rule.Origin, misplaced func(*MisplacedError)) *sentBody {
	others := slices.DeleteFunc(slices.Clone(s.entries), func(e entry) bool { return e.isFor(target) })
	b := &sentBody{request: r, set: s, scan: scanner{set: &Set{entries: others}}, misplaced: misplaced}
	b.ReadCloser = r.Body
	b.step = b.checkBytes
	return b
}

func (b *sentBody) checkBytes(data []byte, n int, err error) (held int, _ error) {
	if name := b.scan.scanBytes(data[len(data)-n:]); name != "" {
		return len(data), b.refuseBody(&MisplacedError{Secret: name, Where: "body"})
	}
	if err == nil {
		return min(b.scan.countHeld(), len(data)), nil
	}
	if errors.Is(err, io.EOF) {
		for name, values := range b.request.Trailer {
			for _, value := range values {
				if e, ok := errors.AsType[*MisplacedError](b.set.checkText(value, "trailer "+name)); ok {
					return len(data), b.refuseBody(e)
				}
			}
		}
	}
	return 0, err
}

func (b *sentBody) refuseBody(e *MisplacedError) error {
	if b.misplaced != nil {
		b.misplaced(e)
	}
	return e
}

// echo is a spelling of a secret's value and its replacement, of the same length so
// that lengths and frames stay valid.
type echo struct{ from, to []byte }

// echoesOf returns the spellings of a value, longest first.
func echoesOf(value, placeholder string) []echo {
	var list []echo
	add := func(from, to []byte) {
		if len(from) < MinBytes || slices.ContainsFunc(list, func(e echo) bool { return bytes.Equal(e.from, from) }) {
			return
		}
		if len(to) != len(from) {
			to = bytes.Repeat([]byte("*"), len(from))
		}
		list = append(list, echo{from: from, to: to})
	}
	spellings := spellText(placeholder)
	for i, from := range spellText(value) {
		add(from, spellings[i])
	}
	quoted := strconv.Quote(value)
	forJSON, err := json.Marshal(value) // escapes more than Quote
	if err != nil {
		forJSON = []byte(quoted) // can't happen
	}
	for _, from := range []string{
		url.QueryEscape(value), url.PathEscape(value), html.EscapeString(value), strings.ReplaceAll(value, "/", `\/`),
		quoted[1 : len(quoted)-1], string(forJSON[1 : len(forJSON)-1]),
	} {
		add([]byte(from), nil)
	}
	slices.SortStableFunc(list, func(a, b echo) int { return len(b.from) - len(a.from) })
	return list
}
