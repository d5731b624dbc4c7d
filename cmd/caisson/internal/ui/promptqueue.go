package ui

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/caisson-run/caisson/tools/approval"
)

// queue shows one question at a time on the terminal, the oldest first. The zero value
// is empty.
type queue struct {
	mu      sync.Mutex
	shown   *approval.Confirmation // the question on the terminal, or nil
	waiting int                    // the running Approves, including the shown one's
	// left are questions that are done here but may still wait elsewhere. They don't
	// block others.
	left map[string]bool
	// done counts the questions since the terminal last had none.
	done    int
	changed chan struct{}
}

// place is a question's position among the waiting ones: "2 of 3".
type place struct{ nth, of int }

// enterQueue waits until a question may be shown. leaveQueue must follow, whatever it
// returns.
func (q *queue) enterQueue(ctx context.Context, c *approval.Confirmation, pending func() []approval.Confirmation) (place, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting++
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

// countOthers counts the other questions, and those before c. The caller holds mu.
func (q *queue) countOthers(c *approval.Confirmation, pending func() []approval.Confirmation) (ahead, others int) {
	still := map[string]bool{}
	for _, o := range pending() {
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

// listWaiting returns the questions to answer here, oldest first.
func (q *queue) listWaiting(pending func() []approval.Confirmation) []approval.Confirmation {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := slices.DeleteFunc(pending(), func(o approval.Confirmation) bool { return q.left[o.ID] })
	slices.SortStableFunc(list, func(a, b approval.Confirmation) int { return cmp.Compare(a.Seq, b.Seq) })
	return list
}

// leaveQueue removes a question that was answered here or need not be.
func (q *queue) leaveQueue(c *approval.Confirmation) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting--
	if q.left == nil {
		q.left = map[string]bool{}
	}
	q.left[c.ID] = true
	if q.shown == c {
		q.shown = nil
	}
	if q.done++; q.waiting == 0 {
		q.done = 0
	}
	if q.changed != nil {
		close(q.changed)
		q.changed = nil
	}
}
