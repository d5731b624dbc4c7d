// Package verify provides two tools that make exact checks, without a model's
// judgement. verify checks given text and workspace files from the host process;
// verify_shell also runs commands in the sandbox.
//
// A check that can't be made, because of a missing file or an invalid pattern for
// example, did not pass, with the reason. It is never an error. Checks don't
// depend on time, on their order or on the machine.
package verify
