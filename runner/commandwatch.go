package runner

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/runner/record"
)

// CommandWatch finds out when a session without a model is no longer used. Its Observe
// is called with the kind of every record of the session, by [Hooks].Mirror.
type CommandWatch struct {
	// running is the number of commands that run. used receives when a command begins or
	// ends, or the sandbox is lost.
	running atomic.Int64
	used    chan struct{}
}

// NewCommandWatch returns a watch for a session that is not open yet.
func NewCommandWatch() *CommandWatch { return &CommandWatch{used: make(chan struct{}, 1)} }

// Observe takes notice of a record. It never waits.
func (w *CommandWatch) Observe(kind record.Kind) {
	switch kind {
	case record.KindUserCommandStarted:
		w.running.Add(1)
	case record.KindUserCommandEnded:
		w.running.Add(-1)
	case record.KindSandboxLost:
	default:
		return
	}
	select {
	case w.used <- struct{}{}:
	default: // what was sent before was not received yet
	}
}

// Running returns the number of commands that run.
func (w *CommandWatch) Running() int { return int(w.running.Load()) }

// Wait returns when the session has to end: ctx has ended, no command has run for a
// time, or the session can run no more commands.
func (w *CommandWatch) Wait(ctx context.Context, session *Session, unused time.Duration) {
	idle := time.NewTimer(unused)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-idle.C:
			if w.Running() == 0 { // one that begins now keeps the session
				return
			}
		case <-w.used:
			if session.Status().Over != "" {
				return
			}
			idle.Stop()
			if w.Running() == 0 {
				idle.Reset(unused)
			}
		}
	}
}
