// Package limits holds the numbers that bound a session and the errors that
// say which of them was reached: the resources of one sandbox, the budget of
// one agent run, and the usage counted against it.
//
// It is a leaf (rank 0): it imports nothing of Caisson and does no I/O.
package limits
