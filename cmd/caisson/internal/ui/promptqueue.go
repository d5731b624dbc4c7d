package ui

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/caisson-run/caisson/tools/approval"
)

// queue lets one question stand on the terminal at a time, the oldest first.
// The zero value is empty.
type queue struct {
	mu      sync.Mutex
	shown   *approval.Confirmation   // the question that stands there, or nil
	waiting []*approval.Confirmation // of every Approve under way, the shown one included
	// left are questions that are done here and may still wait elsewhere; they
	// block no other.
	left map[string]bool
	// done counts the questions since the terminal was last without one.
	done    int
	changed chan struct{}
}

// place is a question's among those that wait: "2 of 3".
type place struct{ nth, of int }

// enterQueue waits until a question may be shown. Whatever it returns, leave follows.
func (q *queue) enterQueue(ctx context.Context, c *approval.Confirmation, pending func() []approval.Confirmation) (place, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, c)
	for {
		if ctx.Err() != nil {
			return place{}, context.Cause(ctx)
		}
		ahead, others := q.countOthers(c, pending)
		if q.shown == nil && ahead == 0 {
			q.shown = c
			return place{q.done + 1, q.done + 1 + others}, nil
		}
		if q.changed == nil {
			q.changed = make(chan struct{})
		}
		changed := q.changed
		q.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		q.mu.Lock()
	}
}

// countOthers counts the questions beside c, and those of them that come before it.
// The caller holds mu.
func (q *queue) countOthers(c *approval.Confirmation, pending func() []approval.Confirmation) (ahead, others int) {
	still := map[string]bool{}
	for _, o := range q.allWaiting(pending) {
		if q.left[o.ID] {
			still[o.ID] = true
			continue
		}
		if o.ID == c.ID {
			continue
		}
		if others++; o.Seq < c.Seq {
			ahead++
		}
	}
	q.left = still
	return ahead, others
}

// allWaiting returns the questions that wait here or elsewhere. The caller holds mu.
func (q *queue) allWaiting(pending func() []approval.Confirmation) []approval.Confirmation {
	if pending != nil {
		return pending()
	}
	list := make([]approval.Confirmation, 0, len(q.waiting))
	for _, o := range q.waiting {
		list = append(list, *o)
	}
	return list
}

// listWaiting returns the questions that are to be answered here, the oldest first.
func (q *queue) listWaiting(pending func() []approval.Confirmation) []approval.Confirmation {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := slices.DeleteFunc(q.allWaiting(pending), func(o approval.Confirmation) bool { return q.left[o.ID] })
	slices.SortStableFunc(list, func(a, b approval.Confirmation) int { return cmp.Compare(a.Seq, b.Seq) })
	return list
}

// leaveQueue takes a question away: answered, or not to be answered here.
func (q *queue) leaveQueue(c *approval.Confirmation) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(o *approval.Confirmation) bool { return o == c })
	if q.left == nil {
		q.left = map[string]bool{}
	}
	q.left[c.ID] = true
	if q.shown == c {
		q.shown = nil
	}
	if q.done++; len(q.waiting) == 0 {
		q.done = 0
	}
	if q.changed != nil {
		close(q.changed)
		q.changed = nil
	}
}
