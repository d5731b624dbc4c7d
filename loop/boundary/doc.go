// Package boundary is the prompt boundary, which every text for a model passes.
//
//	Caisson's words               constants
//	user's, operator's words      Text(…), a conversion that a test lists
//	tools' results                WrapBlocks   ─┐
//	files, pages, notes, skills   Wrap          ├─▶ one wrapper with a fresh ID
//	the same, for a worker        WrapForWorker ┘
//
// Untrusted text stays between two tags. Tags inside it are escaped. Phrases known from
// prompt injections are marked, or replaced for a worker. [Canaries] find text that a
// model must not repeat.
package boundary

import (
	"fmt"
	"strings"
)

// Text is text for a model that Caisson, the user or the operator wrote, or that is
// wrapped. Constants become a Text without a conversion. Any other conversion bypasses
// the boundary; TestPromptBoundary in e2e lists the existing ones.
type Text string

// Sprintf formats numbers and Texts.
func Sprintf[T int | int64 | Text](format Text, args ...T) Text {
	list := make([]any, 0, len(args))
	for _, a := range args {
		list = append(list, a)
	}
	return Text(fmt.Sprintf(string(format), list...))
}

// Join is [strings.Join] for Texts.
func Join(parts []Text, separator Text) Text {
	list := make([]string, 0, len(parts))
	for _, p := range parts {
		list = append(list, string(p))
	}
	return Text(strings.Join(list, string(separator)))
}
