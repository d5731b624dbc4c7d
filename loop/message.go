package loop

import (
	"encoding/json"

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

// ToolUse is a call that the model made.
type ToolUse struct {
	// ID is ours (tu_ and a ULID), unique in the session; ProviderID is what
	// the provider called it, "" where it gave none.
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
