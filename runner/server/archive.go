package server

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/runner/trace"
)

// No other name is looked up on disk.
var sessionID = lazyRegexp(`^ses_[0-9A-HJKMNP-TV-Z]{26}$`)

// archive is the sessions in a state directory, of all Caissons of its user.
type archive struct {
	stateDir string
	// shows is Options.Shows.
	shows func(workspace string) bool
	// only is the one session that clients see, or "" for all.
	only string
}

// findDir returns the directory of a session, if it has records.
func (a archive) findDir(id string) (string, bool) {
	if !sessionID().MatchString(id) || a.only != "" && id != a.only {
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

// isLive reports whether the session's process is running.
func (a archive) isLive(id string) bool {
	return sessiondir.SessionLives(sessiondir.Path(a.stateDir, id))
}

// isVisible reports whether clients may see a session that is not live here.
func (a archive) isVisible(dir string) bool {
	if a.shows == nil {
		return true
	}
	t, err := openTail(dir)
	if err != nil {
		return false
	}
	defer t.close()
	created, err := trace.ReadCreated(t.file)
	return err == nil && a.mayShow(dir, created)
}

// mayShow is isVisible for a session whose first record was read. Clients don't see
// a session without a recorded workspace.
func (a archive) mayShow(dir string, created record.SessionCreated) bool {
	return a.shows == nil || created.Workspace != "" && (created.Workspace == sessiondir.WorkspacePath(a.stateDir, filepath.Base(dir)) || a.shows(created.Workspace))
}

// listIDs returns the IDs of all sessions, newest first.
func (a archive) listIDs() ([]string, error) {
	if a.only != "" {
		return []string{a.only}, nil
	}
	names, err := sessiondir.List(a.stateDir)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !sessionID().MatchString(name) })
	slices.Reverse(names) // IDs sort by time
	return names, nil
}

// past describes a session that is not live here, from its trace.
type past struct {
	id    string
	begin trace.Begin
	last  time.Time
	seq   int64
	ended *record.SessionEnded
}

// readPast reads the beginning and the end of a trace, as far as it is
// undamaged.
func readPast(id, dir string) (past, error) {
	p := past{id: id}
	t, err := openTail(dir)
	if err != nil {
		return p, err
	}
	defer t.close()
	p.begin, _ = trace.ReadBegin(t.file)
	rec, err := trace.ReadLast(t.file)
	if err != nil || rec.Seq == 0 {
		return p, nil
	}
	p.last, p.seq = rec.Time, rec.Seq
	if rec.Kind == record.KindSessionEnded {
		p.ended = new(record.PayloadOf[record.SessionEnded](rec))
	}
	return p, nil
}

func (p past) sessionView(lives, whole bool) Session {
	v := Session{ID: p.id, State: StateInterrupted, Title: displayTitle(p.begin.Task), Begun: p.begin.Time, CostUSD: "unknown", Seq: p.seq}
	v.setFacts(p.begin.Created, whole)
	if !p.last.IsZero() {
		v.Last = &p.last
	}
	switch e := p.ended; {
	case e != nil:
		v.State = StateEnded
		v.Turns = &e.Turns
		v.Usage = e.Usage
		v.CostUSD = e.CostUSD
		v.Reason = string(e.Reason)
		v.Exit = &e.ExitStatus
		if whole {
			v.Attestation = e.Attestation
			v.Restarts = e.Restarts
			v.Left = e.Left
			if e.Problem != nil {
				v.Problem = new(Failure(pastProblem(p.id, *e)))
			}
		}
	case lives:
		v.State = StateElsewhere
	}
	return v
}

// readTurn reads a turn of a session that is not live here. It returns nil if
// there is no such turn.
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
				ID: id, State: TurnEnded, Reason: string(end.Reason), Answer: end.Answer, Truncated: end.Truncated, Limit: end.Limit,
				Usage: &end.Usage, CostUSD: record.CostUSD(end.Usage.CostMicroUSD), WallMS: end.WallMS,
			}
		}
	}
}
