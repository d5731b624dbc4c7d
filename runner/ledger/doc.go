// Package ledger counts what requests to models use per day and month, for all
// sessions of a state directory, and holds ceilings against it.
//
// The count is one file, usage/ledger.json below the state directory, which is replaced
// whole under a lock. A request is reserved in it before it begins, and what it used
// replaces the reservation. Each open [Ledger] holds the lock of a file of its own: the
// kernel releases it with the process, and reservations of a ledger whose lock is free
// no longer count.
//
// Periods are those of UTC, and only go forward: a clock that is set back does not make
// a period begin again.
package ledger
