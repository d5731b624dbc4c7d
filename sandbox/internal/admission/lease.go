package admission

import (
	"sync"

	"github.com/gofrs/flock"
)

// Lease is the permission under which one sandbox starts and runs. The methods
// of a nil Lease do nothing. It is safe for concurrent use.
type Lease struct {
	mu     sync.Mutex
	slot   *flock.Flock
	memory *flock.Flock
}

// FinishStart lets the next sandbox start. Further calls do nothing.
func (l *Lease) FinishStart() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slot != nil {
		_ = l.slot.Close() // the lock ends with the process at the latest
		l.slot = nil
	}
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
	if l.memory != nil {
		_ = l.memory.Close() // as in FinishStart
		l.memory = nil
	}
}
