package workspace

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// guard runs calls into the file system so that one that never comes back
// costs a goroutine and a thread, of which there are at most cap(slots).
type guard struct {
	// local says that the file system is one that answers without anybody's
	// help, so that calls run on their caller's goroutine: a goroutine of
	// their own would double the time of a small read (measured: 4.8 µs and
	// 10 µs for 4 KiB, os.ReadFile 9.8 µs).
	local    bool
	deadline time.Duration
	slots    chan struct{}
	// stuck counts the calls that were given up and have not come back.
	stuck atomic.Int32
}

func newGuard(deadline time.Duration, most int) *guard {
	return &guard{deadline: deadline, slots: make(chan struct{}, most)}
}

// errGivenUp is the cause with which a call ends that nobody waits for.
var errGivenUp = errors.New("given up")

// The states of one guarded call.
const (
	callRunning int32 = iota
	callDone
	callGivenUp
)

// guarded runs f in a goroutine of its own, and gives it up at the guard's
// deadline or when ctx ends. The context that f gets ends then too, so that it
// stops between two system calls; f must touch nothing that its caller uses
// again after an error.
func guarded[T any](ctx context.Context, g *guard, path string, f func(context.Context) (T, error)) (T, error) {
	var zero T
	if ctx.Err() != nil {
		return zero, fmt.Errorf("read %q: %w", path, context.Cause(ctx))
	}
	if g.local {
		v, err := f(ctx)
		return v, cancelled(ctx, path, err)
	}
	if int(g.stuck.Load()) == cap(g.slots) {
		return zero, g.timeout(path)
	}
	timer := time.NewTimer(g.deadline)
	defer timer.Stop()
	select {
	case g.slots <- struct{}{}:
	case <-timer.C:
		return zero, g.timeout(path)
	case <-ctx.Done():
		return zero, fmt.Errorf("read %q: %w", path, context.Cause(ctx))
	}
	type result struct {
		v   T
		err error
	}
	var state atomic.Int32
	done := make(chan result, 1)
	call, cancel := context.WithCancelCause(ctx)
	defer cancel(errGivenUp)
	go func() {
		v, err := f(call)
		if !state.CompareAndSwap(callRunning, callDone) {
			g.stuck.Add(-1)
		}
		<-g.slots
		done <- result{v, err}
	}()
	var err error
	select {
	case r := <-done:
		return r.v, cancelled(ctx, path, r.err)
	case <-timer.C:
		err = g.timeout(path)
	case <-ctx.Done():
		err = fmt.Errorf("read %q: %w", path, context.Cause(ctx))
	}
	g.stuck.Add(1)
	if !state.CompareAndSwap(callRunning, callGivenUp) {
		g.stuck.Add(-1) // it came back meanwhile, but too late
	}
	return zero, err
}

// cancelled puts the cause in an error's place where ctx has ended.
func cancelled(ctx context.Context, path string, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("read %q: %w", path, context.Cause(ctx))
	}
	return err
}

func (g *guard) timeout(path string) *Error {
	return &Error{
		Kind: KindTimeout, Path: abbreviate(path),
		Detail: fmt.Sprintf("the file system did not answer within %v", g.deadline),
	}
}
