package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
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
)

// sessionID is what ids of sessions look like: nothing else is looked for on disk.
var sessionID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^ses_[0-9A-HJKMNP-TV-Z]{26}$`)
})

func noSession() *Problem {
	return problem(http.StatusNotFound, "no_session", "there is no such session", "GET /sessions lists them")
}

// dirOf is the folder of a session, live or ended, of this server or another
// Caisson of the same user, that clients may see.
func (s *Server) dirOf(id string) (string, error) {
	if !sessionID().MatchString(id) {
		return "", noSession()
	}
	dir := sessiondir.Path(s.opts.StateDir, id)
	for _, name := range []string{record.TraceFile, record.AuditFile} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			if !s.shows(id, dir) {
				break
			}
			return dir, nil
		}
	}
	return "", noSession()
}

// shows says whether clients may see a session. One that does not say where it
// worked is not theirs.
func (s *Server) shows(id, dir string) bool {
	if s.opts.Shows == nil || s.live(id) != nil {
		return true
	}
	t, err := openTail(dir)
	if err != nil {
		return false
	}
	defer t.close()
	first, ok, err := t.next()
	if err != nil || !ok {
		return false
	}
	rec, err := record.Decode(first.line)
	if err != nil || rec.Kind != record.KindSessionCreated {
		return false
	}
	var created record.SessionCreated
	return json.Unmarshal(rec.Payload, &created) == nil && created.Workspace != "" && s.opts.Shows(created.Workspace)
}

// names lists the ids of all sessions, the newest first.
func (s *Server) names() ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(sessiondir.Path(s.opts.StateDir, "x")))
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

// past is what a trace says of a session that is not live here.
type past struct {
	id      string
	begun   time.Time
	last    time.Time
	seq     int64
	created record.SessionCreated
	// ended is nil where the trace has no end.
	ended *record.SessionEnded
	title string
}

// titleLines is how far into a trace the first message of its user is looked
// for, where the session has no title.
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
		e, ok, err := t.next()
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
			p.title = shown(p.created.Task)
		}
		if p.title == "" && rec.Kind == record.KindMessage {
			p.title = shown(userText(rec))
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

// userText is the text of a user's message.
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
	said := ""
	for {
		e, ok, err := t.next()
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
		turn.read(rec, &said)
	}
}

// read adds what one record contains. said is the model's last text so far: it is
// the answer where the turn then ends with one.
func (t *Turn) read(rec record.Record, said *string) {
	switch rec.Kind {
	case record.KindMessage:
		var m record.Message
		if json.Unmarshal(rec.Payload, &m) == nil && m.Role == loop.RoleAssistant {
			*said = blocksText(m.Blocks)
		}
	case record.KindTurnCompleted, record.KindTurnCancelled:
		var p record.TurnCompleted
		if json.Unmarshal(rec.Payload, &p) != nil {
			return
		}
		t.State, t.Reason, t.Truncated, t.WallMS = TurnEnded, string(p.Reason), p.Truncated, p.WallMS
		t.Usage, t.CostUSD = &p.Usage, record.CostUSD(p.Usage.CostMicroUSD)
		if rec.Kind == record.KindTurnCancelled {
			t.Reason = string(loop.StopCancelled)
		}
		if t.Reason == string(loop.StopAnswered) {
			t.Answer = *said
		}
	}
}
