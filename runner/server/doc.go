// Package server is Caisson's HTTP API. It runs many sessions at once, streams
// their records, answers their confirmations, and shows and applies their
// changes.
//
// It is rank 10, above runner/trace. It knows no backend and no model:
// [Options].Prepare supplies the options of a session.
//
//	client                                 server
//	──────                                 ──────
//	POST /sessions ──────────────────────▶ runner.Open
//	POST /sessions/{id}/turns ───────────▶ Session.Start
//	GET  /sessions/{id}/events ◀────────── trace.jsonl, followed; live output beside it
//	POST …/confirmations/{request} ──────▶ approval.Broker.Answer: the first answer wins
//	DELETE /sessions/{id} ───────────────▶ Session.Close: container gone, records kept
//
// The parts, each using the ones below it:
//
//	Server                     listens, and puts the parts together
//	guard                      refuses requests before they reach a route
//	sessionsAPI, turnsAPI, …   the operations on one resource each
//	registry                   the live sessions: admission, lookup, end
//	session                    one live session: its turns, confirmations, feed
//	archive                    the sessions on disk
//	diagnostics                the log and the metrics
package server
