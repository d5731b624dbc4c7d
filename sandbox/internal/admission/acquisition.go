package admission

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/caisson-run/caisson/limits/state"
)

type acquisition struct {
	semaphore *Semaphore
	request   Request
	lease     *Lease
	began     time.Time
	head      *state.Lock // nil until it is acquired
	queued    bool        // holds semaphore.queue
	reason    string      // the current reason of the wait
}

// acquireAll acquires what the start needs, in this order: the head of this
// process's queue, the head of the group, memory and threads, a slot.
func (a *acquisition) acquireAll(ctx context.Context) error {
	s := a.semaphore
	starts := fmt.Sprintf("for other sandboxes to start: %d at once", s.opts.Starts)
	if err := a.waitForQueue(ctx, starts); err != nil {
		return err
	}
	head := s.file(s.opts.Group + ".head")
	if err := a.pollUntilFree(ctx, func() (reason string, err error) {
		a.head, err = tryLock(head)
		if err == nil && a.head == nil && !holderStopped(head) { // skip a stopped one (Ctrl-Z)
			reason = starts
		}
		return reason, err
	}); err != nil {
		return err
	}
	if err := a.pollUntilFree(ctx, func() (string, error) { return a.reserve(ctx) }); err != nil {
		return err
	}
	return a.pollUntilFree(ctx, func() (string, error) {
		if ok, err := a.acquireSlot(); !ok || err != nil {
			return starts, err
		}
		return "", nil
	})
}

func (a *acquisition) waitForQueue(ctx context.Context, reason string) error {
	notify := time.After(quietTime)
	for {
		select {
		case a.semaphore.queue <- struct{}{}:
			a.queued = true
			return nil
		case <-notify:
			a.notifyReason(reason)
		case <-ctx.Done():
			a.reason = reason
			return context.Cause(ctx)
		}
	}
}

// The pause between two tries. It is short at first, because calls that do not
// wait also hold locks for a moment, and grows so that dozens of waiting
// processes use little processor time.
const (
	firstPause = 2 * time.Millisecond
	lastPause  = 40 * time.Millisecond
	// quietTime is the longest wait that is not reported.
	quietTime = 200 * time.Millisecond
)

func (a *acquisition) pollUntilFree(ctx context.Context, try func() (reason string, err error)) error {
	for pause := firstPause; ; pause = min(pause+pause/2, lastPause) {
		reason, err := try()
		if reason == "" || err != nil {
			return err
		}
		if time.Since(a.began) >= quietTime {
			a.notifyReason(reason)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			a.reason = reason
			return context.Cause(ctx)
		}
	}
}

func (a *acquisition) notifyReason(reason string) {
	if reason != a.reason && a.request.Notify != nil {
		a.request.Notify("waiting " + reason)
	}
	a.reason = reason
}

// acquireSlot takes a slot if one is free, not counting those of stopped
// processes.
func (a *acquisition) acquireSlot() (bool, error) {
	most := a.semaphore.opts.Starts
	for n := 0; n < most; n++ {
		file := a.semaphore.file(fmt.Sprintf("%s-%d.slot", a.semaphore.opts.Group, n))
		slot, err := tryLock(file)
		if err != nil || slot != nil {
			a.lease.slot = slot
			return slot != nil, err
		}
		if holderStopped(file) {
			most++
		}
	}
	return false, nil
}

func (a *acquisition) leaveQueue() {
	_ = a.head.Release() // the lock ends with the process at the latest
	if a.queued {
		<-a.semaphore.queue
	}
}
