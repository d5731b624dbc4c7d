package tools

import "sync"

// memory keeps the answers that hold for the session, a tool each. The first
// one stays.
type memory struct {
	mu      sync.Mutex
	answers map[Name]Decision
	changed chan struct{}
}

func (m *memory) get(name Name) (Decision, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.answers[name]
	return d, ok
}

func (m *memory) set(name Name, d Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.answers[name]; ok {
		return
	}
	if m.answers == nil {
		m.answers = map[Name]Decision{}
	}
	m.answers[name] = d
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// watch gives a channel that is closed when the next answer is kept.
func (m *memory) watch() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changed == nil {
		m.changed = make(chan struct{})
	}
	return m.changed
}
