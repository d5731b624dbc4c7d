// Package detach starts a program as a process that outlives the terminal and
// the one that started it, and lets that process report when it is ready.
//
//	parent: Start ─▶ child, in a session of its own ─▶ its work begins
//	        copies the child's standard error      ◀─  notices, errors
//	        returns the text                       ◀─  Parent.Ready(text)
//
// It imports the standard library and golang.org/x/sys alone.
package detach

import "fmt"

// EndedError reports a child that ended before it was ready.
type EndedError struct {
	// Status is its exit status, or 128 and the number of the signal that ended it.
	Status int
}

// Error names the exit status.
func (e *EndedError) Error() string {
	return fmt.Sprintf("the process ended with status %d before it was ready", e.Status)
}
