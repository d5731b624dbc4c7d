package loop

import "github.com/caisson-run/caisson/tools"

// Untrusted returns text inside a wrapper like that of tool results. Use it for
// text in a message that neither the user nor the operator wrote, such as a file
// of the workspace. The history keeps the wrapped text.
func Untrusted(text string) string {
	return wrapContent([]tools.Block{{Text: text}}, newNonce())[0].Text
}
