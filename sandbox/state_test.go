package sandbox

import (
	"errors"
	"testing"
)

// Any other transition is a bug in a backend.
func TestAdvanceTable(t *testing.T) {
	states := []State{StateCreating, StateCreated, StateRunning, StateStopped}
	allowed := map[[2]State]bool{
		{StateCreating, StateCreated}: true,
		{StateCreating, StateStopped}: true,
		{StateCreated, StateRunning}:  true,
		{StateCreated, StateStopped}:  true,
		{StateRunning, StateStopped}:  true,
		{StateStopped, StateStopped}:  true,
	}
	for _, from := range states {
		for _, to := range states {
			l := &Lifecycle{state: from}
			panicked := func() (p bool) {
				defer func() { p = recover() != nil }()
				l.Advance(to)
				return false
			}()
			if want := !allowed[[2]State{from, to}]; panicked != want {
				t.Errorf("%s to %s: panicked %t, want %t", from, to, panicked, want)
			}
			if want := map[bool]State{true: from, false: to}[panicked]; l.State() != want {
				t.Errorf("%s to %s: state %s afterwards", from, to, l.State())
			}
		}
	}
}

func TestRequire(t *testing.T) {
	var l Lifecycle
	err := l.Require("start", StateRunning)
	var stateErr *StateError
	if !errors.Is(err, ErrState) || !errors.As(err, &stateErr) || stateErr.State != StateCreating {
		t.Errorf("error %v, want an ErrState that names creating", err)
	}
	if got := err.Error(); got != "start: sandbox is creating" {
		t.Errorf("text %q", got)
	}
	l.Advance(StateCreated)
	l.Advance(StateRunning)
	if err := l.Require("start", StateRunning); err != nil {
		t.Error(err)
	}
}

func TestStateString(t *testing.T) {
	for s, want := range map[State]string{StateCreating: "creating", StateStopped: "stopped", State(9): "state(9)"} {
		if s.String() != want {
			t.Errorf("%d is %q, want %q", int(s), s, want)
		}
	}
}

func TestExitStatus(t *testing.T) {
	for _, tt := range []struct {
		status  ExitStatus
		text    string
		success bool
	}{
		{ExitStatus{}, "exit code 0", true},
		{ExitStatus{Code: 3}, "exit code 3", false},
		{ExitStatus{TimedOut: true}, "exit code 0, timed out", false},
		{ExitStatus{Code: -1, Signal: 9, OOMKilled: true}, "signal 9 (SIGKILL), out of memory", false},
		{ExitStatus{Code: -1, Signal: 15, Cancelled: true}, "signal 15 (SIGTERM), cancelled", false},
	} {
		if tt.status.String() != tt.text || tt.status.Success() != tt.success {
			t.Errorf("%+v: %q success %t, want %q %t", tt.status, tt.status, tt.status.Success(), tt.text, tt.success)
		}
	}
}
