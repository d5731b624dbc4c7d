package sandbox

import (
	"fmt"
	"slices"
	"sync"
)

// State is the state of a sandbox, in the terms of the OCI runtime
// specification 1.2 ("state" and "lifecycle").
type State int

// The states.
const (
	StateCreating State = iota // the container is being created
	StateCreated               // the container exists; the guest has not answered yet
	StateRunning               // the guest answered and was attested
	StateStopped               // destroyed or lost
)

// String returns the state's name in the OCI runtime specification.
func (s State) String() string {
	switch s {
	case StateCreating:
		return "creating"
	case StateCreated:
		return "created"
	case StateRunning:
		return "running"
	case StateStopped:
		return "stopped"
	}
	return fmt.Sprintf("state(%d)", int(s))
}

// transitions maps each state to its possible next states. Stopped may follow
// every state, including itself, because Destroy is idempotent and works on
// incomplete sandboxes.
var transitions = map[State][]State{
	StateCreating: {StateCreated, StateStopped},
	StateCreated:  {StateRunning, StateStopped},
	StateRunning:  {StateStopped},
	StateStopped:  {StateStopped},
}

// StateError is the error for an action in a state that does not allow it. It
// wraps [ErrState].
type StateError struct {
	Action string
	State  State
}

func (e *StateError) Error() string {
	return fmt.Sprintf("%s: sandbox is %s", e.Action, e.State)
}

func (e *StateError) Unwrap() error { return ErrState }

// Lifecycle guards the state of one sandbox. The zero value is in
// StateCreating. It is safe for concurrent use.
type Lifecycle struct {
	mu    sync.Mutex
	state State
}

// State returns the current state.
func (l *Lifecycle) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Advance sets the state. It panics if the transition is not in the table,
// which would be the backend's bug.
func (l *Lifecycle) Advance(to State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(transitions[l.state], to) {
		panic(fmt.Sprintf("sandbox: no transition from %s to %s", l.state, to))
	}
	l.state = to
}

// Require returns a [StateError] unless the state is want.
func (l *Lifecycle) Require(action string, want State) error {
	if s := l.State(); s != want {
		return &StateError{Action: action, State: s}
	}
	return nil
}
