package dispatch

import (
	"fmt"
	"sync"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
)

// emitter hands events to the one sink, one at a time, and remembers that one
// could not be recorded: from then on nothing may start.
type emitter struct {
	mu     sync.Mutex
	sink   func(Event) error
	failed error
}

// emit reports an event. The error wraps [tools.ErrRecord]; it stays for every later
// call, and the sink gets nothing more but terminal events, so that every call
// that the sink knows of has its end.
func (e *emitter) emit(ev Event) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed != nil && !isTerminal(ev) {
		return e.failed
	}
	err := e.sink(ev)
	if _, live := ev.(OutputDelta); live {
		return nil
	}
	if err != nil && e.failed == nil {
		e.failed = fmt.Errorf("%w: %w", tools.ErrRecord, err)
	}
	return e.failed
}

// maxDeltaBytes bounds one piece of live output.
const maxDeltaBytes = 64 << 10

func isTerminal(ev Event) bool {
	switch ev.(type) {
	case Completed, Failed, InputInvalid:
		return true
	}
	return false
}

// callEvents is one call's way to the sink while it runs: live output goes
// through until it is closed, and nothing after.
type callEvents struct {
	out    *emitter
	callID string

	mu     sync.Mutex
	closed bool
}

func (c *callEvents) emitDelta(stream, text string) {
	if text == "" {
		return
	}
	text, _ = utf8text.Bound(text, maxDeltaBytes)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	_ = c.out.emit(OutputDelta{CallID: c.callID, Stream: stream, Text: utf8text.Repair(text)})
}

func (c *callEvents) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}
