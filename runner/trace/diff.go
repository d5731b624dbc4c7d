package trace

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff/lcs"
)

// Bounds of what is kept of a patch: nobody reads more.
const (
	maxDiffFiles = 500
	maxDiffLines = 4000 // of all files
	maxFileLines = 1000
	// Changed words are marked in runs of at most so many deleted or added lines
	// and bytes.
	maxWordLines = 40
	maxWordBytes = 4 << 10
)

// FileDiff is what a unified diff says of one file. Its texts are untrusted, and
// not safe to display.
type FileDiff struct {
	// ID is the id of the file's heading on a page, or "" for none.
	ID string
	// Path is the file's name after the change, or before it if it was deleted.
	// It is "" for lines that belong to no file, such as remarks. Old is the name
	// before, if it was another.
	Path, Old string
	// Notes say what else happened to the file, such as "new" or "binary".
	Notes []string
	// Added and Deleted count the changed lines, also those that are left out.
	Added, Deleted int
	Lines          []DiffLine
	// Left counts the lines after Lines.
	Left int
}

// DiffLine is a line of a diff.
type DiffLine struct {
	// Class is "file" for a header whose content is in the FileDiff, "hunk",
	// "add", "del", or "" for other lines.
	Class string
	// Text has the line's newline, if there is one.
	Text string
	// Parts are the parts of Text without its newline, or nil if no words are
	// marked.
	Parts []DiffPart
}

// DiffPart is a part of a changed line.
type DiffPart struct {
	Text    string
	Changed bool
}

// Body returns the lines without the headers whose content is in f.
func (f FileDiff) Body() []DiffLine {
	return slices.DeleteFunc(slices.Clone(f.Lines), func(l DiffLine) bool { return l.Class == "file" })
}

func (f *FileDiff) note(text string) {
	if !slices.Contains(f.Notes, text) {
		f.Notes = append(f.Notes, text)
	}
}

// ParsePatch divides a unified diff into files, and marks changed words. It
// accepts every text. The lines of all files, in order, are the text, except for
// the lines left out of long ones.
func ParsePatch(text string) []FileDiff {
	var p patchParser
	for text != "" {
		end := strings.IndexByte(text, '\n') + 1
		if end == 0 {
			end = len(text)
		}
		p.addLine(text[:end], text[end:])
		text = text[end:]
	}
	for i := range p.files {
		f := &p.files[i]
		if i == maxDiffFiles { // all others
			*f = FileDiff{Left: f.Left + len(f.Lines)}
		}
		f.ID = fmt.Sprintf("file-%d", i+1)
		markRuns(f.Lines)
	}
	return p.files
}

// patchParser reads a patch line by line.
type patchParser struct {
	files []FileDiff
	lines int // that were kept
	// state is where the next line is, within a file.
	state patchState
	// oldLeft and newLeft are the lines that the hunk still has.
	oldLeft, newLeft int
	from             string // the name after ---
	mode             string // the old mode
}

type patchState int

const (
	inNothing patchState = iota
	inRemarks
	inHeader // after "diff --git"
	inNames  // after "---"
	inBody
)

// addLine adds a line. rest is the text after it.
func (p *patchParser) addLine(line, rest string) {
	if len(p.files) > maxDiffFiles {
		p.files[maxDiffFiles].Left++
		return
	}
	class := p.classOf(line, rest)
	if len(p.files) == 0 {
		p.begin(inBody)
	}
	f := p.file()
	switch class {
	case "add":
		f.Added++
	case "del":
		f.Deleted++
	}
	if p.lines == maxDiffLines || len(f.Lines) == maxFileLines {
		f.Left++
		return
	}
	p.lines++
	f.Lines = append(f.Lines, DiffLine{Class: class, Text: line})
}

func (p *patchParser) begin(state patchState) {
	p.files = append(p.files, FileDiff{})
	p.state = state
}

func (p *patchParser) file() *FileDiff { return &p.files[len(p.files)-1] }

