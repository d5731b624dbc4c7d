package loop

import (
	"encoding/json"
	"slices"
)

// leakedCall is the error of a call whose arguments are no JSON without the IDs of
// wrappers.
const leakedCall = "The arguments repeat the ID of a wrapper around untrusted text, or a token that must not be repeated. Call the tool again without it."

// redactCanaries replaces the IDs of wrappers, and a planted canary, in the text of an answer
// and in the arguments of its calls. It returns how many there were. Reasoning stays as it is: it
// is signed.
func (v *View) redactCanaries(m *Message) (leaks int) {
	for i, b := range m.Blocks {
		switch {
		case b.Text != nil:
			safe, n := v.canaries.Redact(b.Text.Text)
			if n > 0 {
				m.Blocks[i].Text = &Text{Text: safe}
			}
			leaks += n
		case b.ToolUse != nil:
			u := *b.ToolUse
			input, n := v.canaries.Redact(string(u.Input))
			raw, inRaw := v.canaries.Redact(u.Raw)
			if n+inRaw == 0 {
				continue
			}
			u.Input, u.Raw = slices.Clip([]byte(input)), raw
			if !json.Valid(u.Input) {
				u.Input, u.InputError, u.Raw = []byte("{}"), leakedCall, input
			}
			m.Blocks[i].ToolUse = &u
			leaks += n + inRaw
		}
	}
	return leaks
}
