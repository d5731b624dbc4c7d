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
//
// The parts, each using those below it:
//
//	Server                     listens, and puts the parts together
//	guard                      refuses requests before they reach a route
//	sessionsAPI, turnsAPI, …   the operations on one resource each
//	registry                   the live sessions: admission, lookup, their end
//	session                    one live session: its turns, confirmations, feed
//	archive                    the sessions on the disk
//	diagnostics                the log and the metrics, which all share
package server
