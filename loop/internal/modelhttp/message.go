package modelhttp

import (
	"cmp"
	"strings"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools"
)

// WireName returns the wire form of a tool's name in the history. A name that the
// model made up may have none. Its invalid characters are replaced then, because
// endpoints refuse a conversation with an invalid name.
func WireName(n tools.Name, maxBytes int) string {
	if wire, err := n.LLMWithin(maxBytes); err == nil {
		return string(wire)
	}
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, string(n))
	return cmp.Or(clean[:min(len(clean), maxBytes)], "unknown")
}

// JoinText returns the text blocks of a message, joined by newlines.
func JoinText(m loop.Message) string {
	var parts []string
	for _, b := range m.Blocks {
		if b.Text != nil {
			parts = append(parts, b.Text.Text)
		}
	}
	return strings.Join(parts, "\n")
}
