// Package policy decides which tool calls run, which need an answer and which are
// refused. It also analyses shell commands: which are dangerous, which a lasting
// approval can be bound to, and which files they run.
//
// It is rank 2: it knows definitions of tools and nothing of their execution.
package policy
