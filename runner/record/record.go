// Package record defines the records of a session: their envelope, their kinds
// and payloads, how they are written, and how a trace is read and verified.
package record

import (
	"encoding/json"
	"time"

	"github.com/oklog/ulid/v2"
)

// Record is one line of JSON in a trace.
//
//	{"schema_version":1,"seq":1,"id":"rec_…","ts":"2026-11-20T10:00:00.000001Z","session":"ses_…","turn":"","parent":"","actor":"system","kind":"session.created","payload":{…},"prev":"…"}
type Record struct {
	SchemaVersion int `json:"schema_version"`
	// Seq counts from 1 without gaps in a session.
	Seq int64 `json:"seq"`
	// ID is rec_ and a ULID.
	ID string `json:"id"`
	// Time is UTC, RFC 3339, microseconds.
	Time time.Time `json:"ts"`
	// Turn is "" outside a turn.
	Session string `json:"session"`
	Turn    string `json:"turn"`
	// Parent is the ID of the record that caused this one, or "".
	Parent  string          `json:"parent"`
	Actor   Actor           `json:"actor"`
	Kind    Kind            `json:"kind"`
	Payload json.RawMessage `json:"payload"`
	// Prev is the hex SHA-256 of the line before, without its newline, or 64
	// zeros in the first record.
	Prev string `json:"prev"`
}

// SchemaVersion is the version of the envelope and its payloads.
const SchemaVersion = 1

// Actor is who caused a record.
type Actor string

// The actors.
const (
	ActorUser   Actor = "user"
	ActorAgent  Actor = "agent"
	ActorSystem Actor = "system"
	ActorTool   Actor = "tool"
	ActorWorker Actor = "worker"
)

// NewID returns a new ID: a prefix, such as ses, and a ULID.
func NewID(prefix string) string { return prefix + "_" + ulid.Make().String() }
