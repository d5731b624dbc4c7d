// Package policy decides which tool calls run, which need an answer and which are
// refused. It also analyses shell commands: which are dangerous, which a lasting
// approval can be bound to, and which files they run.
//
// The package is rank 2: it knows tool definitions, but not how tools run.
package policy
