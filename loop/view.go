package loop

import (
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/caisson-run/caisson/tools"
)

// view is the history as the model receives it: results are wrapped, and old
// ones are shortened when the context window fills up. It caches wrapped results,
// so that each request repeats them byte for byte and the provider's prompt cache
// stays valid.
type view struct {
	// wrapped has the wrapped content of tool results, by ToolUse.ID.
	wrapped map[string][]tools.Block
	// shortened has the results to shorten, by ToolUse.ID.
	shortened map[string]bool
	// tokens is the number of tokens, input and output, that the provider
	// counted for the last call.
	tokens int64
	// warned reports whether the warning about the window was emitted.
	warned bool
}

// newView returns a view that shortens nothing.
func newView() view {
	return view{wrapped: map[string][]tools.Block{}, shortened: map[string]bool{}}
}

// renderHistory returns the messages of a request to the model with the given name,
// see [ModelInfo.String]. The reasoning of other models is left out: their signatures
// are not valid there. It does not change history.
func (v view) renderHistory(history []Message, model string) []Message {
	out := make([]Message, len(history))
	for i, m := range history {
		out[i] = m
		out[i].Blocks = make([]Block, 0, len(m.Blocks))
		for _, b := range m.Blocks {
			if b.Thinking != nil && b.Thinking.Model != "" && b.Thinking.Model != model {
				continue
			}
			if b.ToolResult != nil {
				b.ToolResult = &ToolResult{
					ToolUseID: b.ToolResult.ToolUseID,
					Content:   v.renderResult(*b.ToolResult),
					IsError:   b.ToolResult.IsError,
				}
			}
			out[i].Blocks = append(out[i].Blocks, b)
		}
	}
	return out
}

// renderResult returns the wrapped content of a result.
func (v view) renderResult(r ToolResult) []tools.Block {
	if done, ok := v.wrapped[r.ToolUseID]; ok {
		return done
	}
	content := r.Content
	if v.shortened[r.ToolUseID] {
		content = []tools.Block{{Text: shortenContent(content)}}
	}
	v.wrapped[r.ToolUseID] = addDenialReason(wrapContent(content, newNonce()), r.DenialReason)
	return v.wrapped[r.ToolUseID]
}

const (
	// shortenAll is more tokens than any history has.
	shortenAll = math.MaxInt64
	// shortHeadBytes and shortTailBytes are the parts of a shortened result that
	// are kept: enough to recognize it.
	shortHeadBytes, shortTailBytes = 600, 300
	// minShortenBytes is the size of the smallest result that is shortened.
	minShortenBytes = 2 * (shortHeadBytes + shortTailBytes)
	// tokenBytes is the assumed size of a token. English text and code have
	// about four bytes per token; the provider's next count corrects the estimate.
	tokenBytes = 4
	// imageBytes is the assumed size of an image: about 1,000 tokens.
	imageBytes = 1000 * tokenBytes
)

// shortenOldest marks the oldest results as shortened until about the given
// number of tokens is saved. It returns the number of results and bytes. The
// results of the last round stay whole, because the model has not used them yet;
// they are shortened only for shortenAll, if no other result is left.
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

// shortenMessages is like shortenOldest, for the results in messages.
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

// contentBytes returns the size of a result's text in bytes, plus [imageBytes]
// per image.
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

// shortenContent returns the beginning and the end of a result's text, with a
// note about what was left out.
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
