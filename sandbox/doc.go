// Package sandbox is the contract between Caisson and the environments in which
// untrusted commands run: one container per session, with the workspace mounted
// into it and a guest (cmd/caisson-guest) as its PID 1.
//
// A [Backend] creates a [Sandbox]. A Sandbox starts a [Command] as a [Process],
// and applies changes to the workspace. [Sandbox].Destroy removes everything.
// The implementations are sandbox/docker and sandbox/oci, which pass the test
// suite in sandbox/sandboxtest.
//
// The package declares types and their rules; it starts nothing.
//
// Five kinds of failure have five kinds of results:
//
//	the program failed            a value, [ExitStatus]
//	a limit was reached           *limits.ExceededError
//	the caller made a mistake     ErrInvalid, ErrState, ErrNotFound, ErrUnsupported
//	the backend failed            ErrUnavailable before a sandbox runs, ErrLost afterwards
//	the caller cancelled          an error that wraps context.Cause(ctx)
package sandbox
