package server

import (
	"sync"

	"github.com/caisson-run/caisson/runner"
)

// deltaBytes bounds the live output that waits for one reader. It is for
// watching: what does not fit is left out, and the records have the results.
const deltaBytes = 256 << 10

// feed tells the readers of one live session's stream that there is more. The
// records themselves are read from the trace, each reader at its own pace, so
// that a slow one costs no memory and misses nothing. It is safe for concurrent
// use; record and delta return at once.
type feed struct {
	mu    sync.Mutex
	seq   int64 // of the last record
	ended bool
	subs  map[*subscription]struct{}
}

// subscription is one reader's. wake has room for one: it says that there is
// something new, not how much.
type subscription struct {
	wake   chan struct{}
	deltas []delta
	bytes  int
	gap    bool // output was left out since the last delta
}

// delta is a piece of live output, and the record that it came after.
type delta struct {
	after int64
	Delta
}

// Delta is a piece of live output, sent as the event "delta". It has no id, is
// never stored and never sent again. Its text is not safe for a terminal.
//
//	{"tool_use_id":"tu_…","stream":"stdout","text":"ok\n"}
type Delta struct {
	CallID string `json:"tool_use_id,omitempty" doc:"absent for the model's answer"`
	Stream string `json:"stream" enum:"stdout,stderr,answer"`
	Text   string `json:"text"`
	// Omitted says that output before it was left out: this reader was slow.
	Omitted bool `json:"omitted,omitempty" doc:"output before this was left out, because the reader was slow"`
}

func newFeed() *feed { return &feed{subs: map[*subscription]struct{}{}} }

func (s *subscription) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// subscribe adds a reader; leave takes it away.
func (f *feed) subscribe() (sub *subscription, leave func()) {
	sub = &subscription{wake: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subs[sub] = struct{}{}
	return sub, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.subs, sub)
	}
}

// record tells that a record is in the trace.
func (f *feed) record(seq int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq = seq
	for sub := range f.subs {
		sub.poke()
	}
}

// delta hands out live output.
func (f *feed) delta(d runner.Delta) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for sub := range f.subs {
		next := delta{f.seq, Delta{CallID: d.CallID, Stream: d.Stream, Text: d.Text}}
		if sub.bytes+len(d.Text) > deltaBytes {
			sub.gap = true
			continue
		}
		next.Omitted, sub.gap = sub.gap, false
		sub.deltas, sub.bytes = append(sub.deltas, next), sub.bytes+len(d.Text)
		sub.poke()
	}
}

// end tells that the last record is in the trace.
func (f *feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for sub := range f.subs {
		sub.poke()
	}
}

// last is the number of the last record, and whether it is the session's.
func (f *feed) last() (seq int64, ended bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seq, f.ended
}

// take gives the live output that waits for a reader, and how far the records
// reached that were there before it.
func (f *feed) take(sub *subscription) (deltas []delta, seq int64, ended bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	deltas, sub.deltas, sub.bytes = sub.deltas, nil, 0
	return deltas, f.seq, f.ended
}

// readers is how many there are.
func (f *feed) readers() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.subs)
}
