package sandbox

import "testing"

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
