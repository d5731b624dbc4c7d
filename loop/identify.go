package loop

import (
	"crypto/rand"

	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/tools"
)

// newULID is the default of Options.NewID.
func newULID(prefix string) string {
	return prefix + "_" + ulid.MustNew(ulid.Now(), rand.Reader).String()
}

// callIdentifier gives tool calls our ids and canonical names, once, at the loop's edge.
type callIdentifier struct {
	newID func(prefix string) string
	// seen holds the provider's ids of this session.
	seen map[string]bool
}

// newCallIdentifier knows the provider ids of an earlier history.
func newCallIdentifier(newID func(string) string, history []Message) callIdentifier {
	id := callIdentifier{newID: newID, seen: map[string]bool{}}
	for _, m := range history {
		for _, u := range m.toolUses() {
			id.seen[u.ProviderID] = true
		}
	}
	return id
}

// maxProviderIDBytes bounds a provider's id of a call; the longest in use are
// about 40 bytes.
const maxProviderIDBytes = 128

// identifyMessage makes an assistant's message of ours from an adapter's response. Where
// the provider cut the answer, its last block is the one that is cut: a call
// there is marked and never runs, however complete it looks. limit bounds names
// on the provider's wire, see [ModelInfo].
func (id callIdentifier) identifyMessage(resp Response, offered []tools.Definition, maxNameBytes int) Message {
	names := wireNames(offered, maxNameBytes)
	m := Message{Role: RoleAssistant}
	for i, b := range resp.Message.Blocks {
		switch {
		case b.Text != nil && b.Text.Text != "", b.Thinking != nil:
			m.Blocks = append(m.Blocks, b)
		case b.ToolUse != nil:
			truncated := resp.Truncated && i == len(resp.Message.Blocks)-1
			m.Blocks = append(m.Blocks, Block{ToolUse: new(id.identifyCall(*b.ToolUse, names, truncated))})
		}
	}
	return m
}

// identifyCall identifies one call.
func (id callIdentifier) identifyCall(u ToolUse, names map[string]tools.Name, truncated bool) ToolUse {
	if id.seen[u.ProviderID] || !isUsableID(u.ProviderID) {
		u.ProviderID = ""
	} else {
		id.seen[u.ProviderID] = true
	}
	u.ID = id.newID("tu")
	if name, ok := names[string(u.Name)]; ok {
		u.Name = name
	}
	raw := u.Raw
	u.Raw = ""
	u.Input, u.InputError = parseInput(raw)
	if truncated {
		u.Input, u.InputError = []byte("{}"), truncatedCall
	}
	if u.InputError != "" {
		u.Raw = raw
	}
	return u
}

// wireNames maps the forms of each offered tool's name, the shortened one
// included, to the canonical one. A form of two tools is neither's: it maps to "",
// which is no tool.
func wireNames(offered []tools.Definition, maxNameBytes int) map[string]tools.Name {
	names := make(map[string]tools.Name, 2*len(offered))
	for _, d := range offered {
		forms := map[string]struct{}{string(d.Name): {}}
		for _, maxBytes := range []int{0, maxNameBytes} {
			// A definition without a wire form can't be registered.
			if wire, err := d.Name.LLMWithin(maxBytes); err == nil {
				forms[string(wire)] = struct{}{}
			}
		}
		for form := range forms {
			if _, taken := names[form]; taken {
				names[form] = ""
				continue
			}
			names[form] = d.Name
		}
	}
	return names
}

// isUsableID says that a provider's id can be sent back in any provider's wire.
func isUsableID(id string) bool {
	if id == "" || len(id) > maxProviderIDBytes {
		return false
	}
	for _, r := range id {
		if r <= ' ' || r > '~' {
			return false
		}
	}
	return true
}
