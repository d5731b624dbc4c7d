package runner

import (
	"bytes"
	"io"
)

// redactChunk is how much of a stream is redacted at once, and redactHold how
// much of its end waits for what follows: no key is longer.
const (
	redactChunk = 64 << 10
	redactHold  = 4 << 10
	// percentBytes is how long a byte can become: %25XX.
	percentBytes = 5
)

// stream redacts a stream, across the borders of its pieces. What it holds back
// is written by close.
func (r *redactor) stream(w io.Writer) *redactedStream {
	hold := redactHold
	for _, s := range r.values {
		hold = max(hold, percentBytes*len(s.value))
	}
	return &redactedStream{r: r, w: w, hold: hold}
}

type redactedStream struct {
	r    *redactor
	w    io.Writer
	hold int
	buf  []byte
	// before is what stands before buf, as far as it is looked at.
	before []byte
	// wrote is the number of bytes that were written, changed says that they are
	// not all of the stream's own.
	wrote   int64
	changed bool
}

// Write takes a piece. Its error is the writer's.
func (s *redactedStream) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), redactChunk)
		s.buf, rest = append(s.buf, rest[:n]...), rest[n:]
		if len(s.buf) < redactChunk+s.hold {
			continue
		}
		if err := s.emit(s.border(len(s.buf) - s.hold)); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// Close writes what was held back. It does not close the writer below.
func (s *redactedStream) Close() error { return s.emit(len(s.buf)) }

// border gives a place at or before at where no secret is cut: before a byte
// that is in no key, and in no known secret. A run of key bytes that is longer
// than all that is held is no key, and is cut anywhere.
func (s *redactedStream) border(at int) int {
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
	if cut == 0 { // one that overlaps itself, over and over: no random key does
		return at
	}
	return cut
}

// encodedBefore returns the start of the percent-encoded secret that a cut at cut
// would part, or cut.
func (s *redactedStream) encodedBefore(cut int) int {
	first := max(cut-s.hold, 0)
	for _, p := range s.r.percentSpans(s.buf[first:min(cut+s.hold, len(s.buf))]) {
		if cut < first+p.to {
			return min(cut, first+p.from)
		}
	}
	return cut
}

// holdsTogether reports whether a byte can be in a key of a known shape, or in an
// escape of a URL.
func holdsTogether(c byte) bool { return c == '%' || keyByte(c) }

// keyByte says whether a byte can be in a key of a known shape.
func keyByte(c byte) bool { return isOneOf(c, digits+letters+"_-") }

// emit redacts and writes the first n bytes.
func (s *redactedStream) emit(n int) error {
	if n == 0 {
		return nil
	}
	text := s.buf[:n]
	out := s.r.after(s.before, text)
	s.changed = s.changed || !bytes.Equal(out, text)
	s.before = append(s.before, text[max(0, n-lookBehind):]...)
	s.before = s.before[max(0, len(s.before)-lookBehind):]
	wrote, err := s.w.Write(out)
	s.wrote += int64(wrote)
	s.buf = append(s.buf[:0], s.buf[n:]...)
	return err
}

// NewRedactingWriter is temporary.
func NewRedactingWriter(w io.Writer, secrets []Secret) *redactedStream {
	return newRedactor(secrets).stream(w)
}

// Changed reports whether anything was replaced so far.
func (s *redactedStream) Changed() bool { return s.changed }

// Written returns the number of bytes that were written so far.
func (s *redactedStream) Written() int64 { return s.wrote }

// HoldBytes returns how much of the end of the stream may be held back: no secret
// is longer.
func (s *redactedStream) HoldBytes() int { return s.hold }

// settle writes what is held back, but for what may be the beginning of a
// secret: of a key of a known shape or a part of a URL, of a known value, or of a
// private key.
func (s *redactedStream) settle() error {
	cut := len(s.buf)
	for cut > 0 && holdsTogether(s.buf[cut-1]) && len(s.buf)-cut < s.hold {
		cut--
	}
	for {
		begin := pemCut(s.buf[:cut], cut)
		from := max(begin-s.hold, 0)
		begin = from + s.r.unfinished(s.buf[from:begin])
		if begin == cut {
			return s.emit(cut)
		}
		cut = begin
	}
}
