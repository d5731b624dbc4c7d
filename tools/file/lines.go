package file

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	chunkBytes = 256 << 10
	// scanBytes bounds what is read of one file to find and count its lines. From
	// the page cache this takes some tenths of a second.
	scanBytes = 256 << 20
	// lineBytes bounds how much of a line is shown. Longer lines are minified code
	// or data.
	lineBytes = 2000
	// windowBytes leaves room for notes below [tools.DefaultResultBytes].
	windowBytes = 48_000
)

type window struct {
	from    int // from 1
	count   int
	numbers bool
}

type view struct {
	text strings.Builder
	last int // the last line shown, or 0
	// lines counts all lines, if whole is set.
	lines int
	whole bool
	// cutLines counts shortened lines, badBytes invalid UTF-8.
	cutLines, badBytes, nuls int
	crlf                     int
}

// readView reads r until the window is full, and then on to count the lines.
func (w window) readView(r io.Reader) (*view, error) {
	v := &view{}
	s := scanner{window: w, view: v}
	buf := make([]byte, chunkBytes)
	for read := 0; ; {
		n, err := r.Read(buf)
		s.feedBytes(buf[:n])
		read += n
		if errors.Is(err, io.EOF) {
			if s.length > 0 { // a line without a newline
				s.flushText(false)
			}
			v.whole = true
			return v, nil
		}
		if err != nil {
			return nil, err
		}
		if read >= scanBytes {
			return v, nil
		}
	}
}

// scanner splits its input into lines and keeps those in the window.
type scanner struct {
	window
	view *view
	// line is the beginning of the current line, length its full length so far.
	line   []byte
	length int
	full   bool
}

func (s *scanner) feedBytes(p []byte) {
	for len(p) > 0 {
		line, rest, ended := bytes.Cut(p, []byte{'\n'})
		if s.isWanted() {
			keep := min(len(line), max(0, lineBytes+utf8.UTFMax-len(s.line)))
			s.line = append(s.line, line[:keep]...)
		}
		s.length += len(line)
		if ended {
			s.flushText(true)
		}
		p = rest
	}
}

func (s *scanner) isWanted() bool {
	n := s.view.lines + 1
	return !s.full && n >= s.from && n-s.from < s.count
}

func (s *scanner) flushText(ended bool) {
	if s.isWanted() {
		s.showLine(ended)
	}
	s.view.lines++
	s.line, s.length = s.line[:0], 0
}

func (s *scanner) showLine(ended bool) {
	v := s.view
	shown, cut := cutLine(s.line, s.length)
	if s.numbers {
		number := strconv.Itoa(v.lines + 1)
		shown = strings.Repeat(" ", max(0, 6-len(number))) + number + "\t" + shown
	}
	if v.text.Len() > 0 && v.text.Len()+len(shown) > windowBytes {
		s.full = true
		return
	}
	if cut {
		v.cutLines++
	}
	bad, nuls := countInvalid(s.line)
	v.badBytes, v.nuls = v.badBytes+bad, v.nuls+nuls
	if ended && bytes.HasSuffix(s.line, []byte{'\r'}) {
		v.crlf++
	}
	v.text.WriteString(shown)
	if ended {
		v.text.WriteByte('\n')
	}
	v.last = v.lines + 1
}

// cutLine makes a line valid UTF-8 of at most lineBytes, plus a note of what was
// cut.
func cutLine(line []byte, length int) (text string, cut bool) {
	if length > lineBytes {
		at := min(lineBytes, len(line))
		for at > lineBytes-utf8.UTFMax && at < len(line) && !utf8.RuneStart(line[at]) {
			at--
		}
		return markInvalid(line[:at]) + " [… " + limits.FormatCount(length-at, "more byte") + " of this line]", true
	}
	return markInvalid(line), false
}

// markInvalid writes � for each invalid UTF-8 byte and ␀ for each NUL.
func markInvalid(b []byte) string {
	s := string(b)
	if !utf8.ValidString(s) {
		var out strings.Builder
		for _, r := range s { // one � for each invalid byte
			out.WriteRune(r)
		}
		s = out.String()
	}
	return strings.ReplaceAll(s, "\x00", "␀")
}

// countInvalid counts invalid UTF-8 bytes and NULs. A rune cut off at the very end
// doesn't count.
func countInvalid(b []byte) (bad, nuls int) {
	nuls = bytes.Count(b, []byte{0})
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 {
			if len(b) < utf8.UTFMax && !utf8.FullRune(b) {
				return bad, nuls
			}
			bad++
		}
		b = b[size:]
	}
	return bad, nuls
}

// fileStream reads a file with one bounded call of the Reader for each Read.
type fileStream struct {
	ctx    context.Context //nolint:containedctx // io.Reader has no other way; lives for one call
	reader workspace.View
	path   string
	offset int64
	ended  bool
}

// Read continues where the last piece ended. p must not be empty.
func (f *fileStream) Read(p []byte) (int, error) {
	if f.ended {
		return 0, io.EOF
	}
	got, err := f.reader.ReadFile(f.ctx, f.path, f.offset, int64(len(p)))
	if err != nil {
		return 0, err
	}
	n := copy(p, got.Data)
	f.offset += int64(n)
	f.ended = !got.Truncated || n == 0
	return n, nil
}
