// Package loop implements the agent loop. A turn runs from a user message to the
// final answer; a round is one model call with all of its tool calls. A pure
// function chooses each step from the history and the usage so far.
//
// The package calls a [Model] and a dispatcher, and never imports sandbox. Each
// provider is a subpackage.
package loop
