package tools

import "sync"

// memory keeps the answers that hold for the session, a tool each. The last
// one stays, but an allow never replaces a deny.
type memory struct {
	keeping sync.Mutex // one answer at a time is recorded and kept
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

// keep makes an answer the session's once record has recorded it, with the
// scope that it gets: an allow that comes after a deny holds for its call alone.
func (m *memory) keep(name Name, d Decision, record func(Scope) bool) {
	m.keeping.Lock()
	defer m.keeping.Unlock()
	scope := ScopeSession
	if before, ok := m.get(name); ok && before == DecisionDeny && d == DecisionAllow {
		scope = ScopeOnce
	}
	if record(scope) && scope == ScopeSession {
		m.set(name, d)
	}
}

func (m *memory) set(name Name, d Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
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
