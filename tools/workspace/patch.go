package workspace

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// PatchContent returns what a patch makes of before, and the number of
// replacements. It changes no file. The Writer and the diff shown before an
// approval both use it, so that they agree. Errors have [KindInvalid],
// [KindNoMatch] or [KindTooLarge].
func (op Op) PatchContent(before []byte) (after []byte, replacements int, err error) {
	if op.Old == "" {
		return nil, 0, op.newError(KindInvalid, "the text to replace is empty; to create or overwrite a file, write it")
	}
	if op.Old == op.New {
		return nil, 0, op.newError(KindInvalid, "the old and the new text are the same; nothing would change")
	}
	old, repl := []byte(op.Old), []byte(op.New)
	at := findOccurrences(before, old)
	if len(at) == 0 && !strings.Contains(op.Old, "\r") { // the file's lines may end in \r\n
		crlf := bytes.ReplaceAll(old, []byte("\n"), []byte("\r\n"))
		if at = findOccurrences(before, crlf); len(at) > 0 {
			old, repl = crlf, bytes.ReplaceAll(bytes.ReplaceAll(repl, []byte("\r\n"), []byte("\n")), []byte("\n"), []byte("\r\n"))
		}
	}
	switch {
	case len(at) == 0:
		return nil, 0, op.newError(KindNoMatch, "0 matches for the text to replace"+op.noMatchHint(before))
	case len(at) > 1 && !op.ReplaceAll:
		return nil, 0, op.newError(KindNoMatch, fmt.Sprintf(
			"%d matches for the text to replace, on lines %s; add lines around it until it is the only one, or replace all",
			len(at), lineList(before, at)))
	}
	n := 1
	if op.ReplaceAll {
		n = bytes.Count(before, old)
	}
	if size := int64(len(before)) + int64(n)*int64(len(repl)-len(old)); size > MaxWriteBytes {
		return nil, 0, op.newError(KindTooLarge, fmt.Sprintf("the file would have %d bytes; at most %d can be written", size, MaxWriteBytes))
	}
	return bytes.Replace(before, old, repl, n), n, nil
}

func (op Op) newError(kind Kind, detail string) *Error {
	return &Error{Kind: kind, Path: abbreviatePath(op.Path), Detail: detail}
}

// maxOccurrences bounds the matches counted for an error.
const maxOccurrences = 1000

// findOccurrences returns the offsets of old in text. Overlapping ones count: "aa"
// is not unique in "aaa".
func findOccurrences(text, old []byte) []int {
	var at []int
	for from := 0; len(at) < maxOccurrences; {
		i := bytes.Index(text[from:], old)
		if i < 0 {
			break
		}
		at = append(at, from+i)
		from += i + 1
	}
	return at
}

func lineList(text []byte, at []int) string {
	const most = 10
	var lines []string
	line, from := 1, 0
	for _, off := range at[:min(len(at), most)] {
		line += bytes.Count(text[from:off], []byte("\n"))
		from = off
		lines = append(lines, strconv.Itoa(line))
	}
	lines = slices.Compact(lines)
	if len(at) > most {
		lines = append(lines, "…")
	}
	return strings.Join(lines, ", ")
}

func (op Op) noMatchHint(before []byte) string {
	switch {
	case len(before) == 0:
		return "; the file is empty"
	case strings.HasPrefix(op.Old, "\ufeff") || bytes.HasPrefix(before, []byte{0xff, 0xfe}):
		return "; the file or the text has a byte order mark"
	}
	if line := similarLine(before, op.Old); line > 0 {
		return fmt.Sprintf("; line %d differs from it in white space only: read the file and copy the text exactly", line)
	}
	return "; read the file and copy the text exactly, white space and line ends included"
}

// similarLine returns the number of the first line where old would match if white
// space didn't count, or 0.
func similarLine(before []byte, old string) int {
	var want []string
	for l := range strings.Lines(old) {
		want = append(want, collapseSpace(l))
	}
	want = slices.DeleteFunc(want, func(l string) bool { return l == "" })
	if len(want) == 0 || len(before) > 1<<20 {
		return 0
	}
	number, matched, start := 0, 0, 0
	for l := range strings.Lines(string(before)) {
		number++
		got := collapseSpace(l)
		switch got {
		case "":
			continue
		case want[matched]:
			matched++
		case want[0]:
			matched, start = 1, 0
		default:
			matched, start = 0, 0
		}
		if matched == 1 && start == 0 {
			start = number
		}
		if matched == len(want) {
			return start
		}
	}
	return 0
}

func collapseSpace(s string) string { return strings.Join(strings.Fields(s), " ") }
