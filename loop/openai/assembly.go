package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/openai/openai-go/v3/packages/ssestream"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/loop/usage"
	"github.com/caisson-run/caisson/tools"
)

// assembly assembles an answer from pieces. A whole answer is one piece.
type assembly struct {
	onDelta func(loop.Delta)

	id, model, finish string
	text, thinking    strings.Builder
	calls             []*call
	usage             *usage.OpenAI
	content           modelhttp.Content
	done              bool
}

// call is a tool call under assembly. Its index is -1 if the endpoint sent none.
type call struct {
	index     int
	id, name  string
	arguments strings.Builder
	// checked is the number of bytes that isComplete has read.
	checked int
	// named is set if only the call's name came again after its arguments were
	// complete.
	named bool
}

func (a *assembly) addCompletion(c completion) {
	a.id = cmp.Or(a.id, string(c.ID))
	a.model = cmp.Or(a.model, string(c.Model))
	if c.Usage != nil {
		a.usage = c.Usage
	}
	for _, choice := range c.Choices {
		if choice.Index != "" && choice.Index != "0" {
			continue
		}
		if choice.Finish != "" {
			if !isCut(a.finish) { // a later reason doesn't make an answer whole
				a.finish = string(choice.Finish)
			}
			a.done = true
		}
		switch {
		case choice.Delta != nil:
			a.addMessage(*choice.Delta)
			for _, piece := range choice.Delta.ToolCalls {
				a.addCallPiece(piece)
			}
		case choice.Message != nil:
			a.addMessage(*choice.Message)
			// In a whole message, each entry is a call, even if IDs repeat.
			for _, whole := range choice.Message.ToolCalls {
				a.startCall(whole)
			}
		}
	}
}

func isCut(finish string) bool {
	return slices.Contains([]string{"length", "max_tokens", "model_length", "content_filter"}, strings.ToLower(finish))
}

func (a *assembly) addMessage(m wireMessage) {
	a.content.Add(m.Content.thinking, m.reasoningText(), m.Content.text, string(m.Refusal))
	a.thinking.WriteString(m.Content.thinking)
	a.thinking.WriteString(m.reasoningText())
	if text := m.Content.text + string(m.Refusal); text != "" {
		a.text.WriteString(text)
		a.onDelta(loop.Delta{Text: text})
	}
	if m.FunctionCall != nil {
		a.addCallPiece(toolCall{Function: *m.FunctionCall})
	}
}

func (a *assembly) addCallPiece(piece toolCall) {
	c := a.findCall(piece)
	if c != nil && c.named && piece.Function.Name == "" && piece.Function.Arguments != "" {
		// The name belonged to the next call.
		piece.Function.Name, c = modelhttp.LooseString(c.name), nil
	}
	if c == nil {
		a.startCall(piece)
		return
	}
	a.extendCall(c, piece)
}

func (a *assembly) startCall(piece toolCall) {
	c := &call{index: -1}
	if i, err := strconv.Atoi(string(piece.Index)); err == nil {
		c.index = i
	}
	a.content.AddBlock()
	a.calls = append(a.calls, c)
	a.extendCall(c, piece)
}

func (a *assembly) extendCall(c *call, piece toolCall) {
	a.content.Add(string(piece.ID), string(piece.Function.Arguments))
	if name := string(piece.Function.Name); name != "" && name != c.name {
		c.name += name // a split name arrives before any argument
		a.content.Add(c.name)
		a.onDelta(loop.Delta{ToolName: c.name})
	}
	c.id = cmp.Or(c.id, string(piece.ID))
	c.arguments.WriteString(string(piece.Function.Arguments))
}

// findCall finds the call that a piece continues, by index, ID or order. It returns nil
// if the piece starts a call. Some endpoints send the same index for every call; then a
// different ID starts the next one, or a name once the previous call is complete.
func (a *assembly) findCall(piece toolCall) *call {
	index, err := strconv.Atoi(string(piece.Index))
	indexed := err == nil
	id := string(piece.ID)
	named := piece.Function.Name != ""
	for _, c := range slices.Backward(a.calls) {
		switch {
		case indexed && c.index != index, id != "" && c.id != "" && c.id != id:
			continue // another call has this index or ID
		case id != "" && c.id == id:
			return c
		case !indexed && id != "":
			continue // a new ID starts a call
		case named && c.name == string(piece.Function.Name) && piece.Function.Arguments == "" && indexed && c.isComplete():
			c.named = true
		case named && c.name != "" && (!indexed || c.isComplete()):
			return nil // a name starts the next call with the same index
		}
		return c
	}
	if n := len(a.calls); n > 0 && indexed && id == "" && !named && a.calls[n-1].arguments.Len() == 0 {
		a.calls[n-1].index = index // its first piece had the previous call's index
		return a.calls[n-1]
	}
	return nil
}

