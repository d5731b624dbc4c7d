package transcript

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/bridge"
)

// event is an event of a stream, or a whole answer, in any protocol.
type event struct {
	Type string `json:"type"`

	// Anthropic. A whole answer has content.
	Content json.RawMessage `json:"content"`
	Index   int             `json:"index"`
	Block   *part           `json:"content_block"`
	Delta   json.RawMessage `json:"delta"` // Responses too

	// Responses. A whole answer has output.
	Output      json.RawMessage `json:"output"`
	Response    *event          `json:"response"`
	OutputIndex int             `json:"output_index"`
	Item        *part           `json:"item"`

	// Chat
	Choices first[struct {
		Message *chatMessage `json:"message"`
		Delta   *chatMessage `json:"delta"`
	}] `json:"choices"`

	// Gemini
	Candidates first[struct {
		Content wireMessage `json:"content"`
	}] `json:"candidates"`
}

// first is a list's first element, nil if there is none. Requests for more than one
// answer are refused.
type first[T any] struct{ element *T }

// UnmarshalJSON implements [json.Unmarshaler].
func (f *first[T]) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(bytes.NewReader(data))
	if start, err := d.Token(); err != nil || start != json.Delim('[') || !d.More() {
		return err
	}
	return d.Decode(&f.element)
}

// answer assembles an answer from its events. It stops at the first error.
type answer struct {
	reader
	protocol bridge.Protocol
	parts    []*part
	at       map[string]*part // by index
	// output is the items that a stream of Responses repeats at its end.
	output json.RawMessage
}

// readAnswer reads what arrived of an answer.
func readAnswer(p bridge.Protocol, body []byte) []loop.Message {
	a := &answer{protocol: p, at: map[string]*part{}}
	if bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) {
		var whole event
		if decode(body, &whole) == nil {
			_ = a.addWhole(&whole) // keeps what it read before
		}
		return a.messages
	}
	forEachEvent(body, func(data []byte) bool {
		var e event
		return decode(data, &e) == nil && a.addEvent(&e) == nil
	})
	_ = a.addItems(a.output) // keeps what it read before
	if len(a.messages) > 0 {
		return a.messages
	}
	for _, p := range a.parts {
		if a.addItem(p) != nil {
			break
		}
	}
	return a.messages
}

// forEachEvent calls f with the data of each event of a stream, until f returns false. An
// event that isn't complete doesn't count.
func forEachEvent(stream []byte, f func(data []byte) bool) {
	var data []byte
	for line := range bytes.Lines(bytes.ReplaceAll(stream, []byte("\r\n"), []byte("\n"))) {
		line, complete := bytes.CutSuffix(line, []byte("\n"))
		if more, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			data = append(append(data, more...), '\n')
		}
		if !complete || len(line) > 0 || len(data) == 0 {
			continue
		}
		if bytes.HasPrefix(bytes.TrimSpace(data), []byte("[DONE]")) || !f(data) {
			return
		}
		data = data[:0]
	}
}

func (a *answer) addWhole(e *event) error {
	switch a.protocol {
	case bridge.Anthropic:
		return a.addContent(loop.RoleAssistant, e.Content)
	case bridge.Responses:
		return a.addItems(e.Output)
	case bridge.Chat:
		if c := e.Choices.element; c != nil && c.Message != nil {
			c.Message.Role = "assistant"
			return a.addChat(c.Message)
		}
	case bridge.Gemini:
		if c := e.Candidates.element; c != nil {
			return a.addContent(loop.RoleAssistant, c.Content.Parts)
		}
	}
	return nil
}

// addEvent adds an event. Types that it doesn't know are ignored.
func (a *answer) addEvent(e *event) error {
	a.elements = 0 // the answer's size bounds the events
	switch a.protocol {
	case bridge.Anthropic:
		return a.addBlockEvent(e)
	case bridge.Responses:
		return a.addResponseEvent(e)
	case bridge.Chat:
		if c := e.Choices.element; c != nil && c.Delta != nil {
			return a.addChatDelta(c.Delta)
		}
	case bridge.Gemini:
		if c := e.Candidates.element; c != nil {
			return forEach(&a.reader, c.Content.Parts, a.addGeminiDelta)
		}
	}
	return nil
}

