package admit

import (
	"sync"

	"github.com/gofrs/flock"
)

// Pass is what one sandbox was admitted with. nil is one that was not asked
// for. It is safe for concurrent use.
type Pass struct {
	mu    sync.Mutex
	slot  *flock.Flock
	lease *flock.Flock
}

// Started says that the start is over, so that the next one may begin. A
// second call does nothing.
func (p *Pass) Started() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slot != nil {
		p.slot.Close() //nolint:errcheck // ends with the process at the latest
		p.slot = nil
	}
}

// Close says that the sandbox is gone, and with it what it may have used. A
// second call does nothing.
func (p *Pass) Close() {
	if p == nil {
		return
	}
	p.Started()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lease != nil {
		p.lease.Close() //nolint:errcheck // as above
		p.lease = nil
	}
}
