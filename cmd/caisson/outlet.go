package main

import (
	"context"
	"sync"
	"time"
)

const (
	// outletBytes bounds what waits for a writer that is slow: far more than
	// the records of an ordinary session.
	outletBytes = 64 << 20
	// liveBytes is the backlog beyond which live output is left out: it is for
	// watching, and nobody is.
	liveBytes = 256 << 10
	// patience is how long an end waits for a writer that makes no progress;
	// once somebody has asked for the end, hurryParts shorter.
	patience   = 30 * time.Second
	hurryParts = 15
)

// outlet hands what is to be written to one goroutine, so that a terminal that
// is held or a pipe that nobody reads never makes the session wait: not for its
// records, its limits or its signals. Its methods are safe for concurrent use.
type outlet struct {
	mu      sync.Mutex
	waiting []write
	bytes   int
	dropped bool
	closed  bool
	wake    chan struct{}
	// idle is closed and made anew each time that nothing waits.
	idle chan struct{}
	done chan struct{}
	// written counts, so that an end can see progress.
	written int
}

type write struct {
	bytes int
	do    func()
}

func newOutlet() *outlet {
	o := &outlet{wake: make(chan struct{}, 1), idle: make(chan struct{}), done: make(chan struct{})}
	go o.run()
	return o
}

func (o *outlet) run() {
	defer close(o.done)
	for {
		o.mu.Lock()
		if len(o.waiting) == 0 {
			close(o.idle)
			o.idle = make(chan struct{})
			if o.closed {
				o.mu.Unlock()
				return
			}
			o.mu.Unlock()
			<-o.wake
			continue
		}
		next := o.waiting[0]
		o.mu.Unlock()
		next.do()
		o.mu.Lock()
		o.waiting = o.waiting[1:]
		o.bytes -= next.bytes
		o.written++
		o.mu.Unlock()
	}
}

// put queues one write of about so many bytes, and says whether it did. Once a
// write was left out for want of room, so are all others: a gap is an end.
func (o *outlet) put(bytes int, do func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dropped || o.closed || o.bytes+bytes > outletBytes {
		o.dropped = true
		return false
	}
	o.add(bytes, do)
	return true
}

// try queues a write that can be left out.
func (o *outlet) try(bytes int, do func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.dropped && !o.closed && o.bytes+bytes <= liveBytes {
		o.add(bytes, do)
	}
}

func (o *outlet) add(bytes int, do func()) {
	o.waiting = append(o.waiting, write{bytes, do})
	o.bytes += bytes
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// drain waits until nothing is waiting; its error is ctx's.
func (o *outlet) drain(ctx context.Context) error {
	o.mu.Lock()
	idle, empty := o.idle, len(o.waiting) == 0
	o.mu.Unlock()
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

// close takes nothing more and waits for what is waiting, as long as there is
// progress within limit, or for ever; once ctx has ended, within a part of
// limit. It says whether all was written.
func (o *outlet) close(ctx context.Context, limit time.Duration, forever bool) bool {
	o.mu.Lock()
	o.closed = true
	last := o.written
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
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
		case <-o.done:
			o.mu.Lock()
			defer o.mu.Unlock()
			return !o.dropped
		case <-ended:
		case <-after:
			o.mu.Lock()
			stuck := o.written == last
			last = o.written
			o.mu.Unlock()
			if stuck {
				return false
			}
		}
	}
}
