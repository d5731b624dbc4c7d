package relay

import (
	"sync"
	"time"
)

// connRate is how many connections a second are accepted for each processor,
// after the first connBurst, and slowConnRate the same in gVisor. A connection
// takes 0.8 ms of processor time in all processes on its way, and 4 ms in
// gVisor. Without a bound, programs that make them without end leave the
// sandbox's other commands and the host no processor. Connections of programs
// that ended meanwhile don't count: a thousand may wait.
const (
	connRate     = 100
	slowConnRate = 40
	connBurst    = 128
)

// pace spreads events by an interval. After a time without events, connBurst may
// happen at once.
type pace struct {
	interval time.Duration
	mu       sync.Mutex
	due      time.Time
}

// next counts an event, and returns how long to wait before the next one.
func (p *pace) next() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if first := now.Add(-connBurst * p.interval); p.due.Before(first) {
		p.due = first
	}
	p.due = p.due.Add(p.interval)
	return p.due.Sub(now)
}

func (p *pace) skip() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.due = p.due.Add(-p.interval)
}

// A pause gives the processors to a host's request. Otherwise the data under
// way of transfers of more than bulkBytes would be moved first, and more of it
// beside the command. A short command takes 1 to 2 ms, and 5 to 10 in gVisor.
// Gaps between pauses let transfers continue whatever the host does.
const (
	bulkBytes     = 4 << 20
	pauseTime     = 20 * time.Millisecond
	slowPauseTime = 40 * time.Millisecond // in gVisor
	pauseGap      = 10 * time.Millisecond
)

type pause struct {
	time  time.Duration
	mu    sync.Mutex
	until time.Time
}

// begin begins a pause, unless there is one, or was one a moment ago.
func (p *pause) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.until) >= pauseGap {
		p.until = now.Add(p.time)
	}
}

// wait waits for the end of a pause, if moved is bulk.
func (p *pause) wait(moved int) {
	if moved <= bulkBytes {
		return
	}
	p.mu.Lock()
	left := time.Until(p.until)
	p.mu.Unlock()
	if left > 0 {
		<-time.After(left)
	}
}

// Pause holds transfers back for a moment, for a request of the host.
func (s *Server) Pause() { s.pause.begin() }
