package lifecycle

import (
	"fmt"
	"strings"
)

// maxMessage bounds a program's messages in an error, in bytes.
const maxMessage = 2000

// OneLine returns the beginning of a text as one line of valid UTF-8.
func OneLine(text string) string {
	text = strings.ToValidUTF8(strings.TrimSpace(text), "?")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return strings.ReplaceAll(text, "\n", "; ")
}

// quote adds a text to an error that does not contain it.
func quote(err error, what, text string) error {
	text = OneLine(text)
	if text == "" || strings.Contains(err.Error(), text) {
		return err
	}
	return fmt.Errorf("%w: %s: %q", err, what, text)
}
