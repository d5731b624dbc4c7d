// Package approval gets people's answers about tool calls and keeps them. It holds
// the broker between a dispatcher and its clients, a session's answers, and the
// files of lasting approvals and trusted workspaces with the log of their changes.
//
// The package is rank 3: it knows what is asked, not how tools run.
package approval
