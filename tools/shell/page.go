package shell

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// page is one page of stored output. Only the page is held in memory.
type page struct {
	ctx  context.Context
	kept Kept
	room int

	text  []byte
	notes []string
	more  bool // output follows after the page
}

func (p *page) addNote(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// showBytes shows count bytes from offset. It moves both ends back to the start of
// a rune, so that consecutive pages contain every byte once.
func (p *page) showBytes(offset, count int64) error {
	if offset >= p.kept.Size {
		p.noteBeyondEnd("bytes", p.kept.Size)
		return nil
	}
	from, err := p.runeStart(offset)
	if err != nil {
		return err
	}
	text, err := p.readRange(from, min(count+offset-from, int64(p.room)))
	if err != nil {
		return err
	}
	if from+int64(len(text)) < p.kept.Size {
		whole := wholeHead(text)
		if len(whole) == 0 { // count is less than one rune
			whole, err = p.readRange(from, utf8.UTFMax)
			if err != nil {
				return err
			}
			_, n := utf8.DecodeRune(whole)
			whole = whole[:n]
		}
		text = whole
	}
	p.text = text
	p.noteRange(from, "")
	return nil
}

// runeStart returns the offset where the rune around offset starts, or offset.
func (p *page) runeStart(offset int64) (int64, error) {
	from := max(offset-(utf8.UTFMax-1), 0)
	around, err := p.readRange(from, offset-from+utf8.UTFMax)
	if err != nil {
		return 0, err
	}
	at := int(offset - from)
	for start := at; start >= 0; start-- {
		if !utf8.RuneStart(around[start]) {
			continue
		}
		if r, n := utf8.DecodeRune(around[start:]); start < at && (r == utf8.RuneError && n == 1 || start+n <= at) {
			break // no rune, or one that ends before at
		}
		return from + int64(start), nil
	}
	return offset, nil
}

func (p *page) showTail(count int64, ofBytes bool) error {
	if len(p.kept.Last) > 0 {
		p.showLast(count, ofBytes)
		return nil
	}
	if p.kept.Size == 0 {
		p.noteRange(0, "the end")
		return nil
	}
	from := max(p.kept.Size-int64(p.room), 0)
	if ofBytes {
		start, err := p.runeStart(max(p.kept.Size-count, from, 0))
		if err != nil {
			return err
		}
		from = max(start, from)
	}
	text, err := p.readRange(from, p.kept.Size-from)
	if err != nil {
		return err
	}
	if !ofBytes {
		cut := lastLines(text, count)
		if cut == 0 && from > 0 { // drop the incomplete first line if another follows
			if i := bytes.IndexByte(text, '\n'); i >= 0 && i+1 < len(text) {
				cut = i + 1
			}
		}
		text = text[cut:]
		from += int64(cut)
	}
	if from > 0 {
		whole := wholeTail(text)
		from += int64(len(text) - len(whole))
		text = whole
	}
	p.text = text
	p.noteRange(from, "the end")
	return nil
}

// showLast shows the end of output that is no longer stored but continues.
func (p *page) showLast(count int64, ofBytes bool) {
	text := p.kept.Last
	if over := len(text) - p.room; over > 0 {
		text = text[over:]
	}
	if ofBytes {
		text = text[max(int64(len(text))-count, 0):]
	} else {
		text = text[lastLines(text, count):]
	}
	p.text = wholeTail(text)
	p.addNote("the last %s so far, which are not kept", limits.FormatCount(len(p.text), "byte"))
}

// lastLines returns the offset of a text's last count lines.
func lastLines(text []byte, count int64) int {
	end := len(text)
	if end > 0 && text[end-1] == '\n' {
		end--
	}
	for ; count > 0; count-- {
		i := bytes.LastIndexByte(text[:end], '\n')
		if i < 0 {
			return 0
		}
		if count == 1 {
			return i + 1
		}
		end = i
	}
	return 0
}

func (p *page) showLines(first, count int64) error {
	first = max(first, 1)
	number, at, from := int64(0), int64(0), int64(-1)
	err := p.eachLine(func(line []byte, whole bool, size int64) bool {
		number++
		if number < first {
			at += size
			return true
		}
		if from < 0 {
			from = at
		}
		room := p.room - len(p.text)
		if number >= first+count || int64(room) < size && number > first {
			p.more = true
			return false
		}
		if int64(room) < size || !whole {
			cut := wholeHead(line[:min(len(line), room)])
			p.text = append(p.text, cut...)
			p.addNote("line %d has %d bytes, of which %d are shown; go on in it with unit bytes, offset %d, or with the next line", number, size, len(cut), at+int64(len(cut)))
			p.more = true
			number++
			return false
		}
		p.text = append(p.text, line...)
		at += size
		return true
	}, p.room+1)
	if err != nil {
		return err
	}
	switch {
	case from < 0:
		p.noteBeyondEnd("lines", number)
	case p.more:
		p.addNote("lines %d to %d; go on with offset %d", first, number-1, number)
	default:
		p.addNote("lines %d to %d, the end", first, number)
	}
	return nil
}

// showMatches shows matching lines with their numbers, from the line first.
func (p *page) showMatches(re *regexp.Regexp, first, most int64) error {
	first = max(first, 1)
	number, found := int64(0), int64(0)
	long := 0
	var b strings.Builder
	err := p.eachLine(func(line []byte, whole bool, _ int64) bool {
		number++
		if number < first {
			return true
		}
		if !whole {
			long++
		}
		at := re.FindIndex(bytes.TrimSuffix(line, []byte("\n")))
		if at == nil {
			return true
		}
		text := fmt.Sprintf("%d: %s\n", number, matchSnippet(bytes.TrimSuffix(line, []byte("\n")), at[0]))
		if found == most || b.Len()+len(text) > p.room {
			p.more = true
			return false
		}
		found++
		b.WriteString(text)
		return true
	}, matchLineBytes)
	if err != nil {
		return err
	}
	p.text = []byte(b.String())
	switch {
	case p.more:
		p.addNote("%s; there are more: go on with offset %d", limits.FormatCount(int(found), "match"), number)
	default:
		p.addNote("%s in %d lines", limits.FormatCount(int(found), "match"), max(number-first+1, 0))
	}
	if long > 0 {
		p.addNote("of lines longer than %d bytes only the beginning is searched: there are %d", matchLineBytes, long)
	}
	return nil
}

func matchSnippet(line []byte, at int) []byte {
	if len(line) <= snippetBytes {
		return line
	}
	from := max(min(at-snippetBytes/3, len(line)-snippetBytes), 0)
	out := wholeHead(wholeTail(line[from : from+snippetBytes]))
	if from > 0 {
		out = append([]byte("…"), out...)
	}
	if from+snippetBytes < len(line) {
		out = append(bytes.Clone(out), "…"...)
	}
	return out
}

// eachLine calls visit with every line, including its newline, until it returns
// false. visit gets at most most bytes of a line; size is the size of the whole
// line.
func (p *page) eachLine(visit func(line []byte, whole bool, size int64) bool, most int) error {
	in := bufio.NewReaderSize(io.NewSectionReader(p.kept, 0, p.kept.Size), 64<<10)
	var line []byte
	for n := 0; ; n++ {
		if n%1024 == 0 && p.ctx.Err() != nil {
			return context.Cause(p.ctx)
		}
		line = line[:0]
		size := int64(0)
		for {
			piece, err := in.ReadSlice('\n')
			size += int64(len(piece))
			if room := most - len(line); room > 0 {
				line = append(line, piece[:min(room, len(piece))]...)
			}
			if errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			if size == 0 {
				return nil
			}
			break
		}
		if !visit(line, int64(len(line)) == size, size) {
			return nil
		}
	}
}

// readRange reads count bytes at an offset, or fewer at the end.
func (p *page) readRange(at, count int64) ([]byte, error) {
	count = min(count, p.kept.Size-at)
	if count <= 0 {
		return nil, nil
	}
	buf := make([]byte, count)
	n, err := p.kept.ReadAt(buf, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return buf[:n], nil
}

func (p *page) noteBeyondEnd(unit string, have int64) {
	p.addNote("that is beyond the end: there are %d %s", have, unit)
}

func (p *page) noteRange(from int64, end string) {
	to := from + int64(len(p.text))
	switch {
	case end != "" || to >= p.kept.Size:
		p.addNote("bytes %d to %d, the end", from, to)
	default:
		p.more = true
		p.addNote("bytes %d to %d; go on with offset %d", from, to, to)
	}
}

// formatOutput returns the result for the model: a line about the output and the
// page, then the text.
func (p *page) formatOutput(handle string) tools.Output {
	var b strings.Builder
	fmt.Fprintf(&b, "[%s: ", handle)
	if p.kept.State != "" {
		b.WriteString(p.kept.State + "; ")
	}
	b.WriteString(limits.FormatCount(int(p.kept.Total), "byte"))
	if !p.kept.Whole {
		fmt.Fprintf(&b, ", of which the first %d are kept", p.kept.Size)
	} else if p.kept.Size != p.kept.Total {
		fmt.Fprintf(&b, ", %d as they are kept", p.kept.Size)
	}
	if p.kept.Redacted {
		b.WriteString(", secrets replaced")
	}
	for _, n := range p.notes {
		b.WriteString("; " + n)
	}
	if bad := countInvalid(p.text); bad > 0 {
		fmt.Fprintf(&b, "; lossy: %s that are not UTF-8 or NUL are shown as � or ␀", limits.FormatCount(bad, "byte"))
	}
	b.WriteString("]\n")
	writeLine(&b, p.text)
	return tools.Output{
		Content: []tools.Block{{Text: b.String()}}, Success: true, Truncated: p.more,
		Metadata: map[string]any{"handle": handle, "bytes_kept": p.kept.Size, "bytes_shown": len(p.text)},
	}
}

func countInvalid(text []byte) int {
	n := 0
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r == utf8.RuneError && size == 1 || r == 0 {
			n++
		}
		text = text[size:]
	}
	return n
}