// classOf returns the class of a line, and begins the file that begins with it.
func (p *patchParser) classOf(line, rest string) string {
	if class, ok := p.hunkLine(line); ok {
		return class
	}
	text := strings.TrimSuffix(line, "\n")
	switch {
	case strings.HasPrefix(text, "diff --git "):
		p.begin(inHeader)
		p.file().Path = gitName(text[len("diff --git "):])
		return "file"
	case strings.HasPrefix(text, "--- ") && p.areNames(rest):
		if p.state != inHeader {
			p.begin(inNames)
		}
		p.state = inNames
		p.from = cleanName(text[4:], "a/")
		return "file"
	case strings.HasPrefix(text, "+++ ") && p.state == inNames:
		p.state = inBody
		p.setNames(p.from, cleanName(text[4:], "b/"))
		return "file"
	case strings.HasPrefix(text, "@@ -") && p.beginHunk(text):
		return "hunk"
	case strings.HasPrefix(text, "rename from ") && p.state != inHeader: // apply_patch writes no "diff --git"
		p.begin(inHeader)
		p.headerLine(text)
		return "file"
	case strings.HasPrefix(text, "# "):
		if p.state != inRemarks {
			p.begin(inRemarks)
		}
		return "hunk"
	case p.state == inRemarks:
		p.begin(inBody)
	case p.state == inHeader:
		if p.headerLine(text) {
			return "file"
		}
		return ""
	}
	// A line of a diff that was cut, or that is none.
	switch {
	case strings.HasPrefix(line, "+"):
		return "add"
	case strings.HasPrefix(line, "-"):
		return "del"
	case strings.HasPrefix(line, `\`):
		return "hunk"
	}
	return ""
}

// areNames reports whether a line like "--- a/name", with rest after it, is a
// header rather than a deleted line of a diff that was cut.
func (p *patchParser) areNames(rest string) bool {
	next, after, _ := strings.Cut(rest, "\n")
	return strings.HasPrefix(next, "+++ ") && (p.state == inNothing || p.state == inHeader || slices.ContainsFunc(
		[]string{"@@ -", "Too large for a diff: ", "Binary: "}, // no line of a hunk begins like this
		func(prefix string) bool { return strings.HasPrefix(after, prefix) }))
}

// hunkLine returns the class of a line of a hunk. ok is false after its end.
func (p *patchParser) hunkLine(line string) (class string, ok bool) {
	switch {
	case p.oldLeft == 0 && p.newLeft == 0:
		return "", false
	case line[0] == '+' && p.newLeft > 0:
		p.newLeft--
		return "add", true
	case line[0] == '-' && p.oldLeft > 0:
		p.oldLeft--
		return "del", true
	case (line[0] == ' ' || line[0] == '\n') && p.oldLeft > 0 && p.newLeft > 0:
		p.oldLeft--
		p.newLeft--
		return "", true
	case line[0] == '\\':
		return "hunk", true
	}
	p.oldLeft, p.newLeft = 0, 0 // it was cut
	return "", false
}

// beginHunk reads a line like "@@ -1,2 +3 @@".
func (p *patchParser) beginHunk(text string) bool {
	parts := strings.Fields(text)
	if len(parts) < 4 || parts[3] != "@@" {
		return false
	}
	oldLines, ok := hunkLength(parts[1], "-")
	newLines, also := hunkLength(parts[2], "+")
	if !ok || !also {
		return false
	}
	if len(p.files) == 0 || p.state == inRemarks {
		p.begin(inBody)
	}
	p.oldLeft, p.newLeft, p.state = oldLines, newLines, inBody
	return true
}

// hunkLength returns the lines of a range like "-1,2".
func hunkLength(text, sign string) (int, bool) {
	text, ok := strings.CutPrefix(text, sign)
	_, length, found := strings.Cut(text, ",")
	if !found {
		return 1, ok
	}
	n, err := strconv.ParseUint(length, 10, 31)
	return int(n), ok && err == nil
}

// headerLine reads a line between "diff --git" and the names. It reports whether
// its content is in the file.
func (p *patchParser) headerLine(text string) bool {
	f := p.file()
	for _, h := range []struct {
		prefix string
		set    func(rest string)
	}{
		{"index ", func(string) {}},
		{"similarity index ", func(string) {}},
		{"dissimilarity index ", func(string) {}},
		{"old mode ", func(mode string) { p.mode = mode }},
		{"new mode ", func(mode string) { f.note("mode " + mode + ", was " + p.mode) }},
		{"new file mode ", func(string) { f.note("new") }},
		{"deleted file mode ", func(string) { f.note("deleted") }},
		{"rename from ", func(name string) { f.Old = cleanName(name, "") }},
		{"rename to ", func(name string) { f.Path = cleanName(name, ""); f.note("renamed") }},
		{"copy from ", func(name string) { f.Old = cleanName(name, "") }},
		{"copy to ", func(name string) { f.Path = cleanName(name, ""); f.note("copied") }},
		{"Binary files ", func(string) { f.note("binary") }},
	} {
		if rest, ok := strings.CutPrefix(text, h.prefix); ok {
			h.set(rest)
			return true
		}
	}
	if text == "GIT binary patch" {
		f.note("binary")
		p.state = inBody
		return true
	}
	return false
}

const noFile = "/dev/null"

// setNames sets the names that stand after --- and +++.
func (p *patchParser) setNames(from, to string) {
	f := p.file()
	switch {
	case from == noFile:
		f.Path = to
		f.note("new")
	case to == noFile:
		f.Path = from
		f.note("deleted")
	default:
		f.Path = to
		if from != to {
			f.Old = from
		}
	}
}

// cleanName returns a name of a header without quotes and prefix.
func cleanName(text, prefix string) string {
	if quoted, err := strconv.QuotedPrefix(text); err == nil && strings.HasPrefix(text, `"`) {
		if name, err := strconv.Unquote(quoted); err == nil {
			return strings.TrimPrefix(name, prefix)
		}
	}
	text, _, _ = strings.Cut(text, "\t") // a date, or nothing
	if text == noFile {
		return noFile
	}
	return strings.TrimPrefix(text, prefix)
}

// gitName returns the name in a line like "diff --git a/name b/name", or "" if
// the two differ: then the lines after it have them.
func gitName(text string) string {
	if quoted, err := strconv.QuotedPrefix(text); err == nil && strings.HasPrefix(text, `"`) {
		return cleanName(quoted, "a/")
	}
	half := len(text) / 2
	from, to := text[:half], strings.TrimPrefix(text[half:], " ")
	if name, ok := strings.CutPrefix(from, "a/"); ok && to == "b/"+name {
		return name
	}
	return ""
}

// markRuns marks the changed words in each run of deleted lines that added ones
// follow.
func markRuns(lines []DiffLine) {
	run := func(from int, class string) int {
		for from < len(lines) && lines[from].Class == class {
			from++
		}
		return from
	}
	for i := 0; i < len(lines); i++ {
		if lines[i].Class != "del" {
			continue
		}
		middle := run(i, "del")
		end := run(middle, "add")
		if end > middle {
			markWords(lines[i:middle], lines[middle:end])
		}
		i = end - 1
	}
}

// word is a word, blanks, another character, or the end of a line.
type word struct {
	text    string
	changed bool
}

// isNamed reports whether the word has letters or digits.
func (w word) isNamed() bool {
	r, _ := utf8.DecodeRuneInString(w.text)
	return kindOfRune(r) == 'a'
}

func (w word) isBlank() bool { return strings.TrimSpace(w.text) == "" }

func kindOfRune(r rune) byte {
	switch {
	case r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r):
		return 'a'
	case r == ' ' || r == '\t':
		return ' '
	}
	return 0 // each is a separate word
}

