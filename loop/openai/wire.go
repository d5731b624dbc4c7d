package openai

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/loop/usage"
)

// completion is an answer or a piece of one. Fields may be missing, null or of another
// type.
type completion struct {
	ID      modelhttp.LooseString  `json:"id"`
	Model   modelhttp.LooseString  `json:"model"`
	Choices modelhttp.List[choice] `json:"choices"`
	Usage   *usage.OpenAI          `json:"usage"`
	// Error is an error sent after status 200. For vLLM the whole value may be the
	// error; Object is then "error".
	Error  json.RawMessage       `json:"error"`
	Object modelhttp.LooseString `json:"object"`
}

// hasFailed reports whether the value is an error or ends a failed answer.
func (c completion) hasFailed() bool {
	return isSet(c.Error) || c.Object == "error" ||
		slices.ContainsFunc(c.Choices, func(c choice) bool { return c.Finish == "error" })
}

// choice is one of several answers. Only the first is used.
type choice struct {
	Index   modelhttp.LooseString `json:"index"`
	Message *wireMessage          `json:"message"`
	Delta   *wireMessage          `json:"delta"`
	Finish  modelhttp.LooseString `json:"finish_reason"`
}

type wireMessage struct {
	Content          content                  `json:"content"`
	Refusal          modelhttp.LooseString    `json:"refusal"`
	Reasoning        modelhttp.LooseString    `json:"reasoning"`
	ReasoningContent modelhttp.LooseString    `json:"reasoning_content"`
	ToolCalls        modelhttp.List[toolCall] `json:"tool_calls"`
	// FunctionCall is the deprecated form of a single call.
	FunctionCall *function `json:"function_call"`
}

// reasoningText returns the model's reasoning, which has two possible names.
func (m wireMessage) reasoningText() string {
	return string(cmp.Or(m.ReasoningContent, m.Reasoning))
}

type toolCall struct {
	Index    modelhttp.LooseString `json:"index"`
	ID       modelhttp.LooseString `json:"id"`
	Function function              `json:"function"`
}

// function is a call's function. Arguments may be JSON or JSON in a string.
type function struct {
	Name      modelhttp.LooseString `json:"name"`
	Arguments modelhttp.LooseString `json:"arguments"`
}

// content is a message's text, decoded from null, a string or a list of parts.
type content struct{ text, thinking string }

// UnmarshalJSON never fails: it ignores unknown parts.
func (c *content) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte("[")) {
		var l modelhttp.LooseString
		_ = l.UnmarshalJSON(data)
		c.text = string(l)
		return nil
	}
	type part struct {
		Text     modelhttp.LooseString `json:"text"`
		Thinking modelhttp.List[struct {
			Text modelhttp.LooseString `json:"text"`
		}] `json:"thinking"`
	}
	var parts modelhttp.List[part]
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
