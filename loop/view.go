package loop

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/tools"
)

// View is how requests show a conversation: tool results are wrapped, and near the
// context window a summary replaces the oldest messages. It keeps what requests have in
// common, so that each request, in later turns too, repeats the previous one's
// beginning byte for byte and the provider's prompt cache stays valid. A conversation's
// turns use it one after the other.
type View struct {
	// summary may be nil; summaryMessage is its message in requests.
	summary        *Summary
	summaryMessage Message
	// canaries find the wrappers' IDs, and the system prompt's canary, in answers.
	canaries *boundary.Canaries
	// wrapped has tool results' wrapped content, by ToolUse.ID.
	wrapped map[string][]tools.Block
	// rendered are the last request's messages, made for the model renderedFor from the
	// history's first renderedCount messages.
	rendered      []Message
	renderedFor   string
	renderedCount int
	// tokens is the provider's count of the last call's input and output; saved is the
	// number of bytes left out since.
	tokens, saved int64
	// failedAt is the number of tokens at which a summary last failed, or 0.
	failedAt int64
}

// NewView returns a view of a conversation. summary may be nil.
func NewView(summary *Summary) *View {
	v := &View{canaries: &boundary.Canaries{}, wrapped: map[string][]tools.Block{}}
	if summary != nil {
		v.setSummary(summary, nil)
	}
	return v
}

// Clone returns a copy for a conversation that continues from the same point.
func (v *View) Clone() *View {
	c := *v
	c.wrapped, c.rendered = maps.Clone(v.wrapped), slices.Clip(v.rendered)
	return &c
}

// Summary returns the summary in use, or nil.
func (v *View) Summary() *Summary { return v.summary }

// estimateTokens estimates the conversation's tokens: the last call's, minus what was
// left out since.
func (v *View) estimateTokens() int64 { return v.tokens - v.saved/tokenBytes }

// setSummary sets the summary and forgets messages that are not in the trimmed history.
func (v *View) setSummary(s *Summary, trimmed []Message) {
	v.summary = s
	v.summaryMessage = s.renderMessage()
	v.failedAt = 0
	v.renderedFor = ""
	v.canaries = &boundary.Canaries{}
	wrapped := make(map[string][]tools.Block, len(v.wrapped))
	for _, m := range trimmed {
		for _, b := range m.Blocks {
			if b.ToolResult == nil {
				continue
			}
			if done, ok := v.wrapped[b.ToolResult.ToolUseID]; ok {
				wrapped[b.ToolResult.ToolUseID] = done
				v.canaries.WatchWrappers(boundary.JoinText(done))
			}
		}
	}
	v.wrapped = wrapped
}

// renderHistory returns the messages of a request to a model; see [ModelInfo.String].
// Reasoning of other models is left out, because its signature would not be valid.
// history, which it doesn't change, must continue the previous call's; only new
// messages are rendered.
func (v *View) renderHistory(history []Message, model string) []Message {
	if v.renderedFor != model || v.renderedCount > len(history) {
		v.rendered = nil
		v.renderedFor = model
		v.renderedCount = 0
	}
	head := -1
	if v.summary != nil {
		head = v.summary.countHead(history)
	}
	for ; v.renderedCount < len(history); v.renderedCount++ {
		if v.renderedCount == head {
			v.rendered = append(v.rendered, v.summaryMessage)
		}
		v.rendered = append(v.rendered, v.renderMessage(history[v.renderedCount], model))
	}
	if head == len(history) {
		return append(slices.Clip(v.rendered), v.summaryMessage)
	}
	return slices.Clip(v.rendered)
}

func (v *View) renderMessage(m Message, model string) Message {
	blocks := make([]Block, 0, len(m.Blocks))
	for _, b := range m.Blocks {
		if b.Thinking != nil && b.Thinking.Model != "" && b.Thinking.Model != model {
			continue
		}
		if b.Text != nil && m.Role != RoleAssistant {
			v.canaries.WatchWrappers(b.Text.Text)
		}
		if b.Text != nil && m.Role == RoleSystem {
			v.canaries.WatchPlanted(b.Text.Text)
		}
		if b.ToolResult != nil {
			b.ToolResult = &ToolResult{
				ToolUseID: b.ToolResult.ToolUseID,
				Content:   v.wrapResult(*b.ToolResult),
				IsError:   b.ToolResult.IsError,
			}
		}
		blocks = append(blocks, b)
	}
	m.Blocks = blocks
	return m
}

func (v *View) wrapResult(r ToolResult) []tools.Block {
	if done, ok := v.wrapped[r.ToolUseID]; ok {
		return done
	}
	wrapped := boundary.AddDenialReason(boundary.WrapBlocks(r.Content), r.DenialReason)
	v.wrapped[r.ToolUseID] = wrapped
	v.canaries.WatchWrappers(boundary.JoinText(wrapped))
	return wrapped
}

