package wire

import (
	"fmt"
	"sync"
)

// Credit is the sender's side of a channel's flow control: how many bytes it
// may still send. One goroutine takes; any may grant and close.
type Credit struct {
	mu     sync.Mutex
	n      int
	window int
	closed bool
	wake   chan struct{}
}

// NewCredit returns the credit of a new channel.
func NewCredit() *Credit { return newCredit(Window) }

// NewRelayCredit returns the credit of a relay's new channel.
func NewRelayCredit() *Credit { return newCredit(RelayWindow) }

func newCredit(window int) *Credit {
	return &Credit{n: window, window: window, wake: make(chan struct{}, 1)}
}

// Grant adds to the credit. It returns [ErrProtocol] if that would exceed the
// window.
func (c *Credit) Grant(n uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if uint64(n)+uint64(c.n) > uint64(c.window) {
		return fmt.Errorf("%w: credit of %d on top of %d", ErrProtocol, n, c.n)
	}
	c.n += int(n)
	c.signal()
	return nil
}

// Close makes every Take return 0, now and later.
func (c *Credit) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.signal()
}

func (c *Credit) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Take waits until at least one byte may be sent and takes up to most. It
// returns 0 once the credit or stop is closed.
func (c *Credit) Take(most int, stop <-chan struct{}) int {
	for {
		n, closed := c.takeCredit(most)
		if n > 0 || closed {
			return n
		}
		select {
		case <-c.wake:
		case <-stop:
			return 0
		}
	}
}

func (c *Credit) takeCredit(most int) (n int, closed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, true
	}
	n = min(most, c.n)
	c.n -= n
	return n, false
}

// Queue is the receiver's side of a channel: bytes that came and are not yet
// consumed, at most its window. One goroutine reads; any may push and end.
type Queue struct {
	mu      sync.Mutex
	ready   sync.Cond
	pending []byte // came, not taken
	taken   []byte // with the reader
	window  int
	allowed int // what the sender may still send
	owed    int // consumed, not yet granted again
	ended   bool
	broken  bool
	total   int64
}

// NewQueue returns the queue of a new channel.
func NewQueue() *Queue { return newQueue(Window) }

// NewRelayQueue returns the queue of a relay's new channel.
func NewRelayQueue() *Queue { return newQueue(RelayWindow) }

func newQueue(window int) *Queue {
	q := &Queue{window: window, allowed: window}
	q.ready.L = &q.mu
	return q
}

// Push adds a copy of p. It returns [ErrProtocol] beyond the credit and after
// the end.
func (q *Queue) Push(p []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return fmt.Errorf("%w: data after the end of a channel", ErrProtocol)
	}
	if len(p) > q.allowed {
		return fmt.Errorf("%w: %d bytes on a credit of %d", ErrProtocol, len(p), q.allowed)
	}
	q.allowed -= len(p)
	q.total += int64(len(p))
	if !q.broken {
		q.pending = append(q.pending, p...)
	}
	q.ready.Signal()
	return nil
}

// End marks that no more bytes come. A second call returns [ErrProtocol].
func (q *Queue) End() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return fmt.Errorf("%w: a channel ended twice", ErrProtocol)
	}
	q.ended = true
	q.ready.Signal()
	return nil
}

// Break ends the queue of a lost connection or stream: its reader gets only
// what has come.
func (q *Queue) Break() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.broken = true
	q.ready.Signal()
}

// Next waits for bytes and returns all that have come, or nil at the end. They
// are valid until the next call.
func (q *Queue) Next() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.pending) == 0 && !q.ended && !q.broken {
		q.ready.Wait()
	}
	if len(q.pending) == 0 {
		return nil
	}
	q.pending, q.taken = q.taken[:0], q.pending
	return q.taken
}

// Done records that n bytes were consumed. It returns how many to grant to the
// sender now: it saves grants up to half the window, and they are pointless
// after the end.
func (q *Queue) Done(n int) (grant uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.owed += n
	if q.ended || q.broken || q.owed < q.window/2 {
		return 0
	}
	grant = uint32(q.owed)
	q.allowed += q.owed
	q.owed = 0
	return grant
}

// Total returns the number of bytes that came, and whether the end did.
func (q *Queue) Total() (n int64, ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.total, q.ended
}
