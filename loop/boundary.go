package loop

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

// The prompt boundary: whatever a tool gives back reaches the model between one
// opening and one closing tag,
//
//	<caisson-output-5f0c9a1b77d0e3a4>
//	…
//	</caisson-output-5f0c9a1b77d0e3a4>
//
// The id is random, fresh for each result, and made after the content, so that
// content can't close its own wrapper; tags of that family inside are escaped
// all the same, in every spelling, because a model reads generously. The
// history keeps results as they were: wrapping happens while a request is built.

// boundaryTag names the wrapper; it is unlikely in anything that an agent reads.
const (
	boundaryTag = boundaryFirst + "-" + boundarySecond
	// boundaryLetters is the name as it is looked for: its letters alone.
	boundaryLetters = boundaryFirst + boundarySecond
	boundaryFirst   = "caisson"
	boundarySecond  = "output"
)

// newNonce makes the id of one wrapper.
func newNonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(b[:])
}

// wrapContent puts all of a result's content inside one wrapper. Images keep their
// bytes and their place.
func wrapContent(content []tools.Block, nonce string) []tools.Block {
	out := make([]tools.Block, 0, len(content)+2)
	for _, b := range content {
		if b.Image == nil {
			b.Text = EscapeResult(b.Text)
		}
		out = append(out, b)
	}
	if joined := joinText(out); EscapeResult(joined) != joined {
		// A tag is split over blocks, which adapters join.
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

// isText says that a block is text, "" included.
func isText(b tools.Block) bool { return b.Image == nil }

// mergeText is one block of text and then the images.
func mergeText(blocks []tools.Block, text string) []tools.Block {
	return append([]tools.Block{{Text: text}}, slices.DeleteFunc(blocks, isText)...)
}

// ResultText is the text of a tool result as a model gets it, without the
// wrapper: what an adapter that only compares text needs. Tags that were
// escaped stay escaped, see [EscapeResult].
func ResultText(content []tools.Block) string {
	text := joinText(content)
	open, rest, _ := strings.Cut(text, "\n")
	nonce, isTag := strings.CutPrefix(open, "<"+boundaryTag+"-")
	if !isTag {
		return text
	}
	closing := "\n</" + boundaryTag + "-" + nonce
	if inner, ok := strings.CutSuffix(rest, closing); ok {
		return inner
	}
	return text
}

// EscapeResult makes a raw text what a model gets inside the wrapper: valid
// UTF-8, without anything that reads as a tag of the wrapper.
func EscapeResult(text string) string {
	return escapeBoundary(strings.ToValidUTF8(text, "\uFFFD"))
}

// joinText joins the text blocks of a result.
func joinText(content []tools.Block) string {
	var parts []string
	for _, b := range content {
		if b.Image == nil {
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "\n")
}
