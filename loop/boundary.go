package loop

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

// The prompt boundary. The content of every tool result reaches the model between
// one opening and one closing tag:
//
//	<caisson-output-5f0c9a1b77d0e3a4>
//	…
//	</caisson-output-5f0c9a1b77d0e3a4>
//
// The ID is random, different for each result, and made after the content, so
// content can't close its own wrapper. Tags with this name inside the content are
// escaped nevertheless, in every spelling, because a model may accept any of them.
// The history keeps results unwrapped: they are wrapped when a request is built.

const (
	// boundaryTag is the name of the wrapper's tags. It is unlikely to occur in
	// anything that an agent reads.
	boundaryTag = boundaryFirst + "-" + boundarySecond
	// boundaryLetters is the name that the escaper searches for: letters only.
	boundaryLetters = boundaryFirst + boundarySecond
	boundaryFirst   = "caisson"
	boundarySecond  = "output"
)

// newNonce returns the ID of a new wrapper.
func newNonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails; crypto/rand crashes the process instead
	return hex.EncodeToString(b[:])
}

// wrapContent returns content inside one wrapper, with tags in its text escaped.
// Images keep their bytes and positions.
func wrapContent(content []tools.Block, nonce string) []tools.Block {
	out := make([]tools.Block, 0, len(content)+2)
	for _, b := range content {
		if b.Image == nil {
			b.Text = EscapeResult(b.Text)
		}
		out = append(out, b)
	}
	if joined := joinText(out); EscapeResult(joined) != joined {
		// A tag is split across blocks, which adapters join.
		out = mergeText(out, EscapeResult(joined))
	}
	first := slices.IndexFunc(out, isText)
	if first < 0 {
		out = slices.Insert(out, 0, tools.Block{})
		first = 0
	}
	last := len(out) - 1
	for !isText(out[last]) {
		last--
	}
	out[first].Text = "<" + boundaryTag + "-" + nonce + ">\n" + out[first].Text
	out[last].Text += "\n</" + boundaryTag + "-" + nonce + ">"
	return out
}

// denialIntro begins the line behind the wrapper that has a person's reason.
const denialIntro = "The user refused this call and says: "

// addDenialReason returns wrapped content with the reason for which a person refused
// the call behind the wrapper, where only Caisson can write.
func addDenialReason(wrapped []tools.Block, reason string) []tools.Block {
	if reason == "" {
		return wrapped
	}
	return append(wrapped, tools.Block{Text: denialIntro + EscapeResult(reason)})
}

// isText reports whether a block is text, including "".
func isText(b tools.Block) bool { return b.Image == nil }

// mergeText replaces all text blocks by one leading block with text.
func mergeText(blocks []tools.Block, text string) []tools.Block {
	return append([]tools.Block{{Text: text}}, slices.DeleteFunc(blocks, isText)...)
}

// ResultText returns the text of a tool result as the model receives it, without
// the wrapper and without the reason of a denial behind it. Adapters that only compare text use it. Escaped tags stay
// escaped; see [EscapeResult].
func ResultText(content []tools.Block) string {
	text := joinText(content)
	open, rest, _ := strings.Cut(text, "\n")
	nonce, isTag := strings.CutPrefix(open, "<"+boundaryTag+"-")
	if !isTag {
		return text
	}
	closing := "\n</" + boundaryTag + "-" + nonce
	inner, after, ok := strings.Cut(rest, closing)
	if ok && (after == "" || strings.HasPrefix(after, "\n"+denialIntro)) {
		return inner
	}
	return text
}

// EscapeResult returns text as the model receives it inside the wrapper: valid
// UTF-8, with every tag of the wrapper escaped.
func EscapeResult(text string) string {
	return escapeBoundary(strings.ToValidUTF8(text, "\uFFFD"))
}

// joinText returns the text blocks of a result, joined by newlines.
func joinText(content []tools.Block) string {
	var parts []string
	for _, b := range content {
		if b.Image == nil {
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "\n")
}