const (
	// shortenAll is more tokens than any history has.
	shortenAll = math.MaxInt64
	// shortHeadBytes and shortTailBytes are kept of a shortened result: enough to
	// recognize it.
	shortHeadBytes, shortTailBytes = 600, 300
	// minShortenBytes is the size from which results are shortened.
	minShortenBytes = 2 * (shortHeadBytes + shortTailBytes)
	// tokenBytes is the assumed size of a token: about right for English text and code.
	// The provider's next count corrects the estimate.
	tokenBytes = 4
	// imageBytes is the assumed size of an image: about 1,000 tokens.
	imageBytes = 1000 * tokenBytes
)

// shortenOldest shortens the oldest results in history until about the given number of
// tokens is saved. It returns the number of results and bytes. The last round's results
// stay whole, because the model has not used them yet, except for shortenAll if no
// other result is left. Messages are replaced, not changed.
func (v *View) shortenOldest(history []Message, tokens int64) (results int, saved int64) {
	last := len(history)
	for last > 0 && history[last-1].Role != RoleAssistant {
		last--
	}
	results, saved = v.shortenMessages(history[:last], tokens)
	if results == 0 && tokens == shortenAll {
		results, saved = v.shortenMessages(history[last:], tokens)
	}
	v.saved += saved
	return results, saved
}

func (v *View) shortenMessages(messages []Message, tokens int64) (results int, saved int64) {
	for i, m := range messages {
		for k, b := range m.Blocks {
			// Results that are already shortened are smaller.
			if b.ToolResult == nil || contentBytes(b.ToolResult.Content) < minShortenBytes {
				continue
			}
			if saved/tokenBytes >= tokens {
				return results, saved
			}
			short := *b.ToolResult
			short.Content = []tools.Block{{Text: shortenContent(b.ToolResult.Content)}}
			messages[i].Blocks = slices.Clone(messages[i].Blocks)
			messages[i].Blocks[k].ToolResult = &short
			delete(v.wrapped, short.ToolUseID)
			v.renderedFor = ""
			results++
			saved += contentBytes(b.ToolResult.Content) - shortHeadBytes - shortTailBytes
		}
	}
	return results, saved
}

func sentBytes(messages []Message) int64 {
	var n int64
	for _, m := range messages {
		for _, b := range m.Blocks {
			switch {
			case b.Text != nil:
				n += int64(len(b.Text.Text))
			case b.ToolUse != nil:
				n += int64(len(b.ToolUse.Name) + len(b.ToolUse.Input))
			case b.ToolResult != nil:
				n += contentBytes(b.ToolResult.Content)
			}
		}
	}
	return n
}

// contentBytes returns the size of a result's text, plus [imageBytes] per image.
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

func shortenContent(content []tools.Block) string {
	text := cutMiddle(boundary.JoinText(content), shortHeadBytes+shortTailBytes,
		"\n[%d bytes of this old result were left out to make room; call the tool again if you need them]\n")
	if images := countImages(content); images > 0 {
		text += fmt.Sprintf("\n[%d images of this old result were left out]", images)
	}
	return text
}

func countImages(content []tools.Block) int {
	n := 0
	for _, b := range content {
		if b.Image != nil {
			n++
		}
	}
	return n
}

// cutMiddle replaces the middle of a text longer than limit by a note, which formats
// the number of bytes left out. Two thirds of what stays is the beginning.
func cutMiddle(text string, limit int, note string) string {
	if len(text) <= limit {
		return text
	}
	tail := len(text) - limit/3
	head := limit - limit/3
	for head > 0 && !utf8.RuneStart(text[head]) {
		head--
	}
	for tail < len(text) && !utf8.RuneStart(text[tail]) {
		tail++
	}
	return text[:head] + fmt.Sprintf(note, tail-head) + text[tail:]
}

// leakedCall is the error for a call whose arguments are not JSON without the wrappers'
// IDs.
const leakedCall = "The arguments repeat the ID of a wrapper around untrusted text, or a token that must not be repeated. Call the tool again without it."

// redactCanaries replaces wrappers' IDs and planted canaries in an answer's text and
// its calls' arguments, and returns how many it found. Reasoning stays, because it is
// signed.
func (v *View) redactCanaries(m *Message) (leaks int) {
	for i, b := range m.Blocks {
		switch {
		case b.Text != nil:
			safe, n := v.canaries.Redact(b.Text.Text)
			if n > 0 {
				m.Blocks[i].Text = &Text{Text: safe}
			}
			leaks += n
		case b.ToolUse != nil:
			u := *b.ToolUse
			input, n := v.canaries.Redact(string(u.Input))
			raw, inRaw := v.canaries.Redact(u.Raw)
			if n+inRaw == 0 {
				continue
			}
			u.Input, u.Raw = slices.Clip([]byte(input)), raw
			if !json.Valid(u.Input) {
				u.Input = []byte("{}")
				u.InputError = leakedCall
				u.Raw = input
			}
			m.Blocks[i].ToolUse = &u
			leaks += n + inRaw
		}
	}
	return leaks
}
