package openai

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools"
)

// assembly puts an answer together from its pieces. A whole answer is one piece.
type assembly struct {
	onDelta func(loop.Delta)

	id, model, finish string
	text, thinking    strings.Builder
	calls             []*call
	usage             *usage
	// done says that the endpoint said that it is done.
	done bool
}

// maxContentBytes bounds the text, reasoning and arguments of an answer. The longest
// outputs that models have are 128,000 tokens, about half a megabyte; what is
// larger would only burden the records and every later request.
const maxContentBytes = 16 << 20

// checkSize says whether the answer is too large.
func (a *assembly) checkSize() error {
	size := a.text.Len() + a.thinking.Len()
	for _, c := range a.calls {
		size += c.arguments.Len()
	}
	if size > maxContentBytes {
		return errTooLarge
	}
	return nil
}

// call is one tool call as it grows. index is -1 where the endpoint gives none.
type call struct {
	index     int
	id, name  string
	arguments strings.Builder
}

// addCompletion takes one piece.
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
			a.finish = string(choice.Finish)
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
			// Each entry of a whole message is a call, whatever its id says.
			for _, whole := range choice.Message.ToolCalls {
				a.startCall(whole)
			}
		}
	}
}

// addMessage takes what the model said.
func (a *assembly) addMessage(m wireMessage) {
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

// addCallPiece adds a piece to the call that it belongs to: by its index, else by its
// id, else by order. Endpoints that give every call the same index tell them
// apart by id, or by a name that comes when the call before is complete.
func (a *assembly) addCallPiece(piece toolCall) {
	c := a.findCall(piece)
	if c == nil {
		a.startCall(piece)
		return
	}
	a.extendCall(c, piece)
}

// startCall starts a call.
func (a *assembly) startCall(piece toolCall) {
	c := &call{index: -1}
	if i, err := strconv.Atoi(string(piece.Index)); err == nil {
		c.index = i
	}
	a.calls = append(a.calls, c)
	a.extendCall(c, piece)
}

// extendCall adds a piece to its call.
func (a *assembly) extendCall(c *call, piece toolCall) {
	if name := string(piece.Function.Name); name != "" && name != c.name {
		c.name += name // a name in pieces comes before any argument
		a.onDelta(loop.Delta{ToolName: c.name})
	}
	c.id = cmp.Or(c.id, string(piece.ID))
	c.arguments.WriteString(string(piece.Function.Arguments))
}

// findCall is the call that a piece continues, or nil where it begins one.
func (a *assembly) findCall(piece toolCall) *call {
	index, err := strconv.Atoi(string(piece.Index))
	indexed := err == nil
	id := string(piece.ID)
	named := piece.Function.Name != ""
	for _, c := range slices.Backward(a.calls) {
		switch {
		case indexed && c.index != index, id != "" && c.id != "" && c.id != id:
			continue // another call's place, or its id
		case id != "" && c.id == id:
			return c
		case !indexed && id != "":
			continue // an id that no call has begins one
		case named && c.name != "" && (!indexed || c.isComplete()):
			return nil // a name begins the next call in the same place
		}
		return c
	}
	return nil
}

// isComplete says that the call's arguments are whole.
func (c *call) isComplete() bool {
	return c.arguments.Len() > 0 && json.Valid([]byte(c.arguments.String()))
}

// buildResponse is the whole answer.
func (a *assembly) buildResponse() loop.Response {
	m := loop.Message{Role: loop.RoleAssistant}
	if a.thinking.Len() > 0 {
		m.Blocks = append(m.Blocks, loop.Block{Thinking: &loop.Thinking{Text: a.thinking.String()}})
	}
	if a.text.Len() > 0 {
		m.Blocks = append(m.Blocks, loop.Block{Text: &loop.Text{Text: a.text.String()}})
	}
	for _, c := range a.calls {
		// The loop makes the name canonical, and judges the arguments.
		m.Blocks = append(m.Blocks, loop.Block{ToolUse: &loop.ToolUse{
			ProviderID: c.id, Name: tools.Name(c.name), Raw: c.arguments.String(),
		}})
	}
	r := loop.Response{
		Message: m, Finish: a.finish, ID: a.id, Model: a.model,
		Truncated: slices.Contains([]string{"length", "max_tokens", "model_length", "content_filter"}, strings.ToLower(a.finish)),
	}
	if a.usage != nil {
		r.Usage = a.usage.limitsUsage()
	}
	return r
}
