package admit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gofrs/flock"
)

// wait is one call of Enter.
type wait struct {
	gate    *Gate
	request Request
	pass    *Pass
	began   time.Time
	turn    *flock.Flock // nil until it is ours
	inside  bool         // has gate.first
	reason  string       // what it waits for now
}

// through takes what the start needs, in this order: the first place of this
// process, the turn, memory, a slot.
func (w *wait) through(ctx context.Context) error {
	g := w.gate
	starts := fmt.Sprintf("for other sandboxes to start: %d at once", g.o.Starts)
	if err := w.comeFirst(ctx, starts); err != nil {
		return err
	}
	turn := g.lock(g.o.Group + ".turn")
	defer func() {
		if w.turn == nil {
			turn.Close() //nolint:errcheck // not ours
		}
	}()
	if err := w.poll(ctx, func() (string, error) {
		switch ok, err := take(turn); {
		case err != nil:
			return "", err
		case ok:
			w.turn = turn
		case !stopped(turn):
			return starts, nil
		}
		return "", nil // one that is stopped (Ctrl-Z) is passed
	}); err != nil {
		return err
	}
	if err := w.poll(ctx, func() (string, error) { return w.lease(ctx) }); err != nil {
		return err
	}
	return w.poll(ctx, func() (string, error) {
		if ok, err := w.slot(); !ok || err != nil {
			return starts, err
		}
		return "", nil
	})
}

// comeFirst waits for the others of this process, in order.
func (w *wait) comeFirst(ctx context.Context, reason string) error {
	unsaid := time.After(quiet)
	for {
		select {
		case w.gate.first <- struct{}{}:
			w.inside = true
			return nil
		case <-unsaid:
			w.say(reason)
		case <-ctx.Done():
			w.reason = reason
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
	// quiet is how long a wait is not worth a word.
	quiet = 200 * time.Millisecond
)

// poll tries until there is nothing to wait for any more.
func (w *wait) poll(ctx context.Context, try func() (reason string, err error)) error {
	for pause := firstPause; ; pause = min(pause+pause/2, lastPause) {
		reason, err := try()
		if reason == "" || err != nil {
			return err
		}
		if time.Since(w.began) >= quiet {
			w.say(reason)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			w.reason = reason
			return context.Cause(ctx)
		}
	}
}

// say tells what is waited for, once as long as it stays the same.
func (w *wait) say(reason string) {
	if reason != w.reason && w.request.Notify != nil {
		w.request.Notify("waiting " + reason)
	}
	w.reason = reason
}

// slot takes a free slot. Those of processes that are stopped do not count.
func (w *wait) slot() (bool, error) {
	most := w.gate.o.Starts
	for n := 0; n < most; n++ {
		slot := w.gate.lock(fmt.Sprintf("%s-%d.slot", w.gate.o.Group, n))
		ok, err := take(slot)
		if err != nil {
			return false, err
		}
		if ok {
			w.pass.slot = slot
			return true, nil
		}
		if stopped(slot) {
			most++
		}
		slot.Close() //nolint:errcheck // not ours
	}
	return false, nil
}

// leave lets the next one wait at the head.
func (w *wait) leave() {
	if w.turn != nil {
		w.turn.Close() //nolint:errcheck // ends with the process at the latest
	}
	if w.inside {
		<-w.gate.first
	}
}
