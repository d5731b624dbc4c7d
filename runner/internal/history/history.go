// Package history reads a session's records back, for another process to resume it.
package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/skill"
)

// Past is a session up to its last record.
type Past struct {
	// Created is the first record, and CreatedID its id.
	Created   record.SessionCreated
	CreatedID string
	// End is the position after the last whole record, and Torn the number of bytes there.
	End  record.Position
	Torn int64
	// Active is how long processes of the session ran.
	Active time.Duration
	// Turns counts the turns. Last is the last one, or nil.
	Turns int
	Last  *Turn
	// Messages are the conversation as the model saw it, with secrets redacted, except for
	// what Summary replaces. Summary may be nil.
	Messages []loop.Message
	Summary  *loop.Summary
	// Used is the usage of the ended turns.
	Used limits.Usage
	// Answers counts each model's answers, by [loop.ModelInfo.String].
	Answers map[string]int
	// Ran reports that a sandbox was started. Background has the handles of background
	// commands whose end is not recorded, and Handles is the largest number in a handle.
	Ran        bool
	Background map[string]bool
	Handles    int
	Denials    []record.Denial
	// Skills are the loaded skills, and Activated the loaded MCP tools, in order.
	Skills    []skill.Loaded
	Activated []tools.Name
}

// Turn is the last turn of a session.
type Turn struct {
	// ID is the turn's id, Record the id of its first record.
	ID, Record string
	// Ended reports that the turn ended, and Reason why.
	Ended  bool
	Reason loop.StopReason
	// Direct reports that a user made its calls, without the model.
	Direct bool
	// Start is the index of its first message. Asked reports that the model was asked, and
	// Opened counts the messages before that.
	Start, Opened int
	Asked         bool
	// Used is the usage so far, and Elapsed the running time.
	Used                  limits.Usage
	Elapsed               time.Duration
	ModelCalls, ToolCalls int
	// Answer is the id of the record with the model's last answer. Calls has the last record
	// of each call by the call's id, and EndedCalls the calls whose end is recorded.
	Answer     string
	Calls      map[string]string
	EndedCalls map[string]bool
}

// Unfinished reports whether the last turn did not end.
func (p *Past) Unfinished() bool { return p.Last != nil && !p.Last.Ended }

// A DamageError reports records that were changed or can't be read.
type DamageError struct {
	Session string
	Err     error
}

func (e *DamageError) Error() string {
	return fmt.Sprintf("the records of %s are damaged: %v", e.Session, e.Err)
}

func (e *DamageError) Unwrap() error { return e.Err }

const maxParents = 100

// Read reads the session in dir. It returns a [DamageError] if its records were changed.
func Read(dir string) (*Past, error) { return readSession(dir, nil, maxParents) }

// readSession reads the session in dir, up to a fork's point or, for nil, its end.
func readSession(dir string, upTo *record.Parent, parents int) (*Past, error) {
	session := filepath.Base(dir)
	f, err := record.OpenRegular(filepath.Join(dir, record.TraceFile))
	if err != nil {
		return nil, fmt.Errorf("read session %s: %w", session, err)
	}
	defer func() { _ = f.Close() }()
	r := &reader{dir: dir, parents: parents, past: &Past{Answers: map[string]int{}, Background: map[string]bool{}}}
	in := record.NewReader(f)
	for upTo == nil || in.Position().Seq < upTo.Seq {
		rec, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && rec.Session != session {
			err = fmt.Errorf("%w: they are those of session %s", record.ErrChain, rec.Session)
		}
		if err == nil {
			err = r.addRecord(rec)
		}
		if err != nil {
			return nil, &DamageError{session, err}
		}
	}
	if upTo != nil && (in.Position().Seq != upTo.Seq || in.Hash() != upTo.SHA256) {
		return nil, &DamageError{session, fmt.Errorf("%w: record %d is not the one at which it was forked", record.ErrChain, upTo.Seq)}
	}
	if r.past.CreatedID == "" {
		return nil, &DamageError{session, errors.New("there is no record in them")}
	}
	return r.finishReading(in, f)
}

func (r *reader) finishReading(in *record.Reader, f *os.File) (*Past, error) {
	p := r.past
	p.End = in.Position()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read session: %w", err)
	}
	p.Torn = info.Size() - p.End.Offset
	p.Active = r.activeTime()
	if t := p.Last; t != nil && !t.Ended {
		t.Elapsed = max(p.Active-r.turnBegan, 0)
		t.Used = r.used.Used()
	}
	return p, nil
}

