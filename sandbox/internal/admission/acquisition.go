package admission

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gofrs/flock"
)

// acquisition is the state of one call of [Semaphore.Acquire].
type acquisition struct {
	semaphore *Semaphore
	request   Request
	lease     *Lease
	began     time.Time
	head      *flock.Flock // nil until it is acquired
	queued    bool         // reports whether it holds semaphore.queue
	reason    string       // the current reason of the wait
}

// acquireAll acquires what the start needs, in this order: the place at the
// head of this process's queue, the head of the group, memory, a slot.
func (a *acquisition) acquireAll(ctx context.Context) error {
	s := a.semaphore
	starts := fmt.Sprintf("for other sandboxes to start: %d at once", s.opts.Starts)
	if err := a.waitForQueue(ctx, starts); err != nil {
		return err
	}
	head := s.newLock(s.opts.Group + ".head")
	defer func() {
		if a.head == nil {
			_ = head.Close() // held by another process
		}
	}()
	if err := a.pollUntilFree(ctx, func() (string, error) {
		switch ok, err := tryLock(head); {
		case err != nil:
			return "", err
		case ok:
			a.head = head
		case !holderStopped(head):
			return starts, nil
		}
		return "", nil // a stopped holder (Ctrl-Z) is skipped
	}); err != nil {
		return err
	}
	if err := a.pollUntilFree(ctx, func() (string, error) { return a.reserveMemory(ctx) }); err != nil {
		return err
	}
	return a.pollUntilFree(ctx, func() (string, error) {
		if ok, err := a.acquireSlot(); !ok || err != nil {
			return starts, err
		}
		return "", nil
	})
}

// waitForQueue waits for the earlier calls of this process, in order.
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

// The pause between two tries. It is short at first, because locks are also
// held for a moment by calls that do not wait. It grows, so that dozens of
// waiting processes use little processor time.
const (
	firstPause = 2 * time.Millisecond
	lastPause  = 40 * time.Millisecond
	// quietTime is the longest wait that is not reported.
	quietTime = 200 * time.Millisecond
)

// pollUntilFree calls try until it returns no reason to wait any more.
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

// notifyReason reports the reason of the wait, if it has changed.
func (a *acquisition) notifyReason(reason string) {
	if reason != a.reason && a.request.Notify != nil {
		a.request.Notify("waiting " + reason)
	}
	a.reason = reason
}

// acquireSlot takes a free slot and reports whether it got one. Slots of
// stopped processes do not count.
func (a *acquisition) acquireSlot() (bool, error) {
	most := a.semaphore.opts.Starts
	for n := 0; n < most; n++ {
		slot := a.semaphore.newLock(fmt.Sprintf("%s-%d.slot", a.semaphore.opts.Group, n))
		ok, err := tryLock(slot)
		if err != nil {
			return false, err
		}
		if ok {
			a.lease.slot = slot
			return true, nil
		}
		if holderStopped(slot) {
			most++
		}
		_ = slot.Close() // held by another process
	}
	return false, nil
}

// leaveQueue releases the head of the group and the head of this process's
// queue.
func (a *acquisition) leaveQueue() {
	if a.head != nil {
		_ = a.head.Close() // the lock ends with the process at the latest
	}
	if a.queued {
		<-a.semaphore.queue
	}
}
