package admission

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gofrs/flock"
)

// acquisition is one call of Enter.
type acquisition struct {
	semaphore *Semaphore
	request   Request
	lease     *Lease
	began     time.Time
	head      *flock.Flock // nil until it is ours
	queued    bool         // has gate.first
	reason    string       // what it waits for now
}

// acquireAll takes what the start needs, in this order: the first place of this
// process, the turn, memory, a slot.
func (a *acquisition) acquireAll(ctx context.Context) error {
	s := a.semaphore
	starts := fmt.Sprintf("for other sandboxes to start: %d at once", s.opts.Starts)
	if err := a.waitForQueue(ctx, starts); err != nil {
		return err
	}
	head := s.newLock(s.opts.Group + ".turn")
	defer func() {
		if a.head == nil {
			_ = head.Close() // not ours
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
		return "", nil // one that is stopped (Ctrl-Z) is passed
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

// waitForQueue waits for the others of this process, in order.
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

// The pause between two looks: short at first, as locks are also held for a
// moment by those that do not wait, and in the end so that dozens of waiting
// processes cost nothing.
const (
	firstPause = 2 * time.Millisecond
	lastPause  = 40 * time.Millisecond
	// quietTime is how long a wait is not worth a word.
	quietTime = 200 * time.Millisecond
)

// pollUntilFree tries until there is nothing to wait for any more.
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

// notifyReason tells what is waited for, once as long as it stays the same.
func (a *acquisition) notifyReason(reason string) {
	if reason != a.reason && a.request.Notify != nil {
		a.request.Notify("waiting " + reason)
	}
	a.reason = reason
}

// acquireSlot takes a free slot. Those of processes that are stopped do not count.
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
		_ = slot.Close() // not ours
	}
	return false, nil
}

// leaveQueue lets the next one wait at the head.
func (a *acquisition) leaveQueue() {
	if a.head != nil {
		_ = a.head.Close() // the lock ends with the process at the latest
	}
	if a.queued {
		<-a.semaphore.queue
	}
}
