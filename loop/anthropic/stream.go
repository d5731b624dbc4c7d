package anthropic

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/anthropics/anthropic-sdk-go/packages/ssestream"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/loop/usage"
	"github.com/caisson-run/caisson/tools"
)

// event is a stream's event. Its members depend on its type.
type event struct {
	Type    string        `json:"type"`
	Index   int           `json:"index"`
	Message *wireMessage  `json:"message"`
	Block   *contentBlock `json:"content_block"`
	Delta   struct {
		Type       string `json:"type"`
		Text       string `json:"text"`
		Thinking   string `json:"thinking"`
		Signature  string `json:"signature"`
		Partial    string `json:"partial_json"`
		StopReason string `json:"stop_reason"`
	} `json:"delta"`
	Usage *usage.Anthropic `json:"usage"`
}

// wireMessage is a whole answer or its beginning.
type wireMessage struct {
	ID         string                        `json:"id"`
	Type       string                        `json:"type"`
	Model      string                        `json:"model"`
	Content    modelhttp.List[*contentBlock] `json:"content"`
	StopReason string                        `json:"stop_reason"`
	Usage      *usage.Anthropic              `json:"usage"`
}

type contentBlock struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	Signature string          `json:"signature"`
	Data      string          `json:"data"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Input     json.RawMessage `json:"input"`

	index int
	// more collects the deltas of Text, Thinking or Input; signature collects
	// Signature's.
	more, signature strings.Builder
}

type assembly struct {
	onDelta func(loop.Delta)
	message wireMessage
	usage   limits.Usage
	content modelhttp.Content
	done    bool
}

// readStream reads a streamed answer. Without a stop reason or the last event the
// answer is incomplete, and nothing of it is used.
func readStream(res *http.Response, onDelta func(loop.Delta)) (loop.Response, error) {
	a := &assembly{onDelta: onDelta}
	events := ssestream.NewDecoder(&http.Response{Header: http.Header{}, Body: res.Body})
	for events.Next() {
		data := bytes.TrimSpace(events.Event().Data)
		if len(data) == 0 {
			continue
		}
		if err := a.addEvent(data); err != nil {
			return loop.Response{}, err
		}
		if err := a.content.Check(); err != nil {
			return loop.Response{}, err
		}
	}
	switch err := events.Err(); {
	case a.done:
		return a.buildResponse(), nil
	case err != nil:
		return loop.Response{}, err
	default:
		return loop.Response{}, modelhttp.ErrCut
	}
}

// readWhole reads an answer that is not streamed.
func readWhole(body []byte, onDelta func(loop.Delta)) (loop.Response, error) {
	a := &assembly{onDelta: onDelta}
	if err := json.Unmarshal(body, &a.message); err != nil {
		return loop.Response{}, fmt.Errorf("%w: %w", modelhttp.ErrMalformed, err)
	}
	switch {
	case a.message.Type == "error":
		return loop.Response{}, &modelhttp.StreamError{Body: body}
	case a.message.StopReason == "":
		return loop.Response{}, fmt.Errorf("%w: an answer without a stop reason", modelhttp.ErrMalformed)
	}
	a.addUsage(a.message.Usage)
	for _, b := range a.message.Content {
		if b != nil {
			a.startBlock(b)
		}
	}
	if err := a.content.Check(); err != nil {
		return loop.Response{}, err
	}
	return a.buildResponse(), nil
}

// addEvent adds an event. The API asks its clients to ignore unknown types.
func (a *assembly) addEvent(data []byte) error {
	var e event
	if err := json.Unmarshal(data, &e); err != nil {
		return fmt.Errorf("%w: %w", modelhttp.ErrMalformed, err)
	}
	switch e.Type {
	case "error":
		return &modelhttp.StreamError{Body: data, Begun: len(a.message.Content) > 0}
	case "message_start":
		if e.Message != nil {
			a.message.ID, a.message.Model = e.Message.ID, e.Message.Model
			a.addUsage(e.Message.Usage)
		}
	case "content_block_start":
		if e.Block != nil {
			e.Block.index = e.Index
			a.message.Content = append(a.message.Content, e.Block)
			a.startBlock(e.Block)
		}
	case "content_block_delta":
		a.addDelta(e)
	case "message_delta":
		a.addUsage(e.Usage)
		if e.Delta.StopReason != "" {
			if !isCut(a.message.StopReason) { // a later reason doesn't make an answer whole
				a.message.StopReason = e.Delta.StopReason
			}
			a.done = true
		}
	case "message_stop":
		a.done = true
	}
	return nil
}

func isCut(reason string) bool {
	return slices.Contains([]string{"max_tokens", "model_context_window_exceeded", "refusal"}, reason)
}

// startBlock counts a block and delivers its first text or its tool's name.
func (a *assembly) startBlock(b *contentBlock) {
	a.content.AddBlock()
	a.content.Add(b.Text, b.Thinking, b.Signature, b.Data, b.ID, b.Name, string(b.Input))
	switch {
	case b.Type == "text" && b.Text != "":
		a.onDelta(loop.Delta{Text: b.Text})
	case b.Type == "tool_use":
		a.onDelta(loop.Delta{ToolName: b.Name})
	}
}

func (a *assembly) addDelta(e event) {
	d := e.Delta
	a.content.Add(d.Text, d.Thinking, d.Signature, d.Partial)
	for _, b := range slices.Backward(a.message.Content) {
		if b.index != e.Index {
			continue
		}
		switch d.Type {
		case "text_delta":
			b.more.WriteString(d.Text)
			a.onDelta(loop.Delta{Text: d.Text})
		case "thinking_delta":
			b.more.WriteString(d.Thinking)
		case "signature_delta":
			b.signature.WriteString(d.Signature)
		case "input_json_delta":
			b.more.WriteString(d.Partial)
		}
		return
	}
}

func (a *assembly) addUsage(u *usage.Anthropic) {
	if u != nil {
		a.usage = usage.Max(a.usage, u.Limits())
	}
}

// buildResponse returns the answer. It keeps the order of blocks, because the provider
// wants them back unchanged.
func (a *assembly) buildResponse() loop.Response {
	m := loop.Message{Role: loop.RoleAssistant}
	for _, b := range a.message.Content {
		switch {
		case b == nil:
		case b.Type == "text":
			m.Blocks = append(m.Blocks, loop.Block{Text: &loop.Text{Text: b.Text + b.more.String()}})
		case b.Type == "thinking":
			m.Blocks = append(m.Blocks, loop.Block{Thinking: &loop.Thinking{Text: b.Thinking + b.more.String(), Signature: b.Signature + b.signature.String()}})
		case b.Type == "redacted_thinking":
			m.Blocks = append(m.Blocks, loop.Block{Thinking: &loop.Thinking{Redacted: b.Data}})
		case b.Type == "tool_use":
			// The loop resolves the name and checks the arguments.
			raw := cmp.Or(b.more.String(), string(b.Input))
			m.Blocks = append(m.Blocks, loop.Block{ToolUse: &loop.ToolUse{ProviderID: b.ID, Name: tools.Name(b.Name), Raw: raw}})
		}
	}
	return loop.Response{
		Message: m, Finish: a.message.StopReason, ID: a.message.ID, Model: a.message.Model,
		Usage: a.usage, Truncated: isCut(a.message.StopReason),
	}
}
