package main

import (
	"context"
	"os"
	"syscall"

	"github.com/caisson-run/caisson/runner"
)

// interruptible cancels the context at the first signal, and closes force at
// the second: a person who asks twice is not made to wait for commands to end.
// stop ends the listening.
func interruptible(parent context.Context, signals <-chan os.Signal, say func(string)) (ctx context.Context, force <-chan struct{}, cancel context.CancelCauseFunc, stop func()) {
	ctx, cancel = context.WithCancelCause(parent)
	forced, ended, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for n := 0; ; {
			select {
			case sig := <-signals:
				switch n++; n {
				case 1:
					say("stopping: what runs is being ended; once more to kill it at once")
					cancel(&runner.Interrupted{Signal: number(sig)})
				case 2:
					say("killing the sandbox")
					close(forced)
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
