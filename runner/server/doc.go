// Package server is the HTTP API of Caisson: many sessions at once, their
// records as a stream, their confirmations, their changes.
//
// It is rank 10, above runner/trace. It knows no backend and no model: [Options].Prepare
// supplies the options of a session.
//
//	client                                 server
//	──────                                 ──────
//	POST /sessions ──────────────────────▶ runner.Open
//	POST /sessions/{id}/turns ───────────▶ Session.Start
//	GET  /sessions/{id}/events ◀────────── trace.jsonl, followed; live output beside it
//	POST …/confirmations/{request} ──────▶ approval.Broker.Answer: the first answer wins
//	DELETE /sessions/{id} ───────────────▶ Session.Close: container gone, records kept
package server
