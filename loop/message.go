package loop

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

// Role is who a message is from.
type Role string

// The roles. A tool message holds exactly one ToolResult; an adapter may merge
// neighbours for its wire.
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

// joinedText is the message's text, its blocks joined; "" where there is only white space.
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

// toolUses are the message's tool calls, in order.
func (m Message) toolUses() []ToolUse {
	var uses []ToolUse
	for _, b := range m.Blocks {
		if b.ToolUse != nil {
			uses = append(uses, *b.ToolUse)
		}
	}
	return uses
}

// lastText is the last text of an assistant among the messages, or "".
func lastText(messages []Message) string {
	for _, m := range slices.Backward(messages) {
		if m.Role == RoleAssistant && m.joinedText() != "" {
			return m.joinedText()
		}
	}
	return ""
}

// NewText is a message of one text.
func NewText(role Role, text string) Message {
	return Message{Role: role, Blocks: []Block{{Text: &Text{Text: text}}}}
}

// Block is one piece of a message; exactly one field is set.
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

// ToolUse is a call that the model made. An adapter fills ProviderID, Name as
// it is on its wire, and Raw with the arguments as they came; the loop does the rest.
type ToolUse struct {
	// ID is ours (tu_ and a ULID), unique in the session; ProviderID is what
	// the provider called it, "" where it gave none that can be used.
	ID         string `json:"id"`
	ProviderID string `json:"provider_id,omitempty"`
	// Name is canonical, or as the model wrote it where it is unknown.
	Name tools.Name `json:"name"`
	// Input is a JSON object; {} where InputError is set.
	Input json.RawMessage `json:"input"`
	// InputError says where the arguments that the model wrote are not a JSON
	// object, and Raw keeps them.
	InputError string `json:"input_error,omitempty"`
	Raw        string `json:"raw,omitempty"`
}

// WireID is the id by which a provider knows the call: its own where it gave
// one, ours otherwise.
func (u ToolUse) WireID() string {
	if u.ProviderID != "" {
		return u.ProviderID
	}
	return u.ID
}

// WireIDs maps our ids of all tool calls in messages to [ToolUse.WireID], so
// that an adapter can name the call that a result answers.
func WireIDs(messages []Message) map[string]string {
	ids := map[string]string{}
	for _, m := range messages {
		for _, u := range m.toolUses() {
			ids[u.ID] = u.WireID()
		}
	}
	return ids
}

// ToolResult answers one ToolUse.
type ToolResult struct {
	ToolUseID string        `json:"tool_use_id"`
	Content   []tools.Block `json:"content"`
	IsError   bool          `json:"is_error"`
}

// Thinking is a provider's reasoning, kept because some must be sent back
// unchanged with its signature.
type Thinking struct {
	Text      string `json:"text"`
	Signature string `json:"signature,omitempty"`
}
