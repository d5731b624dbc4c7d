package terminal

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const (
	// maxValueLines and maxValueBytes bound one argument of a question.
	maxValueLines = 100
	maxValueBytes = 8 << 10
	// inDiffBytes is the size from which an argument of a call that has a diff
	// is left to the diff.
	inDiffBytes = 200
)

// arguments shows the input as a person reads it, one argument after the other
// and every one of them: a text of several lines as lines behind a bar, so that
// none of them can pass for one of ours.
func (q question) arguments() []string {
	var input map[string]json.RawMessage
	if json.Unmarshal(q.Exact, &input) != nil {
		return []string{"  " + line(q.Input)}
	}
	if len(input) == 0 {
		return []string{"  without arguments"}
	}
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(input)) {
		lines = append(lines, q.argument(line(key), input[key])...)
	}
	return lines
}

func (q question) argument(key string, value json.RawMessage) []string {
	var text string
	if json.Unmarshal(value, &text) != nil || text == "" {
		return []string{"  " + key + ": " + line(clipMiddle(string(value)))}
	}
	count := strings.Count(strings.TrimSuffix(text, "\n"), "\n") + 1
	if q.Diff != "" && (len(text) > inDiffBytes || count > 1) {
		return []string{fmt.Sprintf("  %s: %d bytes in %d lines, see the diff", key, len(text), count)}
	}
	if !strings.Contains(text, "\n") {
		return []string{"  " + key + ": " + line(clipMiddle(text))}
	}
	lines := []string{"  " + key + ":"}
	for i, l := range strings.Split(strings.TrimSuffix(clipMiddle(text), "\n"), "\n") {
		if i == maxValueLines {
			return append(lines, q.style.red(fmt.Sprintf("  … %d more lines are not shown", count-i)))
		}
		lines = append(lines, "  | "+line(l))
	}
	return lines
}

// clipMiddle shows the two ends of what is long, with a count between them.
func clipMiddle(text string) string {
	if len(text) <= maxValueBytes {
		return text
	}
	head, tail := text[:maxValueBytes/2], text[len(text)-maxValueBytes/2:]
	head, tail = strings.ToValidUTF8(head, ""), strings.ToValidUTF8(tail, "")
	return fmt.Sprintf("%s [… %d bytes not shown …] %s", head, len(text)-len(head)-len(tail), tail)
}
