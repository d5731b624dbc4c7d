// Package mcpserver offers the tools of sessions without a model to clients of the Model
// Context Protocol, so that other agents work in the sandboxes of Caisson.
//
// It is rank 10, beside runner/server. It knows no backend: [Options].Open opens the
// session of a client.
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
// The client's own requests are never made: no sampling, no elicitation. A prompt of the
// policy is nothing that the client may answer, since its agent could answer for itself.
package mcpserver
