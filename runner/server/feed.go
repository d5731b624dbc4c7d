package server

import (
	"sync"

	"github.com/caisson-run/caisson/runner"
)

// deltaBytes bounds the live output that waits for one reader. Further output
// is left out; the records have the results.
const deltaBytes = 256 << 10

// feed wakes the readers of one live session's stream. They read the records
// from the trace, each at its own pace, so that a slow reader costs no memory
// and misses nothing. It is safe for concurrent use; publishRecord and
// publishDelta don't block.
type feed struct {
	mu    sync.Mutex
	seq   int64 // of the last record
	ended bool
	subs  map[*subscription]struct{}
}

// subscription is one reader. wake has room for one value, which reports that
// there is something new.
type subscription struct {
	wake   chan struct{}
	deltas []delta
	bytes  int
	gap    bool // output has been left out since the last delta
}

// delta is a piece of live output, with the number of the record before it.
type delta struct {
	after int64
	Delta
}

// Delta is a piece of live output, sent as the event "delta". It has no id, is
// never stored and never sent again. Its text is not safe for a terminal.
//
//	{"tool_use_id":"tu_…","stream":"stdout","text":"ok\n"}
type Delta struct {
	CallID  string `json:"tool_use_id,omitempty" doc:"absent for the model's answer"`
	Stream  string `json:"stream" enum:"stdout,stderr,answer"`
	Text    string `json:"text"`
	Omitted bool   `json:"omitted,omitempty" doc:"output before this was left out, because the reader was slow"`
}

func newFeed() *feed { return &feed{subs: map[*subscription]struct{}{}} }

func (s *subscription) wakeReader() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

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

// publishRecord reports that a record is in the trace.
func (f *feed) publishRecord(seq int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq = seq
	for sub := range f.subs {
		sub.wakeReader()
	}
}

func (f *feed) publishDelta(d runner.Delta) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for sub := range f.subs {
		next := delta{f.seq, Delta{CallID: d.CallID, Stream: d.Stream, Text: d.Text}}
		if sub.bytes+len(d.Text) > deltaBytes {
			sub.gap = true
			continue
		}
		next.Omitted = sub.gap
		sub.gap = false
		sub.deltas, sub.bytes = append(sub.deltas, next), sub.bytes+len(d.Text)
		sub.wakeReader()
	}
}

// closeFeed reports that the last record is in the trace.
func (f *feed) closeFeed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for sub := range f.subs {
		sub.wakeReader()
	}
}

// lastSeq returns the number of the last record.
func (f *feed) lastSeq() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seq
}

// takeDeltas returns the live output that waits for a reader, the number of the
// last record, and whether the session has ended.
func (f *feed) takeDeltas(sub *subscription) (deltas []delta, seq int64, ended bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	deltas = sub.deltas
	sub.deltas = nil
	sub.bytes = 0
	return deltas, f.seq, f.ended
}
