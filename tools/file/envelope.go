package file

import (
	"regexp"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

type action string

const (
	actionAdd    action = "Add"
	actionUpdate action = "Update"
	actionDelete action = "Delete"
)

// section is one file of a patch. Line numbers count the patch's lines, from 1.
type section struct {
	action action
	path   string
	to     string
	line   int
	// lines are an added file's lines. open means that the last has no newline.
	lines []string
	open  bool
	hunks []hunk
}

type hunk struct {
	line int
	// anchors are lines of the file, in order. The hunk comes at or after the last.
	anchors []string
	lines   []hunkLine
	atEnd   bool
	// oldOpen and newOpen mean that the last old or new line has no newline.
	oldOpen, newOpen bool
}

// hunkLine is a line of a hunk: op is ' ' (stays), '-' (goes) or '+' (comes).
type hunkLine struct {
	op   byte
	text string
}

// envelope reads the patch format that GPT models write:
//
//	*** Begin Patch
//	*** Add File: PATH            then "+" lines
//	*** Delete File: PATH
//	*** Update File: PATH
//	*** Move to: PATH             optional
//	@@ a line of the file         optional, several narrow the place down
//	 context
//	-old
//	+new
//	*** End of File               optional
//	*** End Patch
//
// Tolerated, because models write it and the meaning is clear: a here document or
// code fence around the patch; lines that all end in \r\n; "***" without a space,
// or repeated at the end; other capitals; an empty line for an empty context line,
// or in an added file; unified line numbers after @@ and file names before it;
// "\ No newline at end of file"; an @@ line with nothing after it.
//
// Refused, with the line and the fix: a missing *** End Patch (the patch may be cut
// off), text around the envelope, a line without its sign, an unknown header.
type envelope struct {
	lines []string
	at    int
}

func parsePatch(text string) ([]section, error) {
	e := envelope{lines: patchLines(text)}
	closers, err := e.readBegin()
	if err != nil {
		return nil, err
	}
	var sections []section
	for {
		if e.at == len(e.lines) {
			return nil, badPatch(e.at, "the patch has no *** End Patch line, so it may be cut off; send it whole")
		}
		line := e.lines[e.at]
		name, value, ok := parseHeader(line)
		switch {
		case strings.TrimSpace(line) == "":
			e.at++
		case ok && name == headerEnd:
			e.at++
			if err := e.checkRest(closers); err != nil {
				return nil, err
			}
			if len(sections) == 0 {
				return nil, badPatch(e.at, "the patch changes no file; name at least one with *** Update File:, *** Add File: or *** Delete File:")
			}
			return sections, nil
		case !ok:
			return nil, badPatch(e.at+1, "a header was expected (*** Update File:, *** Add File: or *** Delete File:), not %s", quoteStart(line))
		default:
			s, err := e.readSection(name, value)
			if err != nil {
				return nil, err
			}
			sections = append(sections, s)
		}
	}
}

// patchLines splits a patch. If every line ends in \r\n, the \r comes from the
// transport.
func patchLines(text string) []string {
	text = strings.TrimPrefix(text, "\ufeff")
	lines := strings.Split(text, "\n")
	last := len(lines) - 1
	for _, l := range lines[:last] {
		if !strings.HasSuffix(l, "\r") {
			return lines
		}
	}
	if last > 0 {
		for i := range lines {
			lines[i] = strings.TrimSuffix(lines[i], "\r")
		}
	}
	return lines
}

const (
	headerBegin   = "Begin Patch"
	headerEnd     = "End Patch"
	headerEndFile = "End of File"
	headerAdd     = "Add File:"
	headerUpdate  = "Update File:"
	headerDelete  = "Delete File:"
	headerMove    = "Move to:"
)

// parseHeader reads a line that begins with three stars. The name is "" if it is
// unknown.
func parseHeader(line string) (name, value string, ok bool) {
	rest, ok := strings.CutPrefix(line, "***")
	if !ok {
		return "", "", false
	}
	rest = strings.TrimSpace(rest)
	for _, name := range []string{headerAdd, headerUpdate, headerDelete, headerMove} {
		if len(rest) >= len(name) && strings.EqualFold(rest[:len(name)], name) {
			return name, strings.TrimSpace(rest[len(name):]), true
		}
	}
	rest = strings.TrimSpace(strings.TrimRight(rest, "*"))
	for _, name := range []string{headerBegin, headerEnd, headerEndFile} {
		if strings.EqualFold(rest, name) {
			return name, "", true
		}
	}
	return "", rest, true
}

// hereDocument matches the first line of a patch that was written for a shell.
var hereDocument = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:\S+\s+)*(?:apply_?patch\s*)?<<-?\s*['"]?([^\s'"]+)['"]?$`)
})

// readBegin reads up to *** Begin Patch. It returns the lines that may follow the
// patch, because their counterparts came before it.
func (e *envelope) readBegin() (closers []string, err error) {
	for ; e.at < len(e.lines); e.at++ {
		line := strings.TrimSpace(e.lines[e.at])
		if name, _, ok := parseHeader(line); ok && name == headerBegin {
			e.at++
			return closers, nil
		}
		switch doc := hereDocument().FindStringSubmatch(line); {
		case line == "", line == "apply_patch":
		case strings.HasPrefix(line, "```"):
			closers = append(closers, "```")
		case doc != nil:
			closers = append(closers, doc[1])
		default:
			return nil, badPatch(e.at+1, "the first line must be *** Begin Patch, not %s", quoteStart(line))
		}
	}
	return nil, badPatch(1, "the patch has no *** Begin Patch line; it begins with that and ends with *** End Patch")
}

