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

// sessionID matches the ID of a session. No other name is looked up on disk.
var sessionID = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^ses_[0-9A-HJKMNP-TV-Z]{26}$`)
})

func noSession() *Problem {
	return newProblem(http.StatusNotFound, "no_session", "there is no such session", "GET /sessions lists them")
}

// findDir returns the directory of a session that clients may see: live or ended,
// of this server or another Caisson of the same user.
func (s *Server) findDir(id string) (string, error) {
	if !sessionID().MatchString(id) {
		return "", noSession()
	}
	dir := sessiondir.Path(s.opts.StateDir, id)
	for _, name := range []string{record.TraceFile, record.AuditFile} {
		if info, err := os.Lstat(filepath.Join(dir, name)); err == nil && info.Mode().IsRegular() {
			if !s.isVisible(id, dir) {
				break
			}
			return dir, nil
		}
	}
	return "", noSession()
}

// isVisible reports whether clients may see a session. A session without a
// recorded workspace is not visible.
func (s *Server) isVisible(id, dir string) bool {
	if s.opts.Shows == nil || s.liveSession(id) != nil {
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
	return json.Unmarshal(rec.Payload, &created) == nil && created.Workspace != "" && s.opts.Shows(created.Workspace)
}

// listIDs returns the IDs of all sessions, the newest first.
func (s *Server) listIDs() ([]string, error) {
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
	said := ""
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
		turn.addRecord(rec, &said)
	}
}

// addRecord updates the turn from a record. said is the model's last text so far,
// which is the answer if the turn ends with one.
func (t *Turn) addRecord(rec record.Record, said *string) {
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
