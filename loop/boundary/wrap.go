package boundary

import (
	"crypto/rand"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

// Untrusted text reaches the model between an opening and a closing tag:
//
//	<caisson-output-5f0c9a1b77d0e3a4>
//	…
//	</caisson-output-5f0c9a1b77d0e3a4>
//
// The ID is random, different for each wrapper, and made after the content, so that
// content can't close its own wrapper. Still, tags with this name inside the content
// are escaped in every spelling, because a model may accept any of them. The history
// keeps results unwrapped; requests wrap them.

const (
	// Tag is the name of the wrapper's tags. Nothing that an agent reads is likely to
	// contain it.
	Tag        = tagFirst + "-" + tagSecond
	tagLetters = tagFirst + tagSecond
	tagFirst   = "caisson"
	tagSecond  = "output"
)

// nonceDigits is the length of the IDs of wrappers and canaries.
const nonceDigits = 16

func newNonce() string {
	var b [nonceDigits / 2]byte
	_, _ = rand.Read(b[:]) // never fails; crypto/rand crashes the process instead
	return hex.EncodeToString(b[:])
}

// Wrap wraps text that neither the user nor the operator wrote, such as a workspace
// file. If the text has known phrases, a note follows the wrapper.
func Wrap(text string) Text {
	return Text(JoinText(WrapBlocks([]tools.Block{{Text: text}})))
}

// WrapBlocks wraps the content of a tool's result like [Wrap]. Images keep their bytes
// and positions.
func WrapBlocks(content []tools.Block) []tools.Block {
	wrapped := wrapContent(content, newNonce(), Escape)
	if found := findPhrases(JoinText(content)); len(found) > 0 {
		wrapped = append(wrapped, tools.Block{Text: phraseNote(found)})
	}
	return wrapped
}

// WrapForWorker wraps text for a model that changes no files and so needs no exact
// bytes: it replaces known phrases and also escapes tags of calls and results.
func WrapForWorker(text string) Text {
	return Text(JoinText(wrapContent([]tools.Block{{Text: text}}, newNonce(), NeutralizeForWorker)))
}

// NeutralizeForWorker returns text as a worker sees it inside the wrapper.
func NeutralizeForWorker(text string) string {
	return escapeTags(neutralizePhrases(strings.ToValidUTF8(text, "\uFFFD")), []string{tagLetters, "toolcall", "toolresult", "untrustedinput"})
}

func wrapContent(content []tools.Block, nonce string, escape func(string) string) []tools.Block {
	out := make([]tools.Block, 0, len(content)+2)
	for _, b := range content {
		if b.Image == nil {
			b.Text = escape(b.Text)
		}
		out = append(out, b)
	}
	if joined := JoinText(out); escape(joined) != joined {
		// A tag is split across blocks, which adapters join.
		out = mergeText(out, escape(joined))
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
	out[first].Text = "<" + Tag + "-" + nonce + ">\n" + out[first].Text
	out[last].Text += "\n</" + Tag + "-" + nonce + ">"
	return out
}

const denialIntro = "The user refused this call and says: "

// AddDenialReason adds a person's reason for refusing the call after the wrapper, where
// only Caisson can write.
func AddDenialReason(wrapped []tools.Block, reason string) []tools.Block {
	if reason == "" {
		return wrapped
	}
	return append(wrapped, tools.Block{Text: denialIntro + Escape(reason)})
}

func isText(b tools.Block) bool { return b.Image == nil }

func mergeText(blocks []tools.Block, text string) []tools.Block {
	return append([]tools.Block{{Text: text}}, slices.DeleteFunc(blocks, isText)...)
}

// ResultText returns a tool result's text as the model gets it, without the wrapper and
// what follows it, for comparisons. Escaped tags stay escaped; see [Escape].
func ResultText(content []tools.Block) string {
	text := JoinText(content)
	open, rest, _ := strings.Cut(text, "\n")
	nonce, isTag := strings.CutPrefix(open, "<"+Tag+"-")
	if !isTag {
		return text
	}
	inner, after, ok := strings.Cut(rest, "\n</"+Tag+"-"+nonce)
	if ok && (after == "" || strings.HasPrefix(after, "\n"+denialIntro) || strings.HasPrefix(after, "\n"+noteIntro)) {
		return inner
	}
	return text
}

// Escape returns text as the model sees it inside the wrapper: valid UTF-8, with every
// tag of the wrapper escaped.
func Escape(text string) string {
	return escapeTags(strings.ToValidUTF8(text, "\uFFFD"), []string{tagLetters})
}

// EscapeCalls escapes the call tags of package tags in text, which may be wrapped.
func EscapeCalls(text string) string { return escapeTags(text, []string{"toolcall"}) }

// JoinText joins a result's text blocks by newlines.
func JoinText(content []tools.Block) string {
	var parts []string
	for _, b := range content {
		if b.Image == nil {
			parts = append(parts, b.Text)
		}
	}
	return strings.Join(parts, "\n")
}