func (e *envelope) checkRest(closers []string) error {
	for ; e.at < len(e.lines); e.at++ {
		line := strings.TrimSpace(e.lines[e.at])
		expected := line == ""
		for _, c := range closers {
			expected = expected || line == c
		}
		if !expected {
			return badPatch(e.at+1, "there is text after *** End Patch: %s; put all files into one patch", quoteStart(line))
		}
	}
	return nil
}

func (e *envelope) readSection(name, path string) (section, error) {
	s := section{path: path, line: e.at + 1}
	e.at++
	switch name {
	case headerAdd:
		s.action = actionAdd
	case headerUpdate:
		s.action = actionUpdate
	case headerDelete:
		s.action = actionDelete
	case headerBegin:
		return s, badPatch(s.line, "a second *** Begin Patch; put all files into one patch")
	case headerMove:
		return s, badPatch(s.line, "*** Move to: stands directly below *** Update File:")
	case headerEndFile:
		return s, badPatch(s.line, "*** End of File stands at the end of a hunk of *** Update File:")
	default:
		return s, badPatch(s.line, "there is no header *** %s; there are *** Update File:, *** Add File: and *** Delete File:", clipLine(path))
	}
	if path == "" {
		return s, badPatch(s.line, "*** %s names no file", name)
	}
	switch s.action {
	case actionAdd:
		return s, e.readAdded(&s)
	case actionUpdate:
		return s, e.readUpdated(&s)
	}
	return s, nil
}

// readAdded reads a new file's lines. Empty lines at the end are only separators.
func (e *envelope) readAdded(s *section) error {
	blank := 0
	for ; e.at < len(e.lines); e.at++ {
		line := e.lines[e.at]
		if _, _, ok := parseHeader(line); ok {
			return nil
		}
		switch {
		case line == "":
			blank++
		case line[0] == '+':
			for ; blank > 0; blank-- {
				s.lines = append(s.lines, "")
			}
			s.lines = append(s.lines, line[1:])
		case isNoNewline(line) && len(s.lines) > 0 && blank == 0:
			s.open = true
		default:
			return badPatch(e.at+1, "each line of an added file begins with +, this one with %s", quoteStart(line))
		}
	}
	return nil
}

func isNoNewline(line string) bool {
	return strings.HasPrefix(line, `\ No newline`)
}

