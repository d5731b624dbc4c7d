package sandbox

import (
	"fmt"
	"slices"
	"sync"
)

// State is where a sandbox is in its life, in the words of the OCI runtime
// specification 1.2 ("state" and "lifecycle").
type State int

// The states, in order.
const (
	StateCreating State = iota // the container is being made
	StateCreated               // made; the guest has not answered yet
	StateRunning               // the guest answered and was attested
	StateStopped               // gone, by Destroy or by loss
)

// String gives the OCI word.
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

// transitions holds what may follow what. Stopped follows everything, itself
// included, because Destroy is idempotent and works on what is half made.
var transitions = map[State][]State{
	StateCreating: {StateCreated, StateStopped},
	StateCreated:  {StateRunning, StateStopped},
	StateRunning:  {StateStopped},
	StateStopped:  {StateStopped},
}

// StateError says that an action was tried in a state that does not allow it.
// It is an [ErrState].
type StateError struct {
	Action string
	State  State
}

// Error names the action and the state.
func (e *StateError) Error() string {
	return fmt.Sprintf("%s: sandbox is %s", e.Action, e.State)
}

// Unwrap gives [ErrState].
func (e *StateError) Unwrap() error { return ErrState }

// Lifecycle guards one sandbox's state. The zero value is creating. It is safe
// for concurrent use.
type Lifecycle struct {
	mu    sync.Mutex
	state State
}

// State returns the state now.
func (l *Lifecycle) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// Advance is the one place that assigns a state. A transition that is not in
// the table is a bug of the backend, not of its caller, and panics.
func (l *Lifecycle) Advance(to State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(transitions[l.state], to) {
		panic(fmt.Sprintf("sandbox: no transition from %s to %s", l.state, to))
	}
	l.state = to
}

// Require returns a [StateError] naming action unless the state is want.
func (l *Lifecycle) Require(action string, want State) error {
	if s := l.State(); s != want {
		return &StateError{Action: action, State: s}
	}
	return nil
}
