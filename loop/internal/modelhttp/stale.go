package modelhttp

import (
	"sync"

	"github.com/caisson-run/caisson/loop"
)

// StaleReasoning is reasoning that a provider refused, which is not sent again. Newer
// models accept a block only after the very conversation that it was made in, and a
// conversation whose old results were shortened is another one. The zero value is ready,
// and safe for concurrent use.
type StaleReasoning struct {
	mu         sync.Mutex
	signatures map[string]bool
}

// Add adds the reasoning in messages, and reports whether there is any that was not
// known.
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

// signatureOf returns what identifies a block of reasoning.
func signatureOf(t *loop.Thinking) string { return t.Signature + t.Redacted }
