package loop

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/tools"
)

// Role is the sender of a message.
type Role string

// The roles. A tool message has exactly one ToolResult. An adapter may merge
// neighbouring tool messages on its wire.
const (
	RoleSystem    Role = "system"
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// Message is one entry of the history.
type Message struct {
	Role   Role    `json:"role"`
	Blocks []Block `json:"blocks"`
}

// joinedText returns the text blocks of the message, joined by newlines, or "" if
// they are only white space.
func (m Message) joinedText() string {
	var parts []string
	for _, b := range m.Blocks {
		if b.Text != nil {
			parts = append(parts, b.Text.Text)
		}
	}
	joined := strings.Join(parts, "\n")
	if strings.TrimSpace(joined) == "" {
		return ""
	}
	return joined
}

// toolUses returns the tool calls of the message, in order.
func (m Message) toolUses() []ToolUse {
	var uses []ToolUse
	for _, b := range m.Blocks {
		if b.ToolUse != nil {
			uses = append(uses, *b.ToolUse)
		}
	}
	return uses
}

// lastText returns the last text of an assistant in the messages, or "".
func lastText(messages []Message) string {
	for _, m := range slices.Backward(messages) {
		if m.Role == RoleAssistant && m.joinedText() != "" {
			return m.joinedText()
		}
	}
	return ""
}

// NewText returns a message with one text block.
func NewText(role Role, text boundary.Text) Message {
	return Message{Role: role, Blocks: []Block{{Text: &Text{Text: string(text)}}}}
}

// Block is one part of a message; exactly one field is set.
type Block struct {
	Text       *Text       `json:"text,omitempty"`
	ToolUse    *ToolUse    `json:"tool_use,omitempty"`
	ToolResult *ToolResult `json:"tool_result,omitempty"`
	Thinking   *Thinking   `json:"thinking,omitempty"`
}

// Text is plain text.
type Text struct {
	Text string `json:"text"`
}

// ToolUse is a tool call that the model made. An adapter sets ProviderID, Name
// (the name on its wire) and Raw (the arguments as received). The loop sets the
// other fields.
type ToolUse struct {
	// ID is unique in the session: "tu_" and a ULID.
	ID string `json:"id"`
	// ProviderID is the provider's ID of the call, or "" if it has no usable
	// one.
	ProviderID string `json:"provider_id,omitempty"`
	// Name is the canonical name, or the name that the model wrote if no offered
	// tool has it.
	Name tools.Name `json:"name"`
	// Input is a JSON object. It is {} if InputError is set.
	Input json.RawMessage `json:"input"`
	// InputError is the reason why the call's arguments can't be used, if so.
	InputError string `json:"input_error,omitempty"`
	// Raw is the arguments as received, if InputError is set.
	Raw string `json:"raw,omitempty"`
}

// WireID returns the ID of the call on a provider's wire: ProviderID if there is
// one, otherwise ID.
func (u ToolUse) WireID() string {
	if u.ProviderID != "" {
		return u.ProviderID
	}
	return u.ID
}

// WireIDs maps the ID of each tool call in messages to its [ToolUse.WireID].
// Adapters use it to name the call that a result answers.
func WireIDs(messages []Message) map[string]string {
	ids := map[string]string{}
	for _, m := range messages {
		for _, u := range m.toolUses() {
			ids[u.ID] = u.WireID()
		}
	}
	return ids
}

// ToolResult is the result of one ToolUse.
type ToolResult struct {
	ToolUseID string        `json:"tool_use_id"`
	Content   []tools.Block `json:"content"`
	IsError   bool          `json:"is_error"`
	// DenialReason is why a person refused the call, in their words. The model gets it
	// behind the wrapper of Content, since no tool wrote it.
	DenialReason string `json:"denial_reason,omitempty"`
}

// Thinking is reasoning of the model. It is kept because some providers require
// it back, unchanged and with its signature.
type Thinking struct {
	Text      string `json:"text"`
	Signature string `json:"signature,omitempty"`
	// Redacted is reasoning that the provider encrypted. Text is a summary then, if
	// there is one.
	Redacted string `json:"redacted,omitempty"`
	// Model is the model that reasoned, as provider/model. The loop sets it, and
	// sends the block to no other model.
	Model string `json:"model,omitempty"`
}
