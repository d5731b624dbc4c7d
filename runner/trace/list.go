package trace

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"os"
	"slices"
	"time"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// State is the state of a session, derived from its records and its process.
type State string

// The states.
const (
	StateLive     State = "live"      // its process is running
	StateEnded    State = "ended"     // session.ended is the last record
	StateCutShort State = "cut short" // its process is gone, and the last record is not session.ended
	StateDamaged  State = "damaged"   // its first or last record can't be read
)

// Entry is one session in a list. It is made from the first records, up to the
// first message, and the last one; [Verify] reads all.
type Entry struct {
	Session   string    `json:"session"`
	State     State     `json:"state"`
	Begun     time.Time `json:"begun"`
	Last      time.Time `json:"last"`
	Task      string    `json:"task"` // the first message if there is no task
	Workspace string    `json:"workspace"`
	Model     string    `json:"model"` // provider/model
	// Reason and ExitStatus are session.ended's, absent without one.
	Reason     string `json:"reason,omitempty"`
	ExitStatus *int   `json:"exit_status,omitempty"`
	CostUSD    string `json:"cost_usd,omitempty"` // decimal, or "unknown"
	WallMS     int64  `json:"wall_ms,omitempty"`
	Records    int64  `json:"records"`
	Bytes      int64  `json:"bytes"` // of the trace
	// Command is how the command of a session without a turn ended, as in
	// caisson exec.
	Command string `json:"command,omitempty"`
	Pruned  bool   `json:"pruned,omitempty"`
	// Damage is the error of the record that can't be read.
	Damage string `json:"damage,omitempty"`
}

// List returns the newest sessions that keep accepts, at most limit of them, or
// all if limit is 0. A nil keep accepts all. Directories without a record are
// left out. Errors are of type [*Error].
func List(stateDir string, limit int, keep func(Entry) bool) ([]Entry, error) {
	names, err := listSessions(stateDir)
	if err != nil {
		return nil, err
	}
	return readEntries(stateDir, names, limit, keep), nil
}

// ListLive is like [List] for live sessions. It reads no others, so it is fast.
func ListLive(stateDir string, limit int) ([]Entry, error) {
	names, err := sessiondir.ListLive(stateDir)
	if err != nil {
		return nil, notListed(stateDir, err)
	}
	return readEntries(stateDir, names, limit, nil), nil
}

func readEntries(stateDir string, names []string, limit int, keep func(Entry) bool) []Entry {
	list := []Entry{}
	for _, name := range slices.Backward(names) { // IDs sort by time
		if limit > 0 && len(list) == limit {
			break
		}
		s, err := sessionInDir(sessiondir.Path(stateDir, name))
		var entry Entry
		ok := false
		if e, unreadable := errors.AsType[*Error](err); unreadable && e.Reason == Unreadable {
			entry, ok = Entry{Session: s.ID, State: StateDamaged, Damage: e.Err.Error()}, true
		} else if err == nil {
			entry, ok = readEntry(s)
		}
		if ok && (keep == nil || keep(entry)) {
			list = append(list, entry)
		}
	}
	return list
}

// readEntry reads both ends of a trace and reports whether it has a record.
func readEntry(s Session) (Entry, bool) {
	e := Entry{Session: s.ID, Pruned: s.Pruned, State: StateDamaged}
	f, err := record.OpenRegular(s.Path)
	if err != nil {
		e.Damage = err.Error()
		return e, true
	}
	defer func() { _ = f.Close() }() // only read
	if info, err := f.Stat(); err == nil {
		e.Bytes = info.Size()
	}
	begin, err := ReadBegin(f)
	if errors.Is(err, io.EOF) {
		return e, false
	}
	e.Begun = begin.Time
	if err == nil {
		e.Task, e.Workspace, e.Model = begin.Task, begin.Created.Workspace, begin.Created.Model.String()
		err = e.readLast(f)
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

func (e *Entry) readLast(f *os.File) error {
	rec, before, err := readEnd(f)
	if err != nil {
		return err
	}
	e.Last, e.Records = rec.Time, rec.Seq
	if p, ok := record.DecodePayload(rec).(record.SessionEnded); ok {
		e.Reason = string(p.Reason)
		e.ExitStatus = &p.ExitStatus
		e.CostUSD = p.CostUSD
		e.WallMS = p.WallMS
	}
	if c, ok := record.DecodePayload(before).(record.UserCommandEnded); ok && e.Reason == string(runner.StopNoTurn) {
		e.Command = c.ExitStatus.String()
		if c.Error != "" {
			e.Command = "failed"
		}
	}
	return nil
}

// Begin is the beginning of a session's records.
type Begin struct {
	Time    time.Time
	Created record.SessionCreated
	// Task is the session's task, or its first message if it has none.
	Task string
}

const beginRecords = 8

// ReadCreated reads the first record of a session. Without one, it returns
// io.EOF.
func ReadCreated(r io.Reader) (record.SessionCreated, error) {
	_, p, err := readCreated(bufio.NewReaderSize(r, record.MaxLineBytes))
	return p, err
}

func readCreated(in *bufio.Reader) (rec record.Record, p record.SessionCreated, err error) {
	line, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		err = errors.New("the first line is too long for a record")
	}
	if err != nil {
		return rec, p, err
	}
	if rec, err = record.Decode(line); err != nil {
		return rec, p, err
	}
	p, ok := record.DecodePayload(rec).(record.SessionCreated)
	if !ok {
		err = errors.New("the first record is " + string(rec.Kind) + ", not session.created")
	}
	return rec, p, err
}

// ReadBegin reads the first records of a session. Without any, it returns
// io.EOF. With an error, it returns what it has read.
func ReadBegin(r io.Reader) (Begin, error) {
	in := bufio.NewReaderSize(r, record.MaxLineBytes)
	rec, p, err := readCreated(in)
	b := Begin{Time: rec.Time, Created: p, Task: p.Task}
	if err != nil {
		return b, err
	}
	steps := NewSteps(func(s Step) {
		if s.Kind == StepUser {
			b.Task = cmp.Or(b.Task, s.Text)
		}
	})
	for i := 1; i < beginRecords && b.Task == ""; i++ {
		line, err := in.ReadSlice('\n')
		if err != nil {
			break
		}
		rec, err := record.Decode(line)
		if err != nil {
			break
		}
		steps.Record(rec)
	}
	return b, nil
}

// ReadLast reads the last whole line of a file of records.
func ReadLast(f *os.File) (record.Record, error) {
	last, _, err := readEnd(f)
	return last, err
}

// readEnd reads the last record of a trace, and the one before if that is in
// the same read.
func readEnd(f *os.File) (last, before record.Record, err error) {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return last, before, err
	}
	// A torn line may follow the last whole one.
	tail := make([]byte, min(size, 2*record.MaxLineBytes))
	if _, err := f.ReadAt(tail, size-int64(len(tail))); err != nil && !errors.Is(err, io.EOF) {
		return last, before, err
	}
	end := bytes.LastIndexByte(tail, '\n')
	begin := bytes.LastIndexByte(tail[:max(end, 0)], '\n') + 1
	if end < 0 || begin == 0 && size > int64(len(tail)) {
		return last, before, errors.New("the last line is too long for a record")
	}
	if begin > 0 {
		from := bytes.LastIndexByte(tail[:begin-1], '\n') + 1
		before, _ = record.Decode(tail[from : begin-1]) // it may be cut
	}
	last, err = record.Decode(tail[begin:end])
	return last, before, err
}
