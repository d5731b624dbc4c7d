package limits

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// The limits that an [Egress] can reach.
const (
	KindEgressBytes       Kind = "egress_bytes"       // bytes, both directions
	KindEgressUpload      Kind = "egress_upload"      // bytes sent
	KindEgressConnections Kind = "egress_connections" // count
	KindEgressHosts       Kind = "egress_hosts"       // count
)

// Defaults of an [EgressBudget]. They are generous: agents usually read a few megabytes
// of documentation from a few hosts.
const (
	DefaultEgressBytes = 256 << 20
	DefaultEgressHosts = 50
)

// EgressBudget bounds a session's network traffic. Bytes and Hosts must be positive:
// zero is invalid, not "unlimited". Start from [DefaultEgressBudget] or
// [DefaultCommandEgressBudget].
type EgressBudget struct {
	// Bytes counts both directions, with headers and the overhead of encryption.
	Bytes int64
	// Upload bounds the bytes sent, which count against Bytes too. Zero means no extra
	// bound.
	Upload int64
	// Connections is the number of connections; zero means no bound.
	Connections int64
	Hosts       int64
}

// DefaultEgressBudget is for sessions that set no budget.
func DefaultEgressBudget() EgressBudget {
	return EgressBudget{Bytes: DefaultEgressBytes, Hosts: DefaultEgressHosts}
}

// DefaultCommandEgressBudget is for the commands of sessions that set no budget. It is
// enough for the packages of large builds.
func DefaultCommandEgressBudget() EgressBudget {
	return EgressBudget{Bytes: 4 << 30, Upload: 64 << 20, Connections: 10_000, Hosts: DefaultEgressHosts}
}

// Validate returns an error that names the first invalid field.
func (b EgressBudget) Validate() error {
	if b.Upload < 0 || b.Connections < 0 {
		return fmt.Errorf("budget %s is %d, %s is %d: must not be negative", KindEgressUpload, b.Upload, KindEgressConnections, b.Connections)
	}
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

// Egress counts one session's traffic against its budget. Take bytes before reading or
// writing them, so that the budget is never exceeded. It is safe for concurrent use.
type Egress struct {
	budget EgressBudget

	mu          sync.Mutex
	bytes       int64 // sent and received
	upload      int64 // sent
	connections int64
	hosts       map[string]bool
}

// NewEgress returns an Egress that has counted nothing, or an error for an invalid
// budget.
func NewEgress(b EgressBudget) (*Egress, error) {
	if err := b.Validate(); err != nil {
		return nil, err
	}
	return &Egress{budget: b, hosts: map[string]bool{}}, nil
}

// Host counts a host the first time it is named. It returns an *[ExceededError] if no
// new host is left.
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

// Connection counts a connection. It returns an *[ExceededError] if none is left.
func (e *Egress) Connection() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if limit := e.budget.Connections; limit > 0 && e.connections >= limit {
		return &ExceededError{Kind: KindEgressConnections, Limit: limit, Used: e.connections}
	}
	e.connections++
	return nil
}

// Take takes up to n bytes for receiving from the budget and returns how many it got.
// If none is left, it returns an *[ExceededError]. n must be positive. Give unused
// bytes back with [Egress.Return].
func (e *Egress) Take(n int64) (int64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.takeBytes(n)
}

// takeBytes is Take with the lock held.
func (e *Egress) takeBytes(n int64) (int64, error) {
	if n <= 0 {
		return 0, fmt.Errorf("take %d bytes of egress: must be positive", n)
	}
	left := e.budget.Bytes - e.bytes
	if left <= 0 {
		return 0, &ExceededError{Kind: KindEgressBytes, Limit: e.budget.Bytes, Used: e.bytes}
	}
	n = min(n, left)
	e.bytes += n
	return n, nil
}

// TakeUpload is [Egress.Take] for sending, which has an additional bound. Give unused
// bytes back with [Egress.ReturnUpload].
func (e *Egress) TakeUpload(n int64) (int64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if limit := e.budget.Upload; limit > 0 {
		left := limit - e.upload
		if left <= 0 {
			return 0, &ExceededError{Kind: KindEgressUpload, Limit: limit, Used: e.upload}
		}
		n = min(n, left)
	}
	n, err := e.takeBytes(n)
	e.upload += n
	return n, err
}

// ReturnUpload puts n bytes back that [Egress.TakeUpload] took.
func (e *Egress) ReturnUpload(n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bytes = max(e.bytes-max(n, 0), 0)
	e.upload = max(e.upload-max(n, 0), 0)
}

// Return puts n bytes back that [Egress.Take] took.
func (e *Egress) Return(n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bytes = max(e.bytes-max(n, 0), 0)
}

// Left returns an *[ExceededError] if no bytes are left.
func (e *Egress) Left() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.bytes >= e.budget.Bytes {
		return &ExceededError{Kind: KindEgressBytes, Limit: e.budget.Bytes, Used: e.bytes}
	}
	return nil
}

// Used returns the bytes and hosts counted so far.
func (e *Egress) Used() (bytes, hosts int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bytes, int64(len(e.hosts))
}

// MeteredConn is a connection whose traffic counts against a budget.
type MeteredConn struct {
	net.Conn
	Budget *Egress
	// Idle is the timeout of each read and write; zero means none.
	Idle time.Duration

	sent, received atomic.Int64
	last           atomic.Int64 // when bytes last moved, in nanoseconds since 1970
}

// Sent returns the number of bytes written.
func (c *MeteredConn) Sent() int64 { return c.sent.Load() }

// Received returns the number of bytes read.
func (c *MeteredConn) Received() int64 { return c.received.Load() }

// LastMoved returns when bytes were last read or written, or the zero time.
func (c *MeteredConn) LastMoved() time.Time {
	if last := c.last.Load(); last != 0 {
		return time.Unix(0, last)
	}
	return time.Time{}
}

func (c *MeteredConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := c.Budget.Take(int64(len(p)))
	if err != nil {
		return 0, err
	}
	got := 0
	err = c.setDeadline(c.SetReadDeadline)
	if err == nil {
		got, err = c.Conn.Read(p[:n])
	}
	c.Budget.Return(n - int64(got))
	c.received.Add(int64(got))
	c.last.Store(time.Now().UnixNano())
	return got, err
}

// Write writes p. If the budget runs out first, it returns the budget's error.
func (c *MeteredConn) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n, err := c.Budget.TakeUpload(int64(len(p) - written))
		if err != nil {
			return written, err
		}
		got := 0
		err = c.setDeadline(c.SetWriteDeadline)
		if err == nil {
			got, err = c.Conn.Write(p[written : written+int(n)])
		}
		c.Budget.ReturnUpload(n - int64(got))
		c.sent.Add(int64(got))
		c.last.Store(time.Now().UnixNano())
		written += got
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

func (c *MeteredConn) setDeadline(set func(time.Time) error) error {
	if c.Idle == 0 {
		return nil
	}
	return set(time.Now().Add(c.Idle))
}
