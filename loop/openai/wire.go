package openai

import (
	"bytes"
	"encoding/json"
	"strings"
)

// completion is an answer, or a piece of one, as endpoints send it. Every field may
// be missing, null or of another type.
type completion struct {
	ID      looseString `json:"id"`
	Model   looseString `json:"model"`
	Choices []choice    `json:"choices"`
	Usage   *usage      `json:"usage"`
	// Error is the error of an endpoint that fails after status 200.
	Error json.RawMessage `json:"error"`
}

// choice is one of several answers; only the first is used.
type choice struct {
	Index   looseString  `json:"index"`
	Message *wireMessage `json:"message"`
	Delta   *wireMessage `json:"delta"`
	Finish  looseString  `json:"finish_reason"`
}

// wireMessage is a message of the model, whole or in a delta.
type wireMessage struct {
	Content          content     `json:"content"`
	Refusal          looseString `json:"refusal"`
	Reasoning        looseString `json:"reasoning"`
	ReasoningContent looseString `json:"reasoning_content"`
	ToolCalls        []toolCall  `json:"tool_calls"`
	// FunctionCall is the deprecated form of a single tool call.
	FunctionCall *function `json:"function_call"`
}

// reasoningText returns the model's reasoning, which has one of two names.
func (m wireMessage) reasoningText() string {
	if m.ReasoningContent != "" {
		return string(m.ReasoningContent)
	}
	return string(m.Reasoning)
}

// toolCall is a call or a piece of one.
type toolCall struct {
	Index    looseString `json:"index"`
	ID       looseString `json:"id"`
	Function function    `json:"function"`
}

// function is the function of a call. Arguments are JSON in a string, or JSON.
type function struct {
	Name      looseString `json:"name"`
	Arguments looseString `json:"arguments"`
}

// looseString is a string. It is decoded from a string or null; any other JSON value
// is kept as its text.
type looseString string

// UnmarshalJSON never fails.
func (l *looseString) UnmarshalJSON(data []byte) error {
	var s string
	switch {
	case string(data) == "null":
		*l = ""
	case data[0] == '"' && json.Unmarshal(data, &s) == nil:
		*l = looseString(s)
	default:
		*l = looseString(data)
	}
	return nil
}

// content is the text of a message. It is decoded from null, a string, or a list of
// parts.
type content struct{ text, thinking string }

// UnmarshalJSON never fails: it ignores unknown parts.
func (c *content) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte("[")) {
		var l looseString
		_ = l.UnmarshalJSON(data)
		c.text = string(l)
		return nil
	}
	var parts []struct {
		Text     looseString `json:"text"`
		Thinking []struct {
			Text looseString `json:"text"`
		} `json:"thinking"`
	}
	if json.Unmarshal(data, &parts) != nil {
		return nil
	}
	var text, thinking strings.Builder
	for _, p := range parts {
		text.WriteString(string(p.Text))
		for _, t := range p.Thinking {
			thinking.WriteString(string(t.Text))
		}
	}
	c.text, c.thinking = text.String(), thinking.String()
	return nil
}
