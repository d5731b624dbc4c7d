// Package sandbox is the contract between Caisson and the places where
// untrusted commands run: one container a session, with the workspace mounted
// into it and one guest (cmd/caisson-guest) as its PID 1.
//
// A [Backend] makes a [Sandbox]; a Sandbox starts a [Command] as a [Process]
// and applies workspace changes; [Sandbox].Destroy removes everything. The
// implementations are sandbox/docker and sandbox/oci, which pass the suite in
// sandbox/sandboxtest.
//
// The package declares types and their rules; it starts nothing. It imports
// limits, images and tools/workspace (rank 0) only.
//
// Five questions, five kinds of answer:
//
//	did the program inside fail?    a value, [ExitStatus]
//	was a limit reached?            *limits.ExceededError
//	did the caller misuse us?       ErrInvalid, ErrState, ErrNotFound, ErrUnsupported
//	is the backend ill?             ErrUnavailable before it runs, ErrLost once it ran
//	cancelled?                      an error that wraps context.Cause(ctx)
package sandbox
