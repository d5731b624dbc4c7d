// Package terminal connects a command's terminal with clients that come and go, one at a time.
package terminal

import (
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/caisson-run/caisson/sandbox"
)

const (
	// ringBytes is how much of the output the next client gets, and how far a command gets
	// ahead of the client that it has. endedBytes are left of a command that has ended.
	ringBytes  = 64 << 10
	endedBytes = 8 << 10
	// typedBytes is how much input waits for the command.
	typedBytes = 64 << 10
	// pieceBytes bounds what Next returns.
	pieceBytes = 32 << 10
	// redrawTime is how long a returning client's terminal has another size, so that programs
	// draw their screen again.
	redrawTime = 100 * time.Millisecond
)

// Reasons why a client gets no more.
var (
	ErrTaken    = errors.New("another client has the terminal now")
	ErrDetached = errors.New("the client has left the terminal")
)

// Terminal is the terminal of one command. It is safe for concurrent use.
type Terminal struct {
	first sandbox.TerminalSize
	sizes chan sandbox.TerminalSize

	mu      sync.Mutex
	changed *sync.Cond // of mu
	ring    []byte     // the last output, at least ringBytes of it
	total   int64
	typed   []byte
	size    sandbox.TerminalSize
	client  *Client
	begun   bool // it has had a client
	hurried bool
	ended   bool
}

// New returns a terminal of a size, for a command that has not begun.
func New(size sandbox.TerminalSize) *Terminal {
	t := &Terminal{first: size, size: size, sizes: make(chan sandbox.TerminalSize, 2)}
	t.changed = sync.NewCond(&t.mu)
	return t
}

// ForCommand returns the terminal for [sandbox.Command], whose output is written to t and whose
// input is read from t.
func (t *Terminal) ForCommand() *sandbox.Terminal {
	return &sandbox.Terminal{TerminalSize: t.first, Resizes: t.sizes}
}

// Write takes output. It waits for a client that reads more slowly. It never fails.
func (t *Terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for rest := p; len(rest) > 0; {
		for t.room() <= 0 {
			t.changed.Wait()
		}
		n := min(len(rest), t.room())
		t.ring = append(t.ring, rest[:n]...)
		if over := len(t.ring) - ringBytes; over > ringBytes {
			t.ring = slices.Delete(t.ring, 0, over)
		}
		t.total += int64(n)
		rest = rest[n:]
		t.changed.Broadcast()
	}
	return len(p), nil
}

// room returns how much the command may write before its client reads.
func (t *Terminal) room() int {
	if t.client == nil || t.hurried {
		return ringBytes
	}
	return ringBytes - int(t.total-t.client.at)
}

// Read waits for input. It returns [io.EOF] once the command has ended.
func (t *Terminal) Read(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.typed) == 0 && !t.ended {
		t.changed.Wait()
	}
	if t.ended {
		return 0, io.EOF
	}
	n := copy(p, t.typed)
	t.typed = slices.Delete(t.typed, 0, n)
	t.changed.Broadcast()
	return n, nil
}

// Total returns the number of bytes that the command has written.
func (t *Terminal) Total() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.total
}

// Hurry stops output from waiting for a slow client. Call it when the command is cancelled.
func (t *Terminal) Hurry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hurried = true
	t.changed.Broadcast()
}

// End tells clients that the command has ended.
func (t *Terminal) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended, t.typed = true, nil
	t.shrink()
	t.changed.Broadcast()
}

// shrink forgets most of the output of an ended command without a client.
func (t *Terminal) shrink() {
	if t.ended && t.client == nil {
		t.ring = slices.Clone(t.ring[max(0, len(t.ring)-endedBytes):])
	}
}

// setSize delivers a size. Of the sizes that wait, it drops the oldest.
func (t *Terminal) setSize(size sandbox.TerminalSize) {
	t.size = size
	for {
		select {
		case t.sizes <- size:
			return
		default:
		}
		select {
		case <-t.sizes:
		default:
		}
	}
}

// Client is one client of a terminal.
type Client struct {
	terminal *Terminal
	at       int64 // the offset of the output that it gets next
	size     sandbox.TerminalSize
	blocked  bool
}

// Attach gives the terminal to a client, which has a terminal of a size. The client first gets
// the last output, and the program draws its screen again. A client that was there before gets
// [ErrTaken]. The caller must call Detach.
func (t *Terminal) Attach(size sandbox.TerminalSize) *Client {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := &Client{terminal: t, at: t.total - int64(min(len(t.ring), ringBytes)), size: size}
	t.client = c
	switch {
	case size != t.size:
		t.setSize(size)
	case t.begun:
		t.setSize(sandbox.TerminalSize{Rows: size.Rows ^ 1, Columns: size.Columns})
		time.AfterFunc(redrawTime, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			if t.client == c {
				t.setSize(c.size)
			}
		})
	}
	t.begun = true
	t.changed.Broadcast()
	return c
}

// state returns why the client gets no more output and gives no more input, or nil.
func (c *Client) state() error {
	switch c.terminal.client {
	case c:
		return nil
	case nil:
		return ErrDetached
	}
	return ErrTaken
}

// Next waits for output. It returns [io.EOF] after the last output of an ended command.
func (c *Client) Next() ([]byte, error) {
	t := c.terminal
	t.mu.Lock()
	defer t.mu.Unlock()
	for c.state() == nil && c.at == t.total && !t.ended {
		t.changed.Wait()
	}
	if err := c.state(); err != nil {
		return nil, err
	}
	if c.at == t.total {
		return nil, io.EOF
	}
	from := max(0, len(t.ring)-int(t.total-c.at)) // after Hurry, some may be lost
	p := slices.Clone(t.ring[from:min(len(t.ring), from+pieceBytes)])
	c.at = t.total - int64(len(t.ring)-from-len(p))
	t.changed.Broadcast()
	return p, nil
}

// Write gives input to the command. It waits while the command reads none and much is there.
// After the command's end, it drops it.
func (c *Client) Write(p []byte) (int, error) {
	t := c.terminal
	t.mu.Lock()
	defer t.mu.Unlock()
	for c.state() == nil && !t.ended && len(t.typed) >= typedBytes {
		c.blocked = true
		t.changed.Wait()
	}
	c.blocked = false
	if err := c.state(); err != nil {
		return 0, err
	}
	if !t.ended {
		t.typed = append(t.typed, p...)
		t.changed.Broadcast()
	}
	return len(p), nil
}

// Blocked reports whether Write waits for the command.
func (c *Client) Blocked() bool {
	c.terminal.mu.Lock()
	defer c.terminal.mu.Unlock()
	return c.blocked
}

// Resize sets the size of the client's terminal.
func (c *Client) Resize(size sandbox.TerminalSize) {
	t := c.terminal
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.size = size; t.client == c && size != t.size {
		t.setSize(size)
	}
}

// Detach leaves the terminal. The command goes on. It may be called again.
func (c *Client) Detach() {
	t := c.terminal
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.client == c {
		t.client = nil
		t.shrink()
	}
	t.changed.Broadcast()
}
