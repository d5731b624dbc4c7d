package main

import (
	"context"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

// lateBackend chooses a backend when the first sandbox is needed. It is safe for
// concurrent use.
type lateBackend struct {
	choose func(ctx context.Context) (sandbox.Creator, error)

	// turn holds one value during a choice. Sessions of a server share a
	// backend: one that is cancelled does not wait for another's engine.
	turn   chan struct{}
	chosen sandbox.Creator
}

func newLateBackend(choose func(ctx context.Context) (sandbox.Creator, error)) *lateBackend {
	return &lateBackend{choose: choose, turn: make(chan struct{}, 1)}
}

// Create chooses the backend, the first time, and makes the sandbox with it.
func (l *lateBackend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	b, err := l.backend(ctx)
	if err != nil {
		return nil, failure(err)
	}
	return b.Create(ctx, spec)
}

func (l *lateBackend) backend(ctx context.Context) (_ sandbox.Creator, err error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-l.turn }()
	if l.chosen == nil {
		l.chosen, err = l.choose(ctx)
	}
	return l.chosen, err
}

// mayNeedSandbox reports whether a call of a session may need a sandbox before
// anything else asks for one.
func (s *setup) mayNeedSandbox(policy tools.Policy) (bool, error) {
	defs, err := toolsOf(&s.conf)
	return !s.reads && policy.AllowsSandboxed(defs, s.workspace.Path), err
}

// findBackend chooses the backend of one session, and removes what dead owners
// left. Where no sandbox may be needed, it is chosen by the first call that needs
// one. A choice that fails is a failure of such calls.
func (s *setup) findBackend(ctx context.Context, u teller, needed bool) (*readyBackend, error) {
	if !needed {
		return s.late("nothing that may be called needs one", func(ctx context.Context) (sandbox.Creator, error) {
			b, _, err := s.backends.choose(ctx, u.note)
			return b, err
		}), nil
	}
	ready, err := s.makeReady(ctx, u)
	if err == nil || ctx.Err() != nil {
		return ready, err
	}
	return s.late(noneCanStart+err.Error(), func(context.Context) (sandbox.Creator, error) { return nil, err }), nil
}

// noneCanStart begins the reason of a choice that failed.
const noneCanStart = "none can start: "

// late returns a backend that is chosen by the first call that needs it.
func (s *setup) late(why string, choose func(ctx context.Context) (sandbox.Creator, error)) *readyBackend {
	return &readyBackend{backend: newLateBackend(choose), choice: record.BackendChoice{Asked: *s.conf.Backend, Why: why}}
}
