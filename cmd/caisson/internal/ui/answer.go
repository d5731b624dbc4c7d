package ui

import (
	"bytes"
	"strings"
)

// answerText is a model's answer as it arrives. It is committed paragraph by paragraph.
// Fenced code is one paragraph.
type answerText struct {
	text []byte // of this response so far
	// text[:done] is committed, and text[:scanned] has been read line by line.
	done, scanned int
	// fence is the mark that ends the current code, or "".
	fence string
}

// addText adds a piece and returns the paragraphs that it completes.
func (a *answerText) addText(piece string) string {
	a.text = append(a.text, piece...)
	end := a.done
	for {
		n := bytes.IndexByte(a.text[a.scanned:], '\n')
		if n < 0 {
			break
		}
		line := bytes.TrimSpace(a.text[a.scanned : a.scanned+n])
		a.scanned += n + 1
		switch mark := fenceMark(line); {
		case a.fence == "" && mark != "":
			a.fence = mark
		case a.fence != "" && mark == a.fence:
			a.fence = ""
			end = a.scanned
		case a.fence == "" && len(line) == 0:
			end = a.scanned
		}
	}
	complete := string(a.text[a.done:end])
	a.done = end
	return complete
}

// fenceMark returns the mark of a line that is a code fence, or "".
func fenceMark(line []byte) string {
	for _, mark := range []string{"```", "~~~"} {
		if bytes.HasPrefix(line, []byte(mark)) {
			return mark
		}
	}
	return ""
}

// takeRest returns the uncommitted text of a response that was cut off.
func (a *answerText) takeRest() string {
	rest := string(a.text[a.done:])
	*a = answerText{}
	return rest
}

// endText returns the uncommitted text of a response and begins the next one. whole is
// the complete text without secrets. redact removes secrets.
func (a *answerText) endText(whole string, redact func(string) string) string {
	shown := redact(string(a.text[:a.done]))
	rest, follows := strings.CutPrefix(whole, shown)
	if !follows {
		// A secret was only recognised in the whole, or pieces were dropped.
		rest = whole
	}
	*a = answerText{}
	return rest
}

// openText returns the part of the open paragraph that can be shown: up to its last
// blank, since the word after it may become a secret.
func (a *answerText) openText() string {
	open := a.text[a.done:]
	if len(open) > tailBytes {
		open = open[len(open)-tailBytes:]
	}
	return string(open[:bytes.LastIndexAny(open, " \n\t")+1])
}

// answerLines returns a model's Markdown as safe lines for a terminal with this number
// of columns.
func answerLines(text string, columns int, redact func(string) string, colour bool) []string {
	text = strings.TrimRight(redact(text), " \r\n")
	if text == "" {
		return nil
	}
	lines := Prose(text, columns, colour)
	for i, l := range lines {
		lines[i] = replaceTabs(l)
	}
	return lines
}
