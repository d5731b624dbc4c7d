package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/approval"
)

// Adoption is a session that its caller runs, such as a conversation on a
// terminal, for [Adopt]. Fields are required unless they say otherwise.
type Adoption struct {
	StateDir string
	// ID is the session's, Dir has its records.
	ID, Dir string
	Session *runner.Session
	// Broker is the session's. Nil means that nobody is asked.
	Broker *approval.Broker
	// Running returns the running turn, or nil. Start begins a turn with a user's
	// message, and returns the session's errors.
	Running func() *runner.Turn
	Start   func(user runner.User, message string, o runner.TurnOptions) (*runner.Turn, error)
	// Install is called once. From then on, mirror must be called with every
	// record that is in the trace, in order, and live with live output. They
	// don't block.
	Install func(mirror func(r record.Record, line []byte), live func(runner.Delta))
	Token   Token
	// Logger may be nil.
	Logger *zap.Logger
}

// Adopt returns a server of one session that somebody else runs. It shows
// nothing else, starts nothing, and doesn't end the session. Questions can be
// answered here and there: the first answer counts.
func Adopt(o Adoption) (*Server, error) {
	s, err := New(Options{
		StateDir: o.StateDir, Tokens: []Token{o.Token}, Logger: o.Logger,
		Prepare: func(context.Context, NewSession) (runner.Options, func(), error) {
			return runner.Options{}, nil, inTerminal()
		},
		Resume: func(context.Context, string, ResumeSession) (runner.Options, func(), error) {
			return runner.Options{}, nil, inTerminal()
		},
		PrepareSandbox: func(context.Context, NewSandbox) (runner.Options, func(), error) {
			return runner.Options{}, nil, inTerminal()
		},
		OpenWorkspace: func(string) (*runner.Workspace, error) { return nil, inTerminal() },
	})
	if err != nil {
		return nil, err
	}
	s.sessions.archive.only = o.ID
	live := newSession(s.diagnostics, "", s.guard.keys.clients[0])
	live.id, live.dir, live.run, live.adopted = o.ID, o.Dir, o.Session, &o
	live.confirmations.session = o.ID
	if o.Broker != nil {
		live.confirmations.broker = o.Broker
	}
	live.onClosed = func() { s.sessions.removeSession(o.ID) }
	j := &joinedRecords{live: live}
	o.Install(j.observe, live.feed.publishDelta)
	if err := j.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("adopt session: %w", err), s.Close(nil))
	}
	s.sessions.mu.Lock()
	defer s.sessions.mu.Unlock()
	s.sessions.sessions[o.ID] = live
	return s, nil
}

// inTerminal is the problem of a request that only the terminal serves.
func inTerminal() *Problem {
	return newProblem(http.StatusConflict, "terminal", "this page belongs to a conversation in a terminal", "Do this in the terminal")
}

// joinedRecords passes all records of a trace to a session once, in order: those
// that are in the file, and those that are written from now on.
type joinedRecords struct {
	live *session

	mu      sync.Mutex
	loaded  bool
	seq     int64 // of the last record that was passed on
	waiting []record.Record
}

func (j *joinedRecords) observe(r record.Record, _ []byte) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.loaded {
		j.waiting = append(j.waiting, r)
		return
	}
	j.pass(r)
}

// pass passes a record on unless that was done. The caller holds mu, or loads.
func (j *joinedRecords) pass(r record.Record) {
	if r.Seq <= j.seq {
		return
	}
	if j.seq == 0 {
		j.live.begun = r.Time
	}
	j.seq = r.Seq
	j.live.observeRecord(r, nil)
}

// load passes on the file's records. Meanwhile, observe keeps new ones in waiting. After
// an error, no more are passed on.
func (j *joinedRecords) load() error {
	err := j.loadFile()
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.seq = math.MaxInt64
	}
	for _, r := range j.waiting {
		j.pass(r)
	}
	j.waiting, j.loaded = nil, true
	return err
}

func (j *joinedRecords) loadFile() error {
	t, err := openTail(j.live.dir)
	if err != nil {
		return err
	}
	defer t.close()
	for {
		e, ok, err := t.nextEntry()
		if err != nil || !ok {
			return err
		}
		r, err := record.Decode(e.line)
		if err != nil {
			return err
		}
		j.pass(r)
	}
}

// startAdopted starts a turn of an adopted session. It holds no lock: its owner
// may be slow.
func (s *session) startAdopted(in NewTurn, from client, traceparent string) (*runner.Turn, error) {
	if in.Continue {
		return nil, inTerminal() // only the terminal continues turns
	}
	if s.isEnding() {
		return nil, sessionEnded(s.id)
	}
	t, err := s.adopted.Start(from.runnerUser(), in.Message, runner.TurnOptions{Budget: in.Limits.Budget(), Traceparent: traceparent})
	if err != nil {
		return nil, s.turnProblem(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keepTurn(t)
	return t, nil
}