// isRepeated reports whether call i repeats an earlier one with the same ID. Some
// endpoints send calls again with another index.
func (a *assembly) isRepeated(i int) bool {
	c := a.calls[i]
	return c.id != "" && slices.ContainsFunc(a.calls[:i], func(o *call) bool {
		return o.index != c.index && o.id == c.id && o.name == c.name && o.arguments.String() == c.arguments.String()
	})
}

// isComplete reports whether the call's arguments are complete JSON. It bounds what it
// reads in total, because a server may make it check after each byte.
func (c *call) isComplete() bool {
	c.checked += c.arguments.Len()
	return c.arguments.Len() > 0 && c.checked <= 16*modelhttp.MaxContentBytes && json.Valid([]byte(c.arguments.String()))
}

func (a *assembly) buildResponse() loop.Response {
	m := loop.Message{Role: loop.RoleAssistant}
	if a.thinking.Len() > 0 {
		m.Blocks = append(m.Blocks, loop.Block{Thinking: &loop.Thinking{Text: a.thinking.String()}})
	}
	if a.text.Len() > 0 {
		m.Blocks = append(m.Blocks, loop.Block{Text: &loop.Text{Text: a.text.String()}})
	}
	for i, c := range a.calls {
		if a.isRepeated(i) {
			continue
		}
		// The loop resolves the name and checks the arguments.
		m.Blocks = append(m.Blocks, loop.Block{ToolUse: &loop.ToolUse{
			ProviderID: c.id, Name: tools.Name(c.name), Raw: c.arguments.String(),
		}})
	}
	r := loop.Response{
		Message: m, Finish: a.finish, ID: a.id, Model: a.model,
		Truncated: isCut(a.finish),
	}
	if a.usage != nil {
		r.Usage = a.usage.Limits()
	}
	return r
}

// readStream reads a streamed answer. Without a finish reason or [DONE] the answer may
// be cut, and nothing of it is used.
func readStream(res *http.Response, onDelta func(loop.Delta)) (loop.Response, error) {
	a := &assembly{onDelta: onDelta}
	events := ssestream.NewDecoder(res)
	begun := false
	for events.Next() {
		data := bytes.TrimSpace(events.Event().Data)
		if bytes.HasPrefix(data, []byte("[DONE]")) {
			a.done = true
			return a.buildResponse(), nil
		}
		if len(data) == 0 {
			continue
		}
		piece, err := decodeCompletion(data)
		if err != nil {
			if failure, ok := errors.AsType[*modelhttp.StreamError](err); ok {
				failure.Begun = begun
			}
			return loop.Response{}, err
		}
		begun = true
		a.addCompletion(piece)
		if err := a.content.Check(); err != nil {
			return loop.Response{}, err
		}
	}
	switch err := events.Err(); {
	case a.done:
		// Only the usage can be missing.
		return a.buildResponse(), nil
	case err != nil:
		return loop.Response{}, err
	default:
		return loop.Response{}, modelhttp.ErrCut
	}
}

// readWhole reads an answer that is not streamed.
func readWhole(body []byte, onDelta func(loop.Delta)) (loop.Response, error) {
	whole, err := decodeCompletion(body)
	if err != nil {
		return loop.Response{}, err
	}
	if len(whole.Choices) == 0 {
		return loop.Response{}, fmt.Errorf("%w: an answer without choices", modelhttp.ErrMalformed)
	}
	a := &assembly{onDelta: onDelta}
	a.addCompletion(whole)
	if err := a.content.Check(); err != nil {
		return loop.Response{}, err
	}
	return a.buildResponse(), nil
}

// decodeCompletion decodes an answer or a piece of one. If it contains an error, it
// returns that as a *[modelhttp.StreamError].
func decodeCompletion(data []byte) (completion, error) {
	var c completion
	if len(data) > 2*modelhttp.MaxContentBytes { // twice, for escapes; decoding takes time
		return c, modelhttp.ErrTooLarge
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("%w: %w", modelhttp.ErrMalformed, err)
	}
	if c.hasFailed() {
		return c, &modelhttp.StreamError{Body: data}
	}
	return c, nil
}
