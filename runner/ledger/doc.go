// Package ledger counts what model requests use per day and month, for all
// sessions of a state directory, and enforces ceilings.
//
// The count is in usage/ledger.json in the state directory, which is replaced
// as a whole under a lock. A request is reserved before it begins, and then
// replaced with what it used. Each open [Ledger] holds the lock of a separate
// file. The kernel releases it with the process, and reservations of a ledger
// whose lock is free no longer count.
//
// Periods are in UTC, and only go forward: setting the clock back does not
// start a period again.
package ledger
