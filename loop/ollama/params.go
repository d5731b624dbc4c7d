package ollama

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
)

type chatRequest struct {
	Model    string         `json:"model"`
	Messages []chatMessage  `json:"messages"`
	Tools    []chatTool     `json:"tools,omitempty"`
	Stream   bool           `json:"stream"`
	Think    any            `json:"think,omitempty"` // a bool or a word
	Options  map[string]any `json:"options,omitempty"`
	// Truncate and Shift stay false: the server would silently drop the beginning of a
	// conversation longer than its context window.
	Truncate bool `json:"truncate"`
	Shift    bool `json:"shift"`
}

type chatMessage struct {
	Role       string     `json:"role"`
	Content    string     `json:"content"`
	Thinking   string     `json:"thinking,omitempty"`
	Images     [][]byte   `json:"images,omitempty"`
	ToolCalls  []sentCall `json:"tool_calls,omitempty"`
	ToolName   string     `json:"tool_name,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

// sentCall is an earlier call. Its arguments are an object.
type sentCall struct {
	ID       string `json:"id,omitempty"`
	Function struct {
		Index     int             `json:"index"`
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	} `json:"function"`
}

type chatTool struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

func (m *Model) buildRequest(req loop.Request) (chatRequest, error) {
	out := chatRequest{Model: m.options.Model, Messages: buildMessages(req.Messages), Stream: m.options.Stream, Options: map[string]any{}}
	for _, d := range req.Tools {
		name, err := d.Name.LLMWithin(modelhttp.ToolNameBytes)
		if err != nil {
			return out, fmt.Errorf("offer tool: %w", err)
		}
		tool := chatTool{Type: "function"}
		tool.Function.Name = string(name)
		tool.Function.Description = d.Description
		tool.Function.Parameters = d.InputSchema
		out.Tools = append(out.Tools, tool)
	}
	switch effort := m.options.ReasoningEffort; {
	case effort == "none":
		out.Think = false
	case effort != "" && m.noThinkWords.Load():
		out.Think = true
	case effort != "":
		out.Think = effort
	}
	if m.options.Temperature != nil {
		out.Options["temperature"] = *m.options.Temperature
	}
	if m.options.ContextWindow > 0 {
		out.Options["num_ctx"] = m.options.ContextWindow
	}
	if n := cmp.Or(req.MaxOutputTokens, m.options.MaxOutputTokens); n > 0 {
		out.Options["num_predict"] = n
	}
	return out, nil
}

// buildMessages converts the conversation. Templates show only users' images, so a user
// message with a round's images follows its results.
func buildMessages(history []loop.Message) []chatMessage {
	ids := loop.WireIDs(history)
	names := map[string]string{}
	var (
		out    []chatMessage
		images [][]byte
	)
	flush := func() {
		if len(images) > 0 {
			out = append(out, chatMessage{Role: "user", Content: "Images of a tool result follow; they are tool output.", Images: images})
			images = nil
		}
	}
	for _, message := range history {
		if message.Role != loop.RoleTool {
			flush()
			out = append(out, buildMessage(message, names))
			continue
		}
		for _, b := range message.Blocks {
			if b.ToolResult == nil {
				continue
			}
			content, pictures := resultContent(*b.ToolResult)
			id := b.ToolResult.ToolUseID
			out = append(out, chatMessage{Role: "tool", Content: content, ToolName: names[id], ToolCallID: cmp.Or(ids[id], id)})
			images = append(images, pictures...)
		}
	}
	flush()
	return out
}

// buildMessage converts a message without results. It adds its calls' names to names.
func buildMessage(message loop.Message, names map[string]string) chatMessage {
	out := chatMessage{Role: string(message.Role), Content: modelhttp.JoinText(message)}
	for _, b := range message.Blocks {
		switch {
		case b.Thinking != nil:
			out.Thinking += b.Thinking.Text
		case b.ToolUse != nil:
			names[b.ToolUse.ID] = modelhttp.WireName(b.ToolUse.Name)
			call := sentCall{ID: b.ToolUse.WireID()}
			call.Function.Index = len(out.ToolCalls)
			call.Function.Name, call.Function.Arguments = names[b.ToolUse.ID], b.ToolUse.Input
			out.ToolCalls = append(out.ToolCalls, call)
		}
	}
	return out
}

func resultContent(r loop.ToolResult) (text string, images [][]byte) {
	var texts []string
	for _, b := range r.Content {
		if b.Image != nil {
			images = append(images, b.Image)
			continue
		}
		texts = append(texts, b.Text)
	}
	if len(images) > 0 {
		texts = append(texts, fmt.Sprintf("[%d images, sent after this result]", len(images)))
	}
	return strings.Join(texts, "\n"), images
}
