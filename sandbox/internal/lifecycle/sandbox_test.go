package lifecycle

import (
	"errors"
	"sync"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// TestLostWhileItStarts checks that a sandbox that dies between its attestation
// and Create's return is an error of Create, not a running sandbox.
func TestLostWhileItStarts(t *testing.T) {
	s := &Sandbox{backend: &Backend{}, status: newStatus()}
	s.status.markCreated()
	s.status.markStopped(sandbox.ErrLost)
	if err := s.status.markRunning(); !errors.Is(err, sandbox.ErrUnavailable) || !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("markRunning: %v, want ErrUnavailable and ErrLost", err)
	}
	if s.State() != sandbox.StateStopped {
		t.Errorf("state %v", s.State())
	}
	<-s.Done()
}

func TestRequireRunning(t *testing.T) {
	s := newStatus()
	err := s.requireRunning("start")
	if e, ok := errors.AsType[*sandbox.StateError](err); !ok || e.State != sandbox.StateCreating || !errors.Is(err, sandbox.ErrState) {
		t.Errorf("error %v, want an ErrState that names creating", err)
	}
	if got := err.Error(); got != "start: sandbox is creating" {
		t.Errorf("text %q", got)
	}
	s.markCreated()
	if err := s.markRunning(); err != nil {
		t.Error(err)
	}
	if err := s.requireRunning("start"); err != nil {
		t.Error(err)
	}
	s.markStopped(sandbox.ErrLost)
	if err := s.requireRunning("start"); !errors.Is(err, sandbox.ErrLost) {
		t.Errorf("error %v, want the loss", err)
	}
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

type endedProcess struct {
	sandbox.Exit
	err error
}

func (p endedProcess) Wait() (sandbox.Exit, error) { return p.Exit, p.err }

// A kill counts for a command that failed meanwhile, whenever its end is asked
// for.
func TestCountedProcess(t *testing.T) {
	for _, tt := range []struct {
		status sandbox.ExitStatus
		kills  int
		want   bool
	}{
		{sandbox.ExitStatus{Code: -1, Signal: 9}, 1, true},
		{sandbox.ExitStatus{Code: 2}, 1, true}, // such as a make whose compiler was killed
		{sandbox.ExitStatus{}, 1, false},
		{sandbox.ExitStatus{Code: -1, Signal: 9}, 0, false},
		{sandbox.ExitStatus{Code: 137, OOMKilled: true}, 0, true}, // counted inside
	} {
		asked := 0
		p := &countedProcess{
			Process: endedProcess{Exit: sandbox.Exit{Status: tt.status}, err: sandbox.ErrLost},
			killed:  sync.OnceValue(func() bool { asked++; return tt.kills >= asked }),
		}
		for range 2 {
			exit, err := p.Wait()
			if exit.Status.OOMKilled != tt.want || !errors.Is(err, sandbox.ErrLost) {
				t.Errorf("%+v after %d kills: %+v, %v", tt.status, tt.kills, exit.Status, err)
			}
		}
	}
}
