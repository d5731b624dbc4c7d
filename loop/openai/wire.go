package openai

import (
	"bytes"
	"encoding/json"
	"strings"
)

// completion is an answer, or a piece of one, as endpoints really send it. Every
// field may be missing, null or of a neighbouring type.
type completion struct {
	ID      loose    `json:"id"`
	Model   loose    `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage"`
	// Error is there where an endpoint fails after it said 200.
	Error json.RawMessage `json:"error"`
}

// choice is one of the answers; only the first is used.
type choice struct {
	Index   loose `json:"index"`
	Message *said `json:"message"`
	Delta   *said `json:"delta"`
	Finish  loose `json:"finish_reason"`
}

// said is what the model said, whole or in a delta.
type said struct {
	Content          content    `json:"content"`
	Refusal          loose      `json:"refusal"`
	Reasoning        loose      `json:"reasoning"`
	ReasoningContent loose      `json:"reasoning_content"`
	ToolCalls        []toolCall `json:"tool_calls"`
	// FunctionCall is the form before tool_calls.
	FunctionCall *function `json:"function_call"`
}

// reasoning is the model's thinking, under either of its names.
func (s said) reasoning() string {
	if s.ReasoningContent != "" {
		return string(s.ReasoningContent)
	}
	return string(s.Reasoning)
}

// toolCall is a call or a piece of one.
type toolCall struct {
	Index    loose    `json:"index"`
	ID       loose    `json:"id"`
	Function function `json:"function"`
}

// function is what is called. Arguments are a string of JSON, or JSON.
type function struct {
	Name      loose `json:"name"`
	Arguments loose `json:"arguments"`
}

// loose is a string that may come as null or as any other JSON value, which is
// then kept as it is written.
type loose string

// UnmarshalJSON never fails.
func (l *loose) UnmarshalJSON(data []byte) error {
	var s string
	switch {
	case string(data) == "null":
		*l = ""
	case data[0] == '"' && json.Unmarshal(data, &s) == nil:
		*l = loose(s)
	default:
		*l = loose(data)
	}
	return nil
}

// content is text that may come as null, a string, or a list of parts.
type content struct{ text, thinking string }

// UnmarshalJSON never fails: what it does not know it leaves out.
func (c *content) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte("[")) {
		var l loose
		_ = l.UnmarshalJSON(data)
		c.text = string(l)
		return nil
	}
	var parts []struct {
		Text     loose `json:"text"`
		Thinking []struct {
			Text loose `json:"text"`
		} `json:"thinking"`
	}
	if json.Unmarshal(data, &parts) != nil {
		return nil
	}
	var said, thought strings.Builder
	for _, p := range parts {
		said.WriteString(string(p.Text))
		for _, t := range p.Thinking {
			thought.WriteString(string(t.Text))
		}
	}
	c.text, c.thinking = said.String(), thought.String()
	return nil
}
