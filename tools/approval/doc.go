// Package approval gets the answers of people about tool calls and keeps them: the
// broker between a dispatcher and its clients, the answers of a session, and the files
// of lasting approvals and of trusted workspaces with the log of their changes.
//
// It is rank 3: it knows what is asked, not how tools run.
package approval
