// Package dispatch runs the tool calls of a session. A [Dispatcher] resolves the
// name, validates the input, checks paths and policy, waits for an answer and for a
// slot, runs the tool, and bounds its result. It reports each step as an [Event].
// It implements docs/internal/specification.md.
//
// The package is rank 4 and knows neither sandbox nor loop.
package dispatch
