// Package mcpserver offers the tools of sessions without a model to clients of
// the Model Context Protocol, so that other agents can work in Caisson's
// sandboxes.
//
// It is rank 10, beside runner/server. It knows no backend: [Options].Open
// opens a client's session.
//
//	client                                 server
//	──────                                 ──────
//	initialize ──────────────────────────▶ admission: MaxSessions
//	tools/list, tools/call ──────────────▶ the first one opens the session: Options.Open
//	tools/call ──────────────────────────▶ Session.CallTool, beside the client's other calls
//	notifications/progress ◀────────────── live output, at most twice a second
//	notifications/cancelled ─────────────▶ the context of the call ends
//	end of input, DELETE, idle too long ─▶ Session.Close: container gone, records kept
//
// The server asks the client only for its roots: no sampling, no elicitation. A
// client must not answer the policy's prompts, because its agent could answer
// for itself.
package mcpserver
