package guest

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/sandbox/guest/wire"
)

// sink carries one output stream to the caller's writer.
type sink struct {
	queue    *wire.Queue
	dst      io.Writer
	grant    func(n uint32)
	accepted atomic.Int64
	done     chan struct{}
}

func newSink(dst io.Writer, grant func(n uint32)) *sink {
	if dst == nil {
		dst = io.Discard
	}
	return &sink{queue: wire.NewQueue(), dst: dst, grant: grant, done: make(chan struct{})}
}

// start starts the stream's goroutine, which ends with the stream. After an
// error it drops what follows, so that the command continues as with a closed
// pager.
func (s *sink) start() {
	go func() {
		defer close(s.done)
		broken := false
		for b := s.queue.Next(); b != nil; b = s.queue.Next() {
			if !broken {
				n, err := s.dst.Write(b)
				s.accepted.Add(int64(min(max(n, 0), len(b))))
				broken = err != nil
			}
			s.grant(s.queue.Done(len(b)))
		}
	}()
}

// wait waits until the writer has taken everything, at most settleTime if
// forced. It returns how many bytes the writer took.
func (s *sink) wait(forced bool) int64 {
	var over <-chan time.Time
	if forced {
		timer := time.NewTimer(settleTime)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-s.done:
	case <-over:
		s.queue.Break()
	}
	return s.accepted.Load()
}
