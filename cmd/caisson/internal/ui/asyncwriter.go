package ui

import (
	"context"
	"sync"
	"time"
)

const (
	// asyncBytes bounds the queue: far above an ordinary session's records.
	asyncBytes = 64 << 20
	// liveBytes is the backlog above which optional writes are dropped.
	liveBytes = 256 << 10
	// hurryParts divides the limit of Close after an interruption.
	hurryParts = 15
)

// AsyncWriter writes in its own goroutine, so that a session never waits for a blocked
// terminal or a pipe without a reader. It is safe for concurrent use.
type AsyncWriter struct {
	mu      sync.Mutex
	waiting []write
	bytes   int
	dropped bool
	closed  bool
	wake    chan struct{}
	// idle is closed and replaced each time the queue becomes empty.
	idle chan struct{}
	done chan struct{}
	// written counts writes, to notice progress.
	written int
}

type write struct {
	size int
	do   func()
}

// NewAsyncWriter returns a writer, which Close must end.
func NewAsyncWriter() *AsyncWriter {
	w := &AsyncWriter{wake: make(chan struct{}, 1), idle: make(chan struct{}), done: make(chan struct{})}
	go w.writeQueued()
	return w
}

func (w *AsyncWriter) writeQueued() {
	defer close(w.done)
	for {
		w.mu.Lock()
		if len(w.waiting) == 0 {
			close(w.idle)
			w.idle = make(chan struct{})
			if w.closed {
				w.mu.Unlock()
				return
			}
			w.mu.Unlock()
			<-w.wake
			continue
		}
		next := w.waiting[0]
		w.mu.Unlock()
		next.do()
		w.mu.Lock()
		w.waiting = w.waiting[1:]
		w.bytes -= next.size
		w.written++
		w.mu.Unlock()
	}
}

// Queue queues a write of about size bytes and reports whether there was room. After
// the first write without room it queues no more: records must have no gaps.
func (w *AsyncWriter) Queue(size int, do func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dropped || w.closed || w.bytes+size > asyncBytes {
		w.dropped = true
		return false
	}
	w.enqueue(size, do)
	return true
}

// QueueOptional queues a write that may be dropped.
func (w *AsyncWriter) QueueOptional(size int, do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.dropped && !w.closed && w.bytes+size <= liveBytes {
		w.enqueue(size, do)
	}
}

func (w *AsyncWriter) enqueue(size int, do func()) {
	w.waiting = append(w.waiting, write{size, do})
	w.bytes += size
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Drain waits until everything is written. Its error is the cause of ctx.
func (w *AsyncWriter) Drain(ctx context.Context) error {
	w.mu.Lock()
	idle, empty := w.idle, len(w.waiting) == 0
	w.mu.Unlock()
	if empty {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close accepts no more writes, waits for queued ones, and reports whether all were
// written. It returns false if nothing was written for limit, unless forever is set.
// Once ctx has ended, that time is limit/hurryParts, whatever forever says.
func (w *AsyncWriter) Close(ctx context.Context, limit time.Duration, forever bool) bool {
	w.mu.Lock()
	w.closed = true
	last := w.written
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	for {
		var after <-chan time.Time
		ended := ctx.Done()
		switch {
		case ctx.Err() != nil:
			after, ended = time.After(limit/hurryParts), nil
		case !forever:
			after = time.After(limit)
		}
		select {
		case <-w.done:
			w.mu.Lock()
			defer w.mu.Unlock()
			return !w.dropped
		case <-ended:
		case <-after:
			w.mu.Lock()
			stuck := w.written == last
			last = w.written
			w.mu.Unlock()
			if stuck {
				return false
			}
		}
	}
}
