// Package loop implements the agent loop. A turn runs from a user message to the final
// answer. A round is one model call and its tool calls. A pure function chooses each
// step from the history and the usage so far.
//
// The package calls a [Model] and a dispatcher. It never imports sandbox. Providers are
// subpackages.
package loop
