// Package detach starts a program as a process that outlives the terminal and its
// parent, and lets the process report when it is ready.
//
//	parent: Start ─▶ child, in its own session ─▶ its work begins
//	        copies the child's standard error   ◀─  notices, errors
//	        returns the text                    ◀─  Parent.Ready(text)
//
// It imports only the standard library and golang.org/x/sys.
package detach

import "fmt"

// EndedError reports a child that ended before it was ready.
type EndedError struct {
	// Status is its exit status, or 128 plus the number of the signal that ended it.
	Status int
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("the process ended with status %d before it was ready", e.Status)
}
