package redact

import (
	"bytes"
	"io"
	"slices"
)

// chunkBytes is how much of a stream is redacted at once. MaxKeyBytes is how
// much of its end waits for what follows: no key of a known shape is longer.
const (
	chunkBytes  = 64 << 10
	MaxKeyBytes = 4 << 10
	// percentBytes is the length of a byte that was percent-encoded twice:
	// %25XX.
	percentBytes = 5
)

// NewWriter returns a Writer to w, which it never closes.
func (r *Redactor) NewWriter(w io.Writer) *Writer {
	hold := MaxKeyBytes
	for _, s := range r.values {
		hold = max(hold, percentBytes*len(s.value))
	}
	return &Writer{r: r, w: w, hold: hold}
}

// Writer redacts a stream, also across the borders of its pieces, so it holds
// the end back until more is written. It is not safe for concurrent use.
type Writer struct {
	r    *Redactor
	w    io.Writer
	hold int
	buf  []byte
	// before has the last lookBehind bytes before buf.
	before []byte
	// wrote counts the bytes that were written to w; changed reports whether
	// anything was replaced.
	wrote   int64
	changed bool
}

// Write adds a piece of the stream. It returns errors of the writer below.
func (s *Writer) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), chunkBytes)
		s.buf, rest = append(s.buf, rest[:n]...), rest[n:]
		if len(s.buf) < chunkBytes+s.hold {
			continue
		}
		if err := s.writeFirst(s.findBorder(len(s.buf) - s.hold)); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Close writes what was held back. It does not close the writer below.
func (s *Writer) Close() error { return s.writeFirst(len(s.buf)) }

// findBorder returns the last offset up to at where a cut divides no secret. A
// run of key bytes longer than all that is held is not a key, and may be cut
// anywhere.
func (s *Writer) findBorder(at int) int {
	cut := at
	for cut > 0 && holdsTogether(s.buf[cut]) && holdsTogether(s.buf[cut-1]) {
		cut--
	}
	if cut == 0 {
		cut = at
	}
	for {
		last := cut
		cut = s.encodedBefore(pemCut(s.buf, cut))
		for _, v := range s.r.values {
			from := max(cut-len(v.value)+1, 0)
			to := min(cut+len(v.value)-1, len(s.buf))
			if i := bytes.Index(s.buf[from:to], v.value); i >= 0 {
				cut = from + i
			}
		}
		if cut == last {
			break
		}
	}
	if cut == 0 { // a value that overlaps itself repeatedly, unlike any random key
		return at
	}
	return cut
}

// encodedBefore returns the start of the percent-encoded secret that a cut
// would divide, or cut.
func (s *Writer) encodedBefore(cut int) int {
	first := max(cut-s.hold, 0)
	for _, p := range s.r.percentSpans(s.buf[first:min(cut+s.hold, len(s.buf))]) {
		if cut < first+p.to {
			return min(cut, first+p.from)
		}
	}
	return cut
}

// holdsTogether reports whether a byte can be in a key of a known shape, or in
// an escape of a URL.
func holdsTogether(c byte) bool { return c == '%' || keyByte(c) }

// keyByte reports whether a byte can be in a key of a known shape.
func keyByte(c byte) bool { return isOneOf(c, digits+letters+"_-") }

func (s *Writer) writeFirst(n int) error {
	if n == 0 {
		return nil
	}
	text := s.buf[:n]
	out := s.r.redactAfter(s.before, text)
	s.changed = s.changed || !bytes.Equal(out, text)
	s.before = append(s.before, text[max(0, n-lookBehind):]...)
	s.before = s.before[max(0, len(s.before)-lookBehind):]
	wrote, err := s.w.Write(out)
	s.wrote += int64(wrote)
	s.buf = append(s.buf[:0], s.buf[n:]...)
	return err
}

// Changed reports whether anything has been replaced so far.
func (s *Writer) Changed() bool { return s.changed }

// Written returns the number of bytes written so far.
func (s *Writer) Written() int64 { return s.wrote }

// HoldBytes returns how many bytes at the end of the stream may be held back.
// No secret is longer.
func (s *Writer) HoldBytes() int { return s.hold }

// Flush writes what is held back, except what may be the beginning of a secret:
// a key of a known shape, a part of a URL, a known value or a private key.
func (s *Writer) Flush() error {
	cut := s.unfinishedKey()
	for {
		begin := pemCut(s.buf[:cut], cut)
		from := max(begin-s.hold, 0)
		begin = from + s.r.unfinishedAt(s.buf[from:begin])
		if begin == cut {
			if cut == len(s.buf)-1 && endsInOpenCSI(s.buf[:cut]) {
				cut++ // this byte ends a control sequence, as a cursor movement before a pause
			}
			return s.writeFirst(cut)
		}
		cut = begin
	}
}

// unfinishedKey returns the offset from which the rest of buf may be the beginning
// of a key of a known shape, or a word with a part of an escape of a URL. If there
// is none, it returns len(buf).
func (s *Writer) unfinishedKey() int {
	first := len(s.buf)
	for first > 0 && holdsTogether(s.buf[first-1]) && len(s.buf)-first < s.hold {
		first--
	}
	if bytes.IndexByte(s.buf[first:], '%') >= 0 {
		return first
	}
	for i := first; i < len(s.buf); i++ {
		rest := s.buf[i:]
		if !slices.ContainsFunc(keyStarts[rest[0]], func(p []byte) bool { return bytes.HasPrefix(rest, p) || bytes.HasPrefix(p, rest) }) {
			continue
		}
		behind := append(slices.Clone(s.before), s.buf[max(0, i-lookBehind):i]...)
		if freeBefore(behind) || gluedKey(behind, rest) {
			return i
		}
	}
	return len(s.buf)
}
