package trace

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// State is the state of a session, as found from its records and its process.
type State string

// The states.
const (
	StateLive     State = "live"      // its process runs
	StateEnded    State = "ended"     // session.ended is the last record
	StateCutShort State = "cut short" // its process is gone, and the last record is not session.ended
	StateDamaged  State = "damaged"   // its first or last record can't be read
)

// Entry is one session in a list. Only the first records, up to the first
// message, and the last one were read; [Verify] reads all.
type Entry struct {
	Session string    `json:"session"`
	State   State     `json:"state"`
	Begun   time.Time `json:"begun"`
	// Last is the time of the last record.
	Last      time.Time `json:"last"`
	Task      string    `json:"task"` // the first message if there is no task
	Workspace string    `json:"workspace"`
	Model     string    `json:"model"` // provider/model
	// Reason and ExitStatus are those of session.ended, absent without one.
	Reason     string `json:"reason,omitempty"`
	ExitStatus *int   `json:"exit_status,omitempty"`
	CostUSD    string `json:"cost_usd,omitempty"` // decimal, or "unknown"
	WallMS     int64  `json:"wall_ms,omitempty"`
	Records    int64  `json:"records"`
	Bytes      int64  `json:"bytes"` // of the trace
	// Pruned reports that retention has removed all but the audit records.
	Pruned bool `json:"pruned,omitempty"`
	// Damage is the error of the record that can't be read.
	Damage string `json:"damage,omitempty"`
}

// List returns the newest sessions, at most limit of them, or all if limit is 0.
// Directories without a record are left out. Its errors are of type
// [*Error].
func List(stateDir string, limit int) ([]Entry, error) {
	names, err := listSessions(stateDir)
	if err != nil {
		return nil, err
	}
	list := []Entry{}
	for _, name := range slices.Backward(names) { // ids sort by time
		if limit > 0 && len(list) == limit {
			break
		}
		s, err := sessionInDir(sessiondir.Path(stateDir, name))
		if err != nil {
			continue
		}
		if e, ok := readEntry(s); ok {
			list = append(list, e)
		}
	}
	return list, nil
}

// readEntry reads both ends of one trace and reports whether it has a record.
func readEntry(s Session) (Entry, bool) {
	e := Entry{Session: s.ID, Pruned: s.Pruned, State: StateDamaged}
	f, err := openRegular(s.Path)
	if err != nil {
		e.Damage = err.Error()
		return e, true
	}
	defer func() { _ = f.Close() }() // only read
	begin, last, size, err := readEnds(f)
	e.Bytes = size
	if err == nil && begin == nil {
		return e, false
	}
	if err == nil {
		err = e.readLines(begin, last)
	}
	switch {
	case err != nil:
		e.Damage = err.Error()
	case !s.Pruned && sessiondir.SessionLives(s.Dir):
		e.State = StateLive
	case e.ExitStatus != nil:
		e.State = StateEnded
	default:
		e.State = StateCutShort
	}
	return e, true
}

// readLines fills in e from the first lines of a trace and its last one.
func (e *Entry) readLines(begin, last []byte) error {
	first, rest, _ := bytes.Cut(begin, []byte("\n"))
	rec, err := record.Decode(first)
	if err != nil {
		return err
	}
	e.Begun = rec.Time
	if p, ok := decodePayload[record.SessionCreated](rec); ok {
		e.Task, e.Workspace, e.Model = p.Task, p.Workspace, p.Model.Provider+"/"+p.Model.Model
	} else {
		return errors.New("the first record is " + string(rec.Kind) + ", not session.created")
	}
	if e.Task == "" {
		e.Task = firstMessage(rest)
	}
	if rec, err = record.Decode(last); err != nil {
		return err
	}
	e.Last, e.Records = rec.Time, rec.Seq
	if p, ok := decodePayload[record.SessionEnded](rec); ok {
		e.Reason, e.ExitStatus, e.CostUSD, e.WallMS = string(p.Reason), &p.ExitStatus, p.CostUSD, p.WallMS
	}
	return nil
}

// firstMessage returns the text of the first message of the user in lines of
// records, or "".
func firstMessage(lines []byte) string {
	text := ""
	steps := NewSteps(func(s Step) {
		if s.Kind == StepUser && text == "" {
			text = s.Text
		}
	})
	for l := range bytes.Lines(lines) {
		rec, err := record.Decode(bytes.TrimSuffix(l, []byte("\n")))
		if err != nil || text != "" {
			break
		}
		steps.Record(rec)
	}
	return text
}

// readEnds returns whole lines of a file: those in its first
// record.MaxLineBytes, and the last one. They are nil if there is none.
func readEnds(f *os.File) (begin, last []byte, size int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return nil, nil, 0, err
	}
	size = info.Size()
	buf := make([]byte, min(size, record.MaxLineBytes))
	if _, err := io.ReadFull(f, buf); err != nil {
		return nil, nil, size, err
	}
	begin = buf[:bytes.LastIndexByte(buf, '\n')+1]
	if len(begin) == 0 {
		if len(buf) == record.MaxLineBytes {
			return nil, nil, size, errors.New("the first line is too long for a record")
		}
		return nil, nil, size, nil // not even one whole line
	}
	// The tail holds a torn line and the whole one before it.
	tail := make([]byte, min(size, 2*record.MaxLineBytes))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, size, err
	}
	end := bytes.LastIndexByte(tail, '\n')
	if end < 0 {
		return nil, nil, size, errors.New("the last line is too long for a record")
	}
	return begin, tail[bytes.LastIndexByte(tail[:end], '\n')+1 : end], size, nil
}

// decodePayload returns a record's payload, and reports whether it has the kind
// of P and can be decoded.
func decodePayload[P record.Payload](rec record.Record) (P, bool) {
	var p P
	if rec.Kind != p.Kind() || json.Unmarshal(rec.Payload, &p) != nil {
		return p, false
	}
	return p, true
}
