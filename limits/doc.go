// Package limits defines what bounds a session: the resources of a sandbox, the
// budget of an agent run, the usage counted against it, circuit breakers, and
// the errors that name the limit that was reached.
//
// It has rank 0: it imports no other package of Caisson and does no I/O.
package limits