// splitWords returns the words of lines without their first characters, or nil
// if there are too many.
func splitWords(lines []DiffLine) (words []word, texts []string) {
	size := 0
	for _, l := range lines {
		if size += len(l.Text); len(lines) > maxWordLines || size > maxWordBytes {
			return nil, nil
		}
		text := strings.TrimSuffix(l.Text[1:], "\n")
		begin, kind := 0, byte(0)
		for at, r := range text {
			next := kindOfRune(r)
			if at > 0 && (next != kind || next == 0) {
				texts = append(texts, text[begin:at])
				begin = at
			}
			kind = next
		}
		if text != "" {
			texts = append(texts, text[begin:])
		}
		texts = append(texts, "\n")
	}
	words = make([]word, len(texts))
	for i, text := range texts {
		words[i].text = text
	}
	return words, texts
}

// markWords marks the words that differ between deleted lines and those added in
// their place. Lines that have little in common stay unmarked: there, marks would
// only distract.
func markWords(deleted, added []DiffLine) {
	before, from := splitWords(deleted)
	after, to := splitWords(added)
	if before == nil || after == nil {
		return
	}
	for _, d := range lcs.DiffLines(from, to) {
		for i := d.Start; i < d.End; i++ {
			before[i].changed = true
		}
		for i := d.ReplStart; i < d.ReplEnd; i++ {
			after[i].changed = true
		}
	}
	named, changed := countNamed(before)
	others, _ := countNamed(after)
	if 2*(named-changed) >= min(named, others) {
		markLines(deleted, before)
		markLines(added, after)
	}
}

func countNamed(words []word) (all, changed int) {
	for _, w := range words {
		if w.isNamed() {
			all++
			if w.changed {
				changed++
			}
		}
	}
	return all, changed
}

// markLines sets the parts of lines. A line of which all words changed has none.
func markLines(lines []DiffLine, words []word) {
	for i := range lines {
		n := slices.IndexFunc(words, func(w word) bool { return w.text == "\n" })
		lines[i].mark(words[:n])
		words = words[n+1:]
	}
}

func (l *DiffLine) mark(words []word) {
	some, all := false, true
	named := slices.ContainsFunc(words, word.isNamed)
	for i, w := range words {
		if w.isBlank() { // it changed if the words around it did
			words[i].changed = i > 0 && i+1 < len(words) && words[i-1].changed && words[i+1].changed
			continue
		}
		some = some || w.changed
		all = all && (w.changed || named && !w.isNamed())
	}
	if !some || all {
		return
	}
	begin, at, changed := 0, 1, false
	for _, w := range words {
		if w.changed != changed {
			l.Parts = append(l.Parts, DiffPart{l.Text[begin:at], changed})
			begin, changed = at, w.changed
		}
		at += len(w.text)
	}
	l.Parts = append(l.Parts, DiffPart{l.Text[begin:at], changed})
}

// stepDiff parses the diff of a step. A page has many, so that their headings
// have no ids.
func stepDiff(text string) []FileDiff {
	files := ParsePatch(text)
	for i := range files {
		files[i].ID = ""
	}
	return files
}
