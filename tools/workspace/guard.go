package workspace

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// guard limits how many calls into the file system can be stuck: each costs a
// goroutine and a thread, and there are at most cap(slots).
type guard struct {
	// local is set for a file system that depends on no other process or machine.
	// Calls then run on the caller's goroutine: a goroutine for each would double
	// the time of a small read (measured for 4 KiB: 4.8 µs and 10 µs; os.ReadFile
	// 9.8 µs).
	local    bool
	deadline time.Duration
	slots    chan struct{}
	// stuck counts the calls that were given up and have not returned.
	stuck atomic.Int32
}

func newGuard(deadline time.Duration, most int) *guard {
	return &guard{deadline: deadline, slots: make(chan struct{}, most)}
}

// errGivenUp is the cause of a given-up call's context.
var errGivenUp = errors.New("given up")

const (
	callRunning int32 = iota
	callDone
	callGivenUp
)

// runGuarded runs f in its own goroutine and gives up at the guard's deadline or
// when ctx ends. It then cancels f's context, so that f stops between two system
// calls. After an error f may still be running, so it must not touch what the
// caller uses again.
func runGuarded[T any](ctx context.Context, g *guard, path string, f func(context.Context) (T, error)) (T, error) {
	var zero T
	if ctx.Err() != nil {
		return zero, fmt.Errorf("read %q: %w", path, context.Cause(ctx))
	}
	if g.local {
		v, err := f(ctx)
		return v, withCause(ctx, path, err)
	}
	if int(g.stuck.Load()) == cap(g.slots) {
		return zero, g.timeoutError(path)
	}
	timer := time.NewTimer(g.deadline)
	defer timer.Stop()
	select {
	case g.slots <- struct{}{}:
	case <-timer.C:
		return zero, g.timeoutError(path)
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
		return r.v, withCause(ctx, path, r.err)
	case <-timer.C:
		err = g.timeoutError(path)
	case <-ctx.Done():
		err = fmt.Errorf("read %q: %w", path, context.Cause(ctx))
	}
	g.stuck.Add(1)
	if !state.CompareAndSwap(callRunning, callGivenUp) {
		g.stuck.Add(-1) // it returned meanwhile, but too late
	}
	return zero, err
}

// withCause replaces an error by the cause of ctx if ctx has ended.
func withCause(ctx context.Context, path string, err error) error {
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("read %q: %w", path, context.Cause(ctx))
	}
	return err
}

func (g *guard) timeoutError(path string) *Error {
	return &Error{
		Kind: KindTimeout, Path: abbreviatePath(path),
		Detail: fmt.Sprintf("the file system did not answer within %v", g.deadline),
	}
}
