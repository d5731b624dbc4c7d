// Package limits defines a session's bounds: sandbox resources, run budgets and the
// usage counted against them, circuit breakers, and the errors that name the reached
// limit.
//
// It has rank 0: it imports no other package of Caisson and does no I/O.
package limits
