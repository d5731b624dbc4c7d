package lifecycle

import (
	"errors"
	"fmt"
	"sync"

	"github.com/caisson-run/caisson/sandbox"
)

// errDestroyed cancels whatever waits for a sandbox that is being removed.
var errDestroyed = errors.New("the sandbox is being destroyed")

// status is a sandbox's state and the reason for its end. It is safe for
// concurrent use.
type status struct {
	done chan struct{} // closed in StateStopped

	mu     sync.Mutex // guards the fields below
	state  sandbox.State
	ending bool // Destroy was called
	err    error
}

func newStatus() *status { return &status{done: make(chan struct{})} }

// current returns the current state.
func (s *status) current() sandbox.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// markCreated records that the container exists.
func (s *status) markCreated() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = sandbox.StateCreated
}

// markRunning records that the sandbox runs, or returns an error if it has
// stopped.
func (s *status) markRunning() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == sandbox.StateStopped {
		return fmt.Errorf("%w: it ended as soon as it had started: %w", sandbox.ErrUnavailable, s.err)
	}
	s.state = sandbox.StateRunning
	return nil
}

// markStopped records that the sandbox has stopped, and the loss or nil. Only
// the first call has an effect.
func (s *status) markStopped(loss error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == sandbox.StateStopped {
		return
	}
	s.err = loss
	s.state = sandbox.StateStopped
	close(s.done)
}

// markEnding records that Destroy was called, so the guest's end is no loss.
func (s *status) markEnding() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
}

func (s *status) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

// lossError returns the loss of a lost sandbox, or nil.
func (s *status) lossError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// requireRunning returns an error unless the sandbox is running: a lost
// sandbox's loss, otherwise a sandbox.StateError.
func (s *status) requireRunning(action string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return fmt.Errorf("%s: %w", action, s.err)
	case s.state != sandbox.StateRunning:
		return &sandbox.StateError{Action: action, State: s.state}
	}
	return nil
}

// checkEnded returns an error that wraps sandbox.ErrLost if the sandbox has
// stopped.
func (s *status) checkEnded() error {
	select {
	case <-s.done:
		if err := s.lossError(); err != nil {
			return err
		}
		return fmt.Errorf("%w: it was destroyed", sandbox.ErrLost)
	default:
		return nil
	}
}
