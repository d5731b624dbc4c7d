package limits

import (
	"fmt"
	"sync"
)

// The kinds of limit that an [Egress] can reach.
const (
	KindEgressBytes Kind = "egress_bytes" // bytes, both directions
	KindEgressHosts Kind = "egress_hosts" // count
)

// Defaults of an [EgressBudget]: what an agent reads of documentation is a few
// megabytes from a few hosts.
const (
	DefaultEgressBytes = 256 << 20
	DefaultEgressHosts = 50
)

// EgressBudget bounds what one session exchanges with the network. Both must
// be positive: a zero limit is invalid, never "unlimited". Start from
// [DefaultEgressBudget].
type EgressBudget struct {
	// Bytes is what may go over connections in both directions, headers and
	// encryption included.
	Bytes int64
	// Hosts is the number of different hosts.
	Hosts int64
}

// DefaultEgressBudget is a generous budget.
func DefaultEgressBudget() EgressBudget {
	return EgressBudget{Bytes: DefaultEgressBytes, Hosts: DefaultEgressHosts}
}

// Validate reports the first bound that is not positive.
func (b EgressBudget) Validate() error {
	for _, f := range []struct {
		kind  Kind
		bound int64
	}{{KindEgressBytes, b.Bytes}, {KindEgressHosts, b.Hosts}} {
		if f.bound <= 0 {
			return fmt.Errorf("budget %s is %d, must be positive", f.kind, f.bound)
		}
	}
	return nil
}

// Egress counts one session's exchange against its budget. What is not counted
// is not allowed: bytes are taken before they are read or written, so the
// budget is never exceeded, not by one. It is safe for concurrent use.
type Egress struct {
	budget EgressBudget

	mu    sync.Mutex
	bytes int64
	hosts map[string]bool
}

// NewEgress returns an Egress at zero, or the error of [EgressBudget.Validate].
func NewEgress(b EgressBudget) (*Egress, error) {
	if err := b.Validate(); err != nil {
		return nil, err
	}
	return &Egress{budget: b, hosts: map[string]bool{}}, nil
}

// Host counts a host, once. Its error is an *[ExceededError] where the host is
// new and none may be.
func (e *Egress) Host(name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hosts[name] {
		return nil
	}
	if used := int64(len(e.hosts)); used >= e.budget.Hosts {
		return &ExceededError{Kind: KindEgressHosts, Limit: e.budget.Hosts, Used: used}
	}
	e.hosts[name] = true
	return nil
}

// Take takes up to n bytes out of the budget, at least one; what is not used is
// given back by [Egress.Return]. Its error is an *[ExceededError] where none is
// left. n must be positive.
func (e *Egress) Take(n int64) (int64, error) {
	if n <= 0 {
		return 0, fmt.Errorf("take %d bytes of egress: must be positive", n)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	left := e.budget.Bytes - e.bytes
	if left <= 0 {
		return 0, &ExceededError{Kind: KindEgressBytes, Limit: e.budget.Bytes, Used: e.bytes}
	}
	n = min(n, left)
	e.bytes += n
	return n, nil
}

// Return gives back n bytes that were taken and not used.
func (e *Egress) Return(n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bytes = max(e.bytes-max(n, 0), 0)
}

// Left says whether anything may still be exchanged: its error is an
// *[ExceededError] where nothing is left.
func (e *Egress) Left() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.bytes >= e.budget.Bytes {
		return &ExceededError{Kind: KindEgressBytes, Limit: e.budget.Bytes, Used: e.bytes}
	}
	return nil
}

// Used is what was exchanged so far.
func (e *Egress) Used() (bytes, hosts int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bytes, int64(len(e.hosts))
}
