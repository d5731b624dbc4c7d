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

// identity gives tool calls our ids and canonical names, once, at the loop's edge.
type identity struct {
	newID func(prefix string) string
	// seen holds the provider's ids of this session.
	seen map[string]bool
}

// newIdentity knows the provider ids of an earlier history.
func newIdentity(newID func(string) string, history []Message) identity {
	id := identity{newID: newID, seen: map[string]bool{}}
	for _, m := range history {
		for _, u := range m.toolUses() {
			id.seen[u.ProviderID] = true
		}
	}
	return id
}

// maxProviderID bounds a provider's id of a call; the longest in use are
// about 40 bytes.
const maxProviderID = 128

// message makes an assistant's message of ours from an adapter's response. Where
// the provider cut the answer, its last block is the one that is cut: a call
// there is marked and never runs, however complete it looks. limit bounds names
// on the provider's wire, see [ModelInfo].
func (id identity) message(resp Response, offered []tools.Definition, limit int) Message {
	names := wireNames(offered, limit)
	m := Message{Role: RoleAssistant}
	for i, b := range resp.Message.Blocks {
		switch {
		case b.Text != nil && b.Text.Text != "", b.Thinking != nil:
			m.Blocks = append(m.Blocks, b)
		case b.ToolUse != nil:
			cut := resp.Truncated && i == len(resp.Message.Blocks)-1
			m.Blocks = append(m.Blocks, Block{ToolUse: new(id.toolUse(*b.ToolUse, names, cut))})
		}
	}
	return m
}

// toolUse identifies one call.
func (id identity) toolUse(u ToolUse, names map[string]tools.Name, cut bool) ToolUse {
	if id.seen[u.ProviderID] || !usableID(u.ProviderID) {
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
	if cut {
		u.Input, u.InputError = []byte("{}"), cutCall
	}
	if u.InputError != "" {
		u.Raw = raw
	}
	return u
}

// wireNames maps the forms of each offered tool's name, the shortened one
// included, to the canonical one. A form of two tools is neither's: it maps to "",
// which is no tool.
func wireNames(offered []tools.Definition, limit int) map[string]tools.Name {
	names := make(map[string]tools.Name, 2*len(offered))
	for _, d := range offered {
		forms := map[string]struct{}{string(d.Name): {}}
		for _, most := range []int{0, limit} {
			// A definition without a wire form can't be registered.
			if wire, err := d.Name.LLMWithin(most); err == nil {
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

// usableID says that a provider's id can be sent back in any provider's wire.
func usableID(id string) bool {
	if id == "" || len(id) > maxProviderID {
		return false
	}
	for _, r := range id {
		if r <= ' ' || r > '~' {
			return false
		}
	}
	return true
}
