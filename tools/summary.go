package tools

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Bounds of what a confirmation shows. Longer text is elided in the middle
// with a count; the exact bytes stay available.
const (
	maxSummaryBytes = 200
	maxShownInput   = 8 << 10
	maxShownDiff    = 256 << 10
)

// summary is one line for people, safe for display.
func summary(def Definition, input json.RawMessage) string {
	text := ""
	switch {
	case def.Summary != nil:
		text = def.Summary(input)
	case def.Paths != nil:
		if paths := def.Paths(input); len(paths) > 0 {
			text = paths[0]
		}
	}
	if text == "" {
		text = string(input)
	}
	safe, _ := Display(clipMiddle(text, maxSummaryBytes))
	return clipMiddle(safe, maxSummaryBytes)
}

// clipMiddle bounds one line to limit bytes and keeps both ends: how a command
// ends matters as much as how it begins.
func clipMiddle(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	head, tail := splitText(s, limit-len("…"))
	return head + "…" + tail
}

// Elide returns text of at most limit bytes whole, and otherwise its two ends
// with a count of what is left out between them.
func Elide(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	head, tail := splitText(s, limit)
	omitted := s[len(head) : len(s)-len(tail)]
	return fmt.Sprintf("%s [… %d characters (%d bytes) not shown …] %s", head, utf8.RuneCountInString(omitted), len(omitted), tail)
}
