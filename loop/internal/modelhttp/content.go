package modelhttp

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools"
)

// Bounds of an answer's content. The longest outputs of models have 128,000 tokens,
// about half a megabyte. Larger ones would only burden the records and every later
// request. The loop runs at most 256 calls of an answer.
const (
	MaxContentBytes = 16 << 20
	maxBlocks       = 4096
)

// Content counts an answer's content, to bound what a stream can add up to. The zero
// value is ready to use.
type Content struct{ bytes, blocks int }

// Add counts texts.
func (c *Content) Add(texts ...string) {
	for _, t := range texts {
		c.bytes += len(t)
	}
}

// AddBlock counts a block, such as a call.
func (c *Content) AddBlock() { c.blocks++ }

// Check returns [ErrTooLarge] if the content is too large.
func (c *Content) Check() error {
	if c.bytes > MaxContentBytes || c.blocks > maxBlocks {
		return ErrTooLarge
	}
	return nil
}

// List is a list in an answer. It refuses to decode more elements than an answer can
// have, because they would take far more memory than their text.
type List[T any] []T

// UnmarshalJSON implements [json.Unmarshaler].
func (l *List[T]) UnmarshalJSON(data []byte) error {
	*l = nil
	if bytes.Equal(data, []byte("null")) {
		return nil
	}
	values := json.NewDecoder(bytes.NewReader(data))
	if start, err := values.Token(); err != nil || start != json.Delim('[') {
		return fmt.Errorf("%w: a list was expected", ErrMalformed)
	}
	for values.More() {
		if len(*l) == maxBlocks {
			return ErrTooLarge
		}
		var v T
		if err := values.Decode(&v); err != nil {
			return err
		}
		*l = append(*l, v)
	}
	return nil
}

// ToolNameBytes bounds tool names. OpenAI (API reference, function.name) and Anthropic
// require ^[a-zA-Z0-9_-]{1,64}$. Ollama has no bound, but models were trained with names
// that other providers accept.
const ToolNameBytes = 64

// IsNameRune reports whether r may be in a tool's name and in a call's ID.
func IsNameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-'
}

// OfferTool returns a tool's name and input schema for the provider.
func OfferTool(d tools.Definition) (name string, schema map[string]any, err error) {
	wire, err := d.Name.LLMWithin(ToolNameBytes)
	if err != nil {
		return "", nil, fmt.Errorf("offer tool: %w", err)
	}
	if err := json.Unmarshal(d.InputSchema, &schema); err != nil {
		return "", nil, fmt.Errorf("offer tool %s: schema: %w", d.Name, err)
	}
	return string(wire), schema, nil
}

// WireName returns a called tool's name for the provider. A name that the model made up
// may not be valid; its invalid characters are replaced, because endpoints refuse
// conversations with invalid names.
func WireName(n tools.Name) string {
	if wire, err := n.LLMWithin(ToolNameBytes); err == nil {
		return string(wire)
	}
	clean := strings.Map(func(r rune) rune {
		if IsNameRune(r) {
			return r
		}
		return '_'
	}, string(n))
	return cmp.Or(clean[:min(len(clean), ToolNameBytes)], "unknown")
}

// JoinText joins a message's text blocks by newlines.
func JoinText(m loop.Message) string {
	var parts []string
	for _, b := range m.Blocks {
		if b.Text != nil {
			parts = append(parts, b.Text.Text)
		}
	}
	return strings.Join(parts, "\n")
}

// StaleReasoning is reasoning that a provider refused, to not send it again. Newer
// models accept a block only after exactly the conversation in which it was made;
// shortening old results changes that. The zero value is ready to use. It is safe for
// concurrent use.
type StaleReasoning struct {
	mu         sync.Mutex
	signatures map[string]bool
}

// Add adds the reasoning in messages and reports whether any was new.
func (s *StaleReasoning) Add(messages []loop.Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	added := false
	for _, m := range messages {
		for _, b := range m.Blocks {
			if b.Thinking == nil || s.signatures[signatureOf(b.Thinking)] {
				continue
			}
			if s.signatures == nil {
				s.signatures = map[string]bool{}
			}
			s.signatures[signatureOf(b.Thinking)] = true
			added = true
		}
	}
	return added
}

// Has reports whether the reasoning was refused.
func (s *StaleReasoning) Has(t *loop.Thinking) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signatures[signatureOf(t)]
}

func signatureOf(t *loop.Thinking) string { return t.Signature + t.Redacted }
