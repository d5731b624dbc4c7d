// Package verify provides two tools that make exact checks, without a model's
// judgement. verify checks given text and workspace files from the host process.
// verify_shell also runs commands in the sandbox.
//
// A check that can't be made, such as for a missing file or with an invalid
// pattern, did not pass. It is never an error. Checks don't depend on time, order
// or the machine.
package verify