// find returns the part with an index, which it adds if it is new.
func (a *answer) find(index string, made *part) (*part, error) {
	if p := a.at[index]; p != nil {
		return p, nil
	}
	if len(a.parts) == maxElements {
		return nil, errTooMany
	}
	a.parts = append(a.parts, made)
	a.at[index] = made
	return made, nil
}

func (a *answer) addBlockEvent(e *event) error {
	index := strconv.Itoa(e.Index)
	switch {
	case e.Type == "content_block_start" && e.Block != nil:
		e.Block.size = len(e.Block.Content)
		_, err := a.find(index, e.Block)
		return err
	case e.Type == "content_block_delta" && a.at[index] != nil:
		var d struct {
			Text      string `json:"text"`
			Thinking  string `json:"thinking"`
			Signature string `json:"signature"`
			Partial   string `json:"partial_json"`
		}
		if err := decode(e.Delta, &d); err != nil {
			return err
		}
		p := a.at[index]
		p.Signature = cmp.Or(d.Signature, p.Signature) // comes in one piece
		p.more.WriteString(d.Text)
		p.more.WriteString(d.Thinking)
		p.more.WriteString(d.Partial)
	}
	return nil
}

func (a *answer) addResponseEvent(e *event) error {
	index := strconv.Itoa(e.OutputIndex)
	switch {
	case e.Type == "response.output_item.added" && e.Item != nil:
		_, err := a.find(index, e.Item)
		return err
	case e.Type == "response.output_item.done" && e.Item != nil:
		p, err := a.find(index, e.Item)
		if err == nil && p != e.Item {
			*p = *e.Item
		}
		return err
	case strings.HasSuffix(e.Type, ".delta") && a.at[index] != nil:
		var delta string
		if err := decode(e.Delta, &delta); err != nil {
			return err
		}
		a.at[index].more.WriteString(delta)
	case e.Response != nil && len(e.Response.Output) > 0:
		a.output = e.Response.Output
	}
	return nil
}

func (a *answer) addChatDelta(m *chatMessage) error {
	var content string
	if err := decode(m.Content, &content); err != nil && len(m.Content) > 0 {
		return err
	}
	for _, piece := range []part{
		{Type: "thinking", Text: cmp.Or(m.ReasoningContent, m.Reasoning)}, {Type: "text", Text: content + m.Refusal},
	} {
		if piece.Text == "" {
			continue
		}
		p, err := a.find(piece.Type, &part{Type: piece.Type})
		if err != nil {
			return err
		}
		p.more.WriteString(piece.Text)
	}
	return forEach(&a.reader, m.ToolCalls, func(c *chatCall, _ int) error {
		index := c.ID
		if c.Index != nil {
			index = "call " + strconv.Itoa(*c.Index)
		}
		if p := a.at[index]; p != nil && c.ID != "" && p.CallID != c.ID {
			index = c.ID // some servers send the same index for every call
		}
		made := &part{Type: "function_call", CallID: c.ID, Name: c.Function.Name}
		if c.Custom.Name != "" {
			made.Type, made.Name = "custom_tool_call", c.Custom.Name
		}
		p, err := a.find(index, made)
		if err != nil {
			return err
		}
		if c.Index != nil {
			a.at["call "+strconv.Itoa(*c.Index)] = p // for pieces without an ID
		}
		p.more.WriteString(c.Function.Arguments + c.Custom.Input)
		return nil
	})
}

// addGeminiDelta adds a part, or continues the last one's text.
func (a *answer) addGeminiDelta(p *part, size int) error {
	p.size = size
	if n := len(a.parts); n > 0 && p.isText() && a.parts[n-1].isText() && p.Thought == a.parts[n-1].Thought {
		a.parts[n-1].more.WriteString(p.Text)
		return nil
	}
	_, err := a.find(strconv.Itoa(len(a.parts)), p)
	return err
}

// isText reports whether a part of Gemini is text or a thought.
func (p *part) isText() bool {
	return p.Type == "" && p.FunctionCall == nil && p.FunctionResponse == nil && p.InlineData == nil
}
