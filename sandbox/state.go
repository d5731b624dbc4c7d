package sandbox

import "fmt"

// State is the state of a sandbox, in the terms of the OCI runtime
// specification 1.2 ("state" and "lifecycle").
type State int

// The states, in order. StateStopped may follow any other.
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
