package tools

import "sync"

// answerKey identifies the questions that one answer for the session is about: a
// tool, and the other tool whose rule asked. An answer to an apply_patch that
// only adds files is none to one that deletes, where deletes are asked about.
type answerKey struct{ tool, as Name }

// memory keeps the answers that hold for the session, one per key. The last
// one stays, but an allow never replaces a deny.
type memory struct {
	keeping sync.Mutex // one answer at a time is recorded and kept
	mu      sync.Mutex
	answers map[answerKey]Decision
	changed chan struct{}
}

func (m *memory) get(key answerKey) (Decision, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.answers[key]
	return d, ok
}

// keep makes an answer the session's once record has recorded it, with the
// scope that it gets: an allow that comes after a deny holds for its call alone.
func (m *memory) keep(key answerKey, d Decision, record func(Scope) bool) {
	m.keeping.Lock()
	defer m.keeping.Unlock()
	scope := ScopeSession
	if before, _ := m.get(key); before == DecisionDeny && d == DecisionAllow {
		scope = ScopeOnce
	}
	if record(scope) && scope == ScopeSession {
		m.set(key, d)
	}
}

func (m *memory) set(key answerKey, d Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answers == nil {
		m.answers = map[answerKey]Decision{}
	}
	m.answers[key] = d
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
