package main

import (
	"context"
	"errors"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// TestACancelledStartWaitsForNoOthers: a server's sessions share a backend that is
// chosen late, and one choice's engine may not answer.
func TestACancelledStartWaitsForNoOthers(t *testing.T) {
	choosing, answer := make(chan struct{}), make(chan struct{})
	noEngine := errors.New("no engine")
	l := newLateBackend(func(context.Context) (sandbox.Creator, error) {
		close(choosing)
		<-answer
		return nil, noEngine
	})
	first := make(chan error, 1)
	go func() {
		_, err := l.Create(t.Context(), sandbox.Spec{})
		first <- err
	}()
	<-choosing
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.chooseOnce(cancelled); !errors.Is(err, context.Canceled) {
		t.Errorf("a call that is cancelled: %v", err)
	}
	close(answer)
	if e, ok := errors.AsType[*commandError](<-first); !ok || !errors.Is(e, noEngine) {
		t.Errorf("the first call: %v", e)
	}
}