type reader struct {
	dir     string
	parents int
	past    *Past
	// begun is when the current process began, last the time of the last record, and active
	// the running time of earlier processes. turnBegan is the running time when the turn
	// began.
	begun, last       time.Time
	active, turnBegan time.Duration
	// used counts the turn's usage.
	used limits.Meter
	// answered is the model whose answer is recorded but not yet a message, and summarized
	// the one whose summary is not yet used, or "".
	answered, summarized string
}

func (r *reader) activeTime() time.Duration { return r.active + max(r.last.Sub(r.begun), 0) }

func (r *reader) addRecord(rec record.Record) error {
	if r.past.CreatedID == "" {
		return r.addCreated(rec)
	}
	defer func() { r.last = rec.Time }()
	switch rec.Kind {
	case record.KindSessionResumed:
		r.active, r.begun, r.last = r.activeTime(), rec.Time, rec.Time
		r.answered, r.summarized = "", ""
		clear(r.past.Background) // the sandbox is gone
	case record.KindMessage:
		return read(r, rec, func(p record.Message) { r.addMessage(rec, p) })
	case record.KindTurnStarted:
		r.beginTurn(rec)
	case record.KindToolActivated:
		return read(r, rec, func(p record.ToolActivated) { r.past.Activated = append(r.past.Activated, p.Name) })
	case record.KindTurnCompleted:
		return read(r, rec, func(p record.TurnCompleted) { r.endTurn(p.Reason, p.Usage) })
	case record.KindTurnCancelled:
		return read(r, rec, func(p record.TurnCancelled) { r.endTurn(loop.StopCancelled, p.Usage) })
	case record.KindContextCompacted:
		var p record.ContextCompacted
		if err := r.decodePayload(rec, &p); err != nil {
			return err
		}
		return r.applySummary(rec, p)
	case record.KindCompactionFailed:
		r.countSummary()
	case record.KindSandboxStarted:
		r.past.Ran = true
	case record.KindModelCallStarted:
		r.beginModelCall()
	case record.KindModelCallCompleted:
		return read(r, rec, func(p record.ModelCallCompleted) { r.endModelCall(rec, p) })
	case record.KindWorkerModelCall:
		return read(r, rec, func(p record.WorkerModelCall) {
			p.Usage.Rounds = 0 // the turn doesn't count them either
			r.used.Add(p.Usage)
		})
	default:
		r.addCallRecord(rec)
	}
	return nil
}

// read calls use with the payload of a record.
func read[P any](r *reader, rec record.Record, use func(P)) error {
	var p P
	if err := r.decodePayload(rec, &p); err != nil {
		return err
	}
	use(p)
	return nil
}

// decodePayload decodes a payload, including values stored in files.
func (r *reader) decodePayload(rec record.Record, to any) error {
	whole, err := record.Restore(r.dir, rec)
	if err == nil {
		err = json.Unmarshal(whole.Payload, to)
	}
	if err != nil {
		return fmt.Errorf("record %d: %w", rec.Seq, err)
	}
	return nil
}

// addCreated adds the first record. A fork continues its parent's conversation.
func (r *reader) addCreated(rec record.Record) error {
	if rec.Kind != record.KindSessionCreated {
		return fmt.Errorf("%w: the first record is %s", record.ErrChain, rec.Kind)
	}
	p := r.past
	if err := r.decodePayload(rec, &p.Created); err != nil {
		return err
	}
	p.CreatedID, r.begun, r.last = rec.ID, rec.Time, rec.Time
	from := p.Created.Parent
	if from == nil {
		return nil
	}
	if r.parents == 0 || filepath.Base(from.Session) != from.Session {
		return fmt.Errorf("it is a fork of %s, whose records can't be read", from.Session)
	}
	parent, err := readSession(filepath.Join(filepath.Dir(r.dir), from.Session), from, r.parents-1)
	if err != nil {
		return fmt.Errorf("it is a fork: %w", err)
	}
	p.Messages, p.Summary, p.Skills, p.Activated = parent.Messages, parent.Summary, parent.Skills, parent.Activated
	return nil
}
