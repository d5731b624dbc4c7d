// Package shell is the shell tool: it runs one command of the model in the
// session's sandbox and tells the model how it ended and what it wrote.
//
// It is rank 2 and knows no sandbox: [New] takes anything that runs a
// [Command], and runner adapts a sandbox to it. A command has no handle that
// outlives its call; one that runs in the background would get its own tool
// result when it is started, and nothing here stands against that.
package shell
