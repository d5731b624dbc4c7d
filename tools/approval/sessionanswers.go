package approval

import (
	"sync"

	"github.com/caisson-run/caisson/tools"
)

// AnswerKey identifies the confirmations that one answer for the session covers. As
// is the other tool whose rule asked: an answer to an apply_patch that only adds
// files does not cover one that deletes, if deletes are asked about. Command is the
// policy's entry about commands that asked, or "". Definition is as in [Grant].
type AnswerKey struct {
	Tool, As   tools.Name
	Command    string
	Definition string
}

func (k AnswerKey) withoutDefinition() AnswerKey {
	k.Definition = ""
	return k
}

// SessionAnswers holds the answers for a session. The last answer to a key counts,
// but an allow never replaces a deny. Methods are safe for concurrent use. The zero
// value is empty.
type SessionAnswers struct {
	keeping sync.Mutex // held while one answer is recorded and kept
	mu      sync.Mutex
	answers map[AnswerKey]sessionAnswer // keys have no definition
	changed chan struct{}
}

type sessionAnswer struct {
	decision   Decision
	definition string
}

// Find returns the answer for a key, if there is one.
func (m *SessionAnswers) Find(key AnswerKey) (Decision, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a, ok := m.answers[key.withoutDefinition()]
	if !ok || a.decision == DecisionAllow && a.definition != key.Definition {
		return "", false
	}
	return a.decision, true
}

// IsOutdated reports whether there is an allow for another definition of the tool.
func (m *SessionAnswers) IsOutdated(key AnswerKey) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.answers[key.withoutDefinition()]
	return a.decision == DecisionAllow && a.definition != key.Definition
}

// Keep stores an answer if record returns true. record gets the answer's scope: an
// allow after a deny holds only for its call.
func (m *SessionAnswers) Keep(key AnswerKey, d Decision, record func(Scope) bool) {
	m.keeping.Lock()
	defer m.keeping.Unlock()
	scope := ScopeSession
	if before, _ := m.Find(key); before == DecisionDeny && d == DecisionAllow {
		scope = ScopeOnce
	}
	if record(scope) && scope == ScopeSession {
		m.setAnswer(key, d)
	}
}

func (m *SessionAnswers) setAnswer(key AnswerKey, d Decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.answers == nil {
		m.answers = map[AnswerKey]sessionAnswer{}
	}
	m.answers[key.withoutDefinition()] = sessionAnswer{d, key.Definition}
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// Changed returns a channel that is closed when the next answer is kept.
func (m *SessionAnswers) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changed == nil {
		m.changed = make(chan struct{})
	}
	return m.changed
}
