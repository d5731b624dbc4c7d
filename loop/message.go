package loop

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/tools"
)

// Role is the sender of a message.
type Role string

// The roles. A tool message has exactly one ToolResult. Adapters may merge neighbouring
// tool messages.
const (
	RoleSystem    Role = "system"
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// Message is an entry of the history.
type Message struct {
	Role   Role    `json:"role"`
	Blocks []Block `json:"blocks"`
}

// joinedText joins the message's text blocks by newlines. It returns "" if they are
// only white space.
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

func (m Message) toolUses() []ToolUse {
	var uses []ToolUse
	for _, b := range m.Blocks {
		if b.ToolUse != nil {
			uses = append(uses, *b.ToolUse)
		}
	}
	return uses
}

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

// Block is a part of a message. Exactly one field is set.
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

// ToolUse is a tool call of the model. Adapters set ProviderID, Name (as the provider
// has it) and Raw (the arguments as received). The loop sets the other fields.
type ToolUse struct {
	// ID is unique in the session: "tu_" and a ULID.
	ID string `json:"id"`
	// ProviderID is the provider's ID of the call, or "" if that is not usable.
	ProviderID string `json:"provider_id,omitempty"`
	// Name is the canonical name, or the model's if no offered tool has it.
	Name tools.Name `json:"name"`
	// Input is a JSON object, {} if InputError is set.
	Input json.RawMessage `json:"input"`
	// InputError says why the arguments can't be used; "" if they can.
	InputError string `json:"input_error,omitempty"`
	// Raw has the arguments as received if InputError is set.
	Raw string `json:"raw,omitempty"`
}

// WireID returns the call's ID for providers: ProviderID if set, otherwise ID.
func (u ToolUse) WireID() string { return cmp.Or(u.ProviderID, u.ID) }

// WireIDs maps each tool call's ID to its [ToolUse.WireID]. Adapters use it to name the
// call that a result answers.
func WireIDs(messages []Message) map[string]string {
	ids := map[string]string{}
	for _, m := range messages {
		for _, u := range m.toolUses() {
			ids[u.ID] = u.WireID()
		}
	}
	return ids
}

// ToolResult is the result of a ToolUse.
type ToolResult struct {
	ToolUseID string        `json:"tool_use_id"`
	Content   []tools.Block `json:"content"`
	IsError   bool          `json:"is_error"`
	// DenialReason is why a person refused the call, in their words. No tool wrote it,
	// so the model gets it outside the wrapper of Content.
	DenialReason string `json:"denial_reason,omitempty"`
}

// Thinking is the model's reasoning. Some providers require it back, unchanged and with
// its signature.
type Thinking struct {
	Text      string `json:"text"`
	Signature string `json:"signature,omitempty"`
	// Redacted is reasoning that the provider encrypted. Text is then a summary, if
	// there is one.
	Redacted string `json:"redacted,omitempty"`
	// Model is the model that reasoned, as provider/model. The loop sets it, and sends
	// the block only to that model.
	Model string `json:"model,omitempty"`
}