func (e *envelope) readUpdated(s *section) error {
	if e.at < len(e.lines) {
		if name, to, _ := parseHeader(e.lines[e.at]); name == headerMove {
			if to == "" {
				return badPatch(e.at+1, "*** Move to: names no file")
			}
			s.to = to
			e.at++
		}
	}
	e.skipFileNames()
	for e.at < len(e.lines) {
		if e.lines[e.at] == "" {
			e.at++
			continue
		}
		if _, _, ok := parseHeader(e.lines[e.at]); ok {
			break
		}
		h, err := e.readHunk()
		if err != nil {
			return err
		}
		if len(h.lines) > 0 || len(h.anchors) > 0 { // else a stray @@
			s.hunks = append(s.hunks, h)
		}
	}
	if len(s.hunks) == 0 && s.to == "" {
		return badPatch(s.line, "*** Update File: %s has no hunk; add lines that begin with -, + or a space", clipLine(s.path))
	}
	return nil
}

// skipFileNames skips the two lines of a unified diff that name its files, if @@
// follows.
func (e *envelope) skipFileNames() {
	l := e.lines[e.at:]
	if len(l) > 2 && strings.HasPrefix(l[0], "--- ") && strings.HasPrefix(l[1], "+++ ") && strings.HasPrefix(l[2], "@@") {
		e.at += 2
	}
}

func (e *envelope) readHunk() (hunk, error) {
	h := hunk{line: e.at + 1}
	for ; e.at < len(e.lines) && strings.HasPrefix(e.lines[e.at], "@@"); e.at++ {
		if a := parseAnchor(e.lines[e.at]); a != "" {
			h.anchors = append(h.anchors, a)
		}
	}
	changes := false
	for ; e.at < len(e.lines) && !strings.HasPrefix(e.lines[e.at], "@@"); e.at++ {
		line := e.lines[e.at]
		name, _, ok := parseHeader(line)
		if ok && name == headerEndFile {
			h.atEnd = true
			e.at++
			break
		}
		if ok {
			break
		}
		switch {
		case line == "":
			h.lines = append(h.lines, hunkLine{op: blankLine})
		case line[0] == ' ' || line[0] == '-' || line[0] == '+':
			changes = changes || line[0] != ' '
			h.lines = append(h.lines, hunkLine{line[0], line[1:]})
		case isNoNewline(line) && len(h.lines) > 0:
			op := h.lines[len(h.lines)-1].op
			h.oldOpen = h.oldOpen || op != '+'
			h.newOpen = h.newOpen || op != '-'
		default:
			return h, badPatch(e.at+1, "each line of a hunk begins with a space, - or +, this one with %s", quoteStart(line))
		}
	}
	h.keepBlankLines()
	if !changes && (len(h.lines) > 0 || len(h.anchors) > 0) {
		return h, badPatch(h.line, "the hunk changes nothing: no line of it begins with - or +")
	}
	return h, nil
}

// blankLine marks an empty line in a hunk: empty context, or a separator at the
// end.
const blankLine = 0

func (h *hunk) keepBlankLines() {
	for len(h.lines) > 0 && h.lines[len(h.lines)-1].op == blankLine {
		h.lines = h.lines[:len(h.lines)-1]
	}
	for i := range h.lines {
		if h.lines[i].op == blankLine {
			h.lines[i].op = ' '
		}
	}
}

var lineNumbers = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^-\d+(,\d+)? \+\d+(,\d+)?( |$)`)
})

// parseAnchor returns the line of the file that an @@ line names, or "". It ignores
// line numbers: models' line numbers are wrong more often than right.
func parseAnchor(line string) string {
	a := strings.TrimSpace(strings.TrimPrefix(line, "@@"))
	if lineNumbers().MatchString(a + " ") {
		return ""
	}
	return strings.TrimSpace(strings.TrimSuffix(a, "@@"))
}

func badPatch(line int, format string, args ...any) error {
	return refuse("invalid_patch", "Line %d of the patch: "+format+". Nothing was changed.", append([]any{line}, args...)...)
}

func quoteStart(line string) string { return quotePath(clipLine(line)) }

func clipLine(s string) string { return utf8text.Clip(s, 120) }
