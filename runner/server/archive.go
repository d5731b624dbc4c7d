package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
)

// sessionID matches the ID of a session. No other name is looked up on disk.
var sessionID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^ses_[0-9A-HJKMNP-TV-Z]{26}$`)
})

// archive is the sessions in a state directory, of all Caissons of its user.
type archive struct {
	stateDir string
	// shows reports whether clients may see the sessions on a workspace; nil shows
	// all.
	shows func(workspace string) bool
}

// findDir returns the directory of a session that has records.
func (a archive) findDir(id string) (string, bool) {
	if !sessionID().MatchString(id) {
		return "", false
	}
	dir := sessiondir.Path(a.stateDir, id)
	for _, name := range []string{record.TraceFile, record.AuditFile} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			return dir, true
		}
	}
	return "", false
}

// isLive reports whether the process of a session runs.
func (a archive) isLive(id string) bool { return sessiondir.Lives(a.stateDir, id) }

// isVisible reports whether clients may see a session that is not live here. A
// session without a recorded workspace is not visible.
func (a archive) isVisible(dir string) bool {
	if a.shows == nil {
		return true
	}
	t, err := openTail(dir)
	if err != nil {
		return false
	}
	defer t.close()
	first, ok, err := t.nextEntry()
	if err != nil || !ok {
		return false
	}
	rec, err := record.Decode(first.line)
	if err != nil || rec.Kind != record.KindSessionCreated {
		return false
	}
	var created record.SessionCreated
	return json.Unmarshal(rec.Payload, &created) == nil && created.Workspace != "" && a.shows(created.Workspace)
}

// listIDs returns the IDs of all sessions, the newest first.
func (a archive) listIDs() ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(sessiondir.Path(a.stateDir, "x")))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && sessionID().MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.Reverse(names) // ids sort by time
	return names, nil
}

// past describes a session that is not live here, from its trace.
type past struct {
	id      string
	begun   time.Time
	last    time.Time
	seq     int64
	created record.SessionCreated
	// ended is nil if the trace has no end.
	ended *record.SessionEnded
	title string
}

// titleLines bounds the records that are searched for the first message of the
// user, if the session has no title.
const titleLines = 8

// readPast reads the beginning and the end of a trace.
func readPast(id, dir string) (past, error) {
	p := past{id: id}
	t, err := openTail(dir)
	if err != nil {
		return p, err
	}
	defer t.close()
	for i := range titleLines {
		e, ok, err := t.nextEntry()
		if err != nil || !ok {
			break // what is there is shown
		}
		rec, err := record.Decode(e.line)
		if err != nil {
			break
		}
		if i == 0 {
			p.begun = rec.Time
			_ = json.Unmarshal(rec.Payload, &p.created) // what is missing is not shown
			p.title = displayTitle(p.created.Task)
		}
		if p.title == "" && rec.Kind == record.KindMessage {
			p.title = displayTitle(userText(rec))
		}
		if p.title != "" {
			break
		}
	}
	rec, ok := lastRecord(t.file)
	if !ok {
		return p, nil
	}
	p.last, p.seq = rec.Time, rec.Seq
	if rec.Kind == record.KindSessionEnded {
		p.ended = &record.SessionEnded{}
		_ = json.Unmarshal(rec.Payload, p.ended)
	}
	return p, nil
}

// sessionView returns an ended session as clients see it.
func (p past) sessionView(lives, whole bool) Session {
	v := Session{ID: p.id, State: StateInterrupted, Title: p.title, Begun: p.begun, CostUSD: "unknown", Seq: p.seq}
	v.setFacts(p.created, whole)
	if !p.last.IsZero() {
		v.Last = &p.last
	}
	switch e := p.ended; {
	case e != nil:
		v.State, v.Turns, v.Usage, v.CostUSD, v.Reason, v.Exit = StateEnded, &e.Turns, e.Usage, e.CostUSD, string(e.Reason), &e.ExitStatus
		if whole {
			v.Attestation, v.Restarts, v.Left = e.Attestation, e.Restarts, e.Left
			if e.Problem != nil {
				v.Problem = new(Failure(clientProblem(*e.Problem, recordsHint)))
			}
		}
	case lives:
		v.State = StateElsewhere
	}
	return v
}

// userText returns the text of a user's message, or "".
func userText(rec record.Record) string {
	var m record.Message
	if json.Unmarshal(rec.Payload, &m) != nil || m.Role != loop.RoleUser {
		return ""
	}
	return blocksText(m.Blocks)
}

func blocksText(blocks []loop.Block) string {
	var texts []string
	for _, b := range blocks {
		if b.Text != nil {
			texts = append(texts, b.Text.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// lastRecord reads the last whole line of a trace.
func lastRecord(file *os.File) (record.Record, bool) {
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return record.Record{}, false
	}
	// A torn line may stand behind the last whole one.
	from := max(0, size-2*record.MaxLineBytes)
	text := make([]byte, size-from)
	if _, err := file.ReadAt(text, from); err != nil && !errors.Is(err, io.EOF) {
		return record.Record{}, false
	}
	end := bytes.LastIndexByte(text, '\n')
	if end < 0 {
		return record.Record{}, false
	}
	rec, err := record.Decode(text[bytes.LastIndexByte(text[:end], '\n')+1 : end])
	return rec, err == nil && rec.Seq > 0
}

// readTurn reads one turn of a session that is not live here, or nil.
func readTurn(dir, id string) (*Turn, error) {
	t, err := openTail(dir)
	if err != nil {
		return nil, err
	}
	defer t.close()
	var turn *Turn
	steps := trace.NewSteps(nil)
	for {
		e, ok, err := t.nextEntry()
		if err != nil || !ok {
			return turn, err
		}
		if !bytes.Contains(e.line, []byte(id)) {
			continue
		}
		rec, err := record.Decode(e.line)
		if err != nil || rec.Turn != id {
			continue
		}
		if turn == nil {
			turn = &Turn{ID: id, State: TurnInterrupted}
		}
		if end := steps.Record(rec).End; end != nil {
			*turn = Turn{
				ID: id, State: TurnEnded, Reason: string(end.Reason), Answer: end.Answer, Truncated: end.Truncated,
				Usage: &end.Usage, CostUSD: record.CostUSD(end.Usage.CostMicroUSD), WallMS: end.WallMS,
			}
		}
	}
}
