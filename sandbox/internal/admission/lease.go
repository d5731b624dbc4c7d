package admission

import (
	"sync"

	"github.com/caisson-run/caisson/limits/state"
)

// Lease is the permission under which one sandbox starts and runs. The methods
// of a nil Lease do nothing. It is safe for concurrent use.
type Lease struct {
	mu     sync.Mutex
	slot   *state.Lock
	memory *state.Lock
}

// FinishStart lets the next sandbox start. Further calls do nothing.
func (l *Lease) FinishStart() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.slot.Release() // the lock ends with the process at the latest
}

// Close releases the memory that is reserved for the sandbox. It calls
// FinishStart. Further calls do nothing.
func (l *Lease) Close() {
	if l == nil {
		return
	}
	l.FinishStart()
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.memory.Release() // as in FinishStart
}
