// Package verify provides two tools that make exact checks, without a model's
// judgement. verify checks given text and workspace files from the host process.
// verify_shell also runs commands in the sandbox.
//
// A check that can't be made, for example because a file is missing or a pattern is
// invalid, does not pass; it is no error. Except for commands, checks don't depend
// on time, order or the machine.
package verify
