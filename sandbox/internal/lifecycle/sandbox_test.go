package lifecycle

import (
	"errors"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// TestLostWhileItStarts checks that a sandbox that dies between its attestation
// and Create's return is an error of Create, not a running sandbox.
func TestLostWhileItStarts(t *testing.T) {
	s := &Sandbox{backend: &Backend{}, status: newStatus()}
	s.status.state.Advance(sandbox.StateCreated)
	s.status.markStopped(sandbox.ErrLost)
	if err := s.status.markRunning(); !errors.Is(err, sandbox.ErrUnavailable) || !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("markRunning: %v, want ErrUnavailable and ErrLost", err)
	}
	if s.State() != sandbox.StateStopped {
		t.Errorf("state %v", s.State())
	}
	<-s.Done()
}

// TestQuote checks that a text in the error is not repeated.
func TestQuote(t *testing.T) {
	err := errors.New("exit status 1: no room")
	if got := quote(err, "standard error", "no room").Error(); got != err.Error() {
		t.Errorf("%q", got)
	}
	if got := quote(err, "standard error", "a panic").Error(); got != `exit status 1: no room: standard error: "a panic"` {
		t.Errorf("%q", got)
	}
}
