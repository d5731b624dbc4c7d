// Package history reads back from the records of a session what another process needs to
// go on with it.
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
	// End is the place behind the last whole record, and Torn the number of bytes there.
	End  record.Position
	Torn int64
	// Active is the time in which a process of the session ran.
	Active time.Duration
	// Turns counts the turns, Last is the last one, nil before the first.
	Turns int
	Last  *Turn
	// Messages are the conversation, as the model received it, with redacted secrets,
	// without those that Summary stands for; it is nil if there is none.
	Messages []loop.Message
	Summary  *loop.Summary
	// Used is the use of the turns that have ended, Calls the number of calls that began.
	Used  limits.Usage
	Calls int
	// Answers counts the answers of each model, by [loop.ModelInfo.String].
	Answers map[string]int
	// Ran reports that a sandbox was started. Background are the handles of commands
	// that were started in the background and whose end is not recorded, and Handles is
	// the largest number of one.
	Ran        bool
	Background map[string]bool
	Handles    int
	Denials    []record.Denial
	// Skills are those that the session loaded, and Activated the tools of servers, in order.
	Skills    []skill.Loaded
	Activated []tools.Name
}

// Turn is the last turn of a session.
type Turn struct {
	// ID is the turn's id, Record that of its first record.
	ID, Record string
	Client     string
	// Ended reports that it has an end, Reason is why, and Answered that this was the
	// model's answer.
	Ended  bool
	Reason loop.StopReason
	// Direct reports that a user made its calls, without the model.
	Direct bool
	// Start is the index of its first message, and Opened the number of messages that
	// it had before the model was asked; Asked reports that it was.
	Start, Opened int
	Asked         bool
	// Used is its use so far, and Elapsed its running time.
	Used                  limits.Usage
	Elapsed               time.Duration
	ModelCalls, ToolCalls int
	// Answer is the id of the record of the model's last answer, Calls has the last
	// record of each call by its id, and EndedCalls those whose end is recorded.
	Answer     string
	Calls      map[string]string
	EndedCalls map[string]bool
}

// Unfinished reports whether the last turn has no end.
func (p *Past) Unfinished() bool { return p.Last != nil && !p.Last.Ended }

// A DamageError reports records that were changed, or that can't be read, since they were
// written.
type DamageError struct {
	Session string
	Err     error
}

// Error names the session and the damage.
func (e *DamageError) Error() string {
	return fmt.Sprintf("the records of %s are damaged: %v", e.Session, e.Err)
}

// Unwrap returns the cause.
func (e *DamageError) Unwrap() error { return e.Err }

// maxParents bounds the sessions of which one is a fork of the next.
const maxParents = 100

// Read reads the session whose directory is dir. Records that were changed are a
// [DamageError].
func Read(dir string) (*Past, error) { return readSession(dir, nil, maxParents) }

// readSession reads the session in dir, up to the point of a fork, nil is the end.
func readSession(dir string, upTo *record.Parent, parents int) (*Past, error) {
	session := filepath.Base(dir)
	f, err := record.OpenRegular(filepath.Join(dir, record.TraceFile))
	if err != nil {
		return nil, fmt.Errorf("read session %s: %w", session, err)
	}
	defer func() { _ = f.Close() }() // only read
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

// finishReading returns what was read.
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

// reader collects what records tell. Its zero value is not usable.
type reader struct {
	dir     string
	parents int
	past    *Past
	// begun is when the current process began, last the time of the last record, and
	// active the time of the processes before. turnBegan is the active time at which the
	// turn began.
	begun, last       time.Time
	active, turnBegan time.Duration
	// used counts the turn.
	used limits.Meter
	// answered is the model whose answer is recorded and not yet a message, and summarized
	// the one whose summary is not yet used; "" for none.
	answered, summarized string
}

// activeTime returns the time in which a process of the session ran.
func (r *reader) activeTime() time.Duration { return r.active + max(r.last.Sub(r.begun), 0) }

// addRecord adds one record.
func (r *reader) addRecord(rec record.Record) error {
	if r.past.CreatedID == "" {
		return r.addCreated(rec)
	}
	defer func() { r.last = rec.Time }()
	switch rec.Kind {
	case record.KindSessionResumed:
		r.active, r.begun, r.last = r.activeTime(), rec.Time, rec.Time
		r.answered, r.summarized = "", ""
		clear(r.past.Background) // its sandbox is gone
	case record.KindMessage:
		var p record.Message
		if err := r.decodePayload(rec, &p); err != nil {
			return err
		}
		r.addMessage(rec, p)
	case record.KindTurnStarted:
		var p record.TurnStarted
		if err := r.decodePayload(rec, &p); err != nil {
			return err
		}
		r.beginTurn(rec, p)
	case record.KindToolActivated:
		var p record.ToolActivated
		if err := r.decodePayload(rec, &p); err != nil {
			return err
		}
		r.past.Activated = append(r.past.Activated, p.Name)
	case record.KindTurnCompleted:
		var p record.TurnCompleted
		if err := r.decodePayload(rec, &p); err != nil {
			return err
		}
		r.endTurn(p.Reason, p.Usage)
	case record.KindTurnCancelled:
		var p record.TurnCancelled
		if err := r.decodePayload(rec, &p); err != nil {
			return err
		}
		r.endTurn(loop.StopCancelled, p.Usage)
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
		var p record.ModelCallCompleted
		if err := r.decodePayload(rec, &p); err != nil {
			return err
		}
		r.endModelCall(rec, p)
	case record.KindWorkerModelCall:
		var p record.WorkerModelCall
		if err := r.decodePayload(rec, &p); err != nil {
			return err
		}
		p.Usage.Rounds = 0 // as the turn counts it
		r.used.Add(p.Usage)
	default:
		return r.addCallRecord(rec)
	}
	return nil
}

// decodePayload decodes a payload, with its long values.
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

// addCreated adds the first record. A fork goes on with the conversation of its parent.
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
