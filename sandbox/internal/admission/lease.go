package admission

import (
	"sync"

	"github.com/gofrs/flock"
)

// Lease is what one sandbox was admitted with. nil is one that was not asked
// for. It is safe for concurrent use.
type Lease struct {
	mu     sync.Mutex
	slot   *flock.Flock
	memory *flock.Flock
}

// FinishStart says that the start is over, so that the next one may begin. A
// second call does nothing.
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

// Close says that the sandbox is gone, and with it what it may have used. A
// second call does nothing.
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
