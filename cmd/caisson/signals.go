package main

import (
	"context"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/caisson-run/caisson/runner"
)

// handleSignals hands signals to the command that runs. One that waits for none,
// or doesn't yet, is ended by the first.
func handleSignals(a *app) (stop func()) {
	in, out, done := a.signals, make(chan os.Signal, 4), make(chan struct{})
	var handled atomic.Bool
	a.signals, a.handled = out, &handled
	go func() {
		for {
			select {
			case sig := <-in:
				if !handled.Load() {
					a.exit(128 + number(sig))
					return
				}
				select {
				case out <- sig:
				default: // more than four make no difference
				}
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}

// listen returns the signals, which the caller handles from now on.
func (a *app) listen() <-chan os.Signal {
	if a.handled != nil {
		a.handled.Store(true)
	}
	return a.signals
}

// interruptible cancels the context at the first signal, and closes force at
// the second: a person who asks twice is not made to wait for commands to end.
// The third ends the program where it stands; the sandbox's guest ends with it,
// and the next start removes what is left. Nothing here waits for a writer: say
// must return at once. stop ends the listening.
func interruptible(parent context.Context, signals <-chan os.Signal, say func(string), exit func(int)) (ctx context.Context, force <-chan struct{}, cancel context.CancelCauseFunc, stop func()) {
	ctx, cancel = context.WithCancelCause(parent)
	forced, ended, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; {
			select {
			case sig := <-signals:
				switch n++; n {
				case 1:
					cancel(&runner.Interrupted{Signal: number(sig)})
					say("stopping: what runs is being ended; once more to kill it at once")
				case 2:
					close(forced)
					say("killing the sandbox; once more to end without waiting")
				default:
					exit(128 + number(sig))
				}
			case <-ended:
				return
			}
		}
	}()
	return ctx, forced, cancel, func() {
		close(ended)
		<-done
		cancel(nil)
	}
}

func number(sig os.Signal) int {
	if s, ok := sig.(syscall.Signal); ok {
		return int(s)
	}
	return int(syscall.SIGINT)
}
