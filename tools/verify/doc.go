// Package verify holds two tools that answer whether something is as it should
// be, without a judgement of a model: verify, which looks at given text and at
// workspace files from the host process, and verify_shell, which also runs
// commands, in the sandbox.
//
// A check that can't be made (a file that isn't there, a pattern that is none)
// is a check that did not pass, with the reason; it is never an error, and never
// passes. Nothing of it depends on time, order or place.
package verify
