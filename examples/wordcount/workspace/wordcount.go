// Package wordcount counts words.
package wordcount

import "strings"

// Count says how often each word is in the text, in lower case. Punctuation
// around a word does not belong to it.
func Count(text string) map[string]int {
	counts := map[string]int{}
	for _, word := range strings.Split(text, " ") {
		counts[strings.ToLower(strings.Trim(word, ".,;:!?\"'()"))]++
	}
	return counts
}
