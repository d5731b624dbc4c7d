// Package shell provides the tools that run the model's commands in the session's
// sandbox. shell runs a command and returns its outcome and output, shell_output
// pages through long output, shell_input types into the terminal of a background
// command, and shell_kill ends one.
//
// The package doesn't depend on a sandbox: package runner adapts one to the
// interfaces here. When a call ends, all processes of its command are killed. A
// background command ends with its session at the latest.
package shell
