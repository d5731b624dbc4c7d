package loop

import "github.com/caisson-run/caisson/tools"

// Untrusted puts a text that nobody of the conversation wrote, such as a file of
// the workspace, into a wrapper of its own, as tool results are wrapped. It is
// for texts that reach the model unasked, and is done once: the history keeps
// the wrapped text.
func Untrusted(text string) string {
	return wrapContent([]tools.Block{{Text: text}}, newNonce())[0].Text
}
