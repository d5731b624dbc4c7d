package loop

import (
	"regexp"
	"sync"
)

// volatilePart matches the parts of a tool result that differ between equal
// runs, which a placeholder replaces.
type volatilePart struct {
	pattern     *regexp.Regexp
	placeholder string
}

// volatileParts returns the patterns of IDs, times and durations.
var volatileParts = sync.OnceValue(func() []volatilePart {
	return []volatilePart{
		{regexp.MustCompile(`\b[a-z]{2,8}_[0-9A-HJKMNP-TV-Z]{26}\b`), "<id>"},
		{regexp.MustCompile(`\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\s?[+-]\d\d:?\d\d)?`), "<time>"},
		{regexp.MustCompile(`\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}\d{1,2} {1,2}(\d\d:\d\d(:\d\d)?|\d{4})\b`), "<time>"},
		{regexp.MustCompile(`\b\d{1,2}:\d\d:\d\d(\.\d+)?\b`), "<time>"},
		{regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?\s?(ns|µs|us|ms|s|secs?|seconds?)\b`), "<duration>"},
	}
})

// NormalizeResult replaces IDs, times and durations in the text of a tool result
// by placeholders, so that the results of two runs can be compared.
func NormalizeResult(text string) string {
	for _, v := range volatileParts() {
		text = v.pattern.ReplaceAllString(text, v.placeholder)
	}
	return text
}
