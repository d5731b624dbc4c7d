// Package shell holds the tools that run commands of the model in the session's
// sandbox: shell runs one and tells how it ended and what it wrote, shell_output
// pages through output, and shell_kill ends a command that runs in the background.
//
// It is rank 2 and knows no sandbox: [New] takes anything that runs a
// [Command], and runner adapts a sandbox to it. A command ends with its call,
// and whatever it left is killed, unless it was started in the background: then
// it has a handle, and ends with its session at the latest.
package shell
