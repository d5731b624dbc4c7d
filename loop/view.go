package loop

import (
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools"
)

// view is the history as the model gets it: results wrapped, and old ones
// shortened when its window fills. It keeps what it made, so that a result is
// sent with the same bytes each time and a provider's cache of the
// conversation's beginning holds.
type view struct {
	// wrapped holds each tool result as it is sent, by our id of its call.
	wrapped   map[string][]tools.Block
	shortened map[string]bool
	// tokens is what the provider counted for the last call, in and out.
	tokens int64
	// warned says that the window's warning was given.
	warned bool
}

// newView shows everything in full.
func newView() view {
	return view{wrapped: map[string][]tools.Block{}, shortened: map[string]bool{}}
}

// renderHistory makes the messages of a request. The history stays as it is.
func (v view) renderHistory(history []Message) []Message {
	out := make([]Message, len(history))
	for i, m := range history {
		out[i] = m
		out[i].Blocks = make([]Block, len(m.Blocks))
		for j, b := range m.Blocks {
			if b.ToolResult != nil {
				b.ToolResult = &ToolResult{
					ToolUseID: b.ToolResult.ToolUseID,
					Content:   v.renderResult(*b.ToolResult),
					IsError:   b.ToolResult.IsError,
				}
			}
			out[i].Blocks[j] = b
		}
	}
	return out
}

// renderResult wraps one result, once.
func (v view) renderResult(r ToolResult) []tools.Block {
	if done, ok := v.wrapped[r.ToolUseID]; ok {
		return done
	}
	content := r.Content
	if v.shortened[r.ToolUseID] {
		content = []tools.Block{{Text: shortenContent(content)}}
	}
	v.wrapped[r.ToolUseID] = wrapContent(content, newNonce())
	return v.wrapped[r.ToolUseID]
}

const (
	// shortenAll is more tokens than any history has.
	shortenAll = math.MaxInt64
	// shortHeadBytes and shortTail are what is kept of a shortened result, in
	// bytes: enough to see what it was.
	shortHeadBytes, shortTailBytes = 600, 300
	// minShortenBytes is the size from which shortening is worth it.
	minShortenBytes = 2 * (shortHeadBytes + shortTailBytes)
	// tokenBytes is what one token is taken for. English text and code have
	// about four; the next call's count by the provider corrects the guess.
	tokenBytes = 4
	// imageBytes is what an image is taken for, about 1,000 tokens.
	imageBytes = 1000 * tokenBytes
)

// shortenOldest marks the oldest results that are worth it, until about as many
// tokens are saved as asked, and says how many results and bytes that were.
// The results of the last round stay whole, because the model has not used them
// yet, unless everything must go and nothing else is left.
func (v view) shortenOldest(history []Message, tokens int64) (results int, saved int64) {
	last := len(history)
	for last > 0 && history[last-1].Role != RoleAssistant {
		last--
	}
	results, saved = v.shortenMessages(history[:last], tokens)
	if results == 0 && tokens == shortenAll {
		return v.shortenMessages(history[last:], tokens)
	}
	return results, saved
}

// shortenMessages is shorten for some of the messages.
func (v view) shortenMessages(messages []Message, tokens int64) (results int, saved int64) {
	for _, m := range messages {
		for _, b := range m.Blocks {
			r := b.ToolResult
			if r == nil || v.shortened[r.ToolUseID] || contentBytes(r.Content) < minShortenBytes {
				continue
			}
			if saved/tokenBytes >= tokens {
				return results, saved
			}
			v.shortened[r.ToolUseID] = true
			delete(v.wrapped, r.ToolUseID)
			results++
			saved += contentBytes(r.Content) - shortHeadBytes - shortTailBytes
		}
	}
	return results, saved
}

// contentBytes is a result's size in bytes of text.
func contentBytes(content []tools.Block) int64 {
	var n int64
	for _, b := range content {
		n += int64(len(b.Text))
		if b.Image != nil {
			n += imageBytes
		}
	}
	return n
}

// shortenContent keeps the beginning and the end of a result's text.
func shortenContent(content []tools.Block) string {
	text, images := joinText(content), 0
	for _, b := range content {
		if b.Image != nil {
			images++
		}
	}
	note := ""
	if images > 0 {
		note = fmt.Sprintf("\n[%d images of this old result were left out]", images)
	}
	if len(text) <= shortHeadBytes+shortTailBytes {
		return text + note
	}
	head, tail := shortHeadBytes, len(text)-shortTailBytes
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return fmt.Sprintf("%s\n[%d bytes of this old result were left out to make room; call the tool again if you need them]\n%s%s",
		text[:head], tail-head, text[tail:], note)
}
