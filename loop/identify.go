package loop

import (
	"crypto/rand"

	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/tools"
)

// newULID is the default of [Options].NewID.
func newULID(prefix string) string {
	return prefix + "_" + ulid.MustNew(ulid.Now(), rand.Reader).String()
}

// callIdentifier assigns IDs and canonical names to a model's tool calls.
type callIdentifier struct {
	newID func(prefix string) string
	// seen has the session's provider IDs.
	seen map[string]bool
	// lookup finds a tool, offered or not, by either form of its name. It may be nil.
	lookup func(name string) (tools.Definition, bool)
}

// toolFinder is a dispatcher that also knows tools that it doesn't offer.
type toolFinder interface {
	Lookup(name string) (tools.Definition, bool)
}

func newCallIdentifier(newID func(string) string, history []Message, d dispatcher) callIdentifier {
	id := callIdentifier{newID: newID, seen: map[string]bool{}}
	if f, ok := d.(toolFinder); ok {
		id.lookup = f.Lookup
	}
	for _, m := range history {
		for _, u := range m.toolUses() {
			id.seen[u.ProviderID] = true
		}
	}
	return id
}

// maxProviderIDBytes bounds a provider's ID. The longest in use have about 40 bytes.
const maxProviderIDBytes = 128

// identifyMessage returns the assistant's message for a response, with identified
// calls. If the provider cut the answer and its last block is a call, the call gets an
// InputError and never runs, even if it looks complete. model is the one that answered.
func (id callIdentifier) identifyMessage(resp Response, offered []tools.Definition, model ModelInfo) Message {
	names := wireNames(offered, model.ToolNameBytes)
	m := Message{Role: RoleAssistant}
	for i, b := range resp.Message.Blocks {
		switch {
		case b.Text != nil && b.Text.Text != "":
			m.Blocks = append(m.Blocks, b)
		case b.Thinking != nil:
			thinking := *b.Thinking
			thinking.Model = model.String()
			m.Blocks = append(m.Blocks, Block{Thinking: &thinking})
		case b.ToolUse != nil:
			truncated := resp.Truncated && i == len(resp.Message.Blocks)-1
			m.Blocks = append(m.Blocks, Block{ToolUse: new(id.identifyCall(*b.ToolUse, names, truncated))})
		}
	}
	return m
}

// identifyCall returns u with an ID, its canonical name and its parsed input. Provider
// IDs that are unusable or already used are dropped.
func (id callIdentifier) identifyCall(u ToolUse, names map[string]tools.Name, truncated bool) ToolUse {
	if id.seen[u.ProviderID] || !isUsableID(u.ProviderID) {
		u.ProviderID = ""
	} else {
		id.seen[u.ProviderID] = true
	}
	u.ID = id.newID("tu")
	if name, ok := names[string(u.Name)]; ok {
		u.Name = name
	} else if id.lookup != nil {
		if def, ok := id.lookup(string(u.Name)); ok {
			u.Name = def.Name
		}
	}
	raw := u.Raw
	u.Raw = ""
	u.Input, u.InputError = ParseInput(raw)
	if truncated {
		u.Input, u.InputError = []byte("{}"), truncatedCall
	}
	if u.InputError != "" {
		u.Raw = raw
	}
	return u
}

// wireNames maps each form of the offered tools' names, including shortened ones, to
// the canonical name. Forms that two tools share map to "".
func wireNames(offered []tools.Definition, maxNameBytes int) map[string]tools.Name {
	names := make(map[string]tools.Name, 2*len(offered))
	for _, d := range offered {
		forms := map[string]struct{}{string(d.Name): {}}
		for _, maxBytes := range []int{0, maxNameBytes} {
			// Definitions without a wire form can't be registered.
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

// isUsableID reports whether a provider's ID can be sent to every provider.
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
