// Package loop is the agent loop: it decides what comes next from the history
// alone (a pure function), and does it. A turn runs from a user message to its
// final answer; a round is one model call and all of its tool calls.
//
// It is rank 3: it speaks to a [Model] and to a dispatcher, and never imports
// sandbox. Providers are sub-packages, one each.
package loop
