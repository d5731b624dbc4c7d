package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/approval"
)

const (
	// keptTurns bounds the turns whose ends a live session remembers; the trace
	// has all.
	keptTurns = 1024
	// keptAsked bounds the confirmations whose turn it remembers: as many as the
	// broker does.
	keptAsked = 4096
)

// session is one live session.
type session struct {
	server *Server
	id     string
	dir    string // of its records
	asked  NewSession
	client client // who started it
	begun  time.Time
	run    *runner.Session
	broker *approval.Broker
	feed   *feed
	tally  *tallied
	// done ends what Prepare made.
	done func()

	closing sync.Once
	follows sync.WaitGroup
	// closed is closed when report is there.
	closed chan struct{}
	report runner.Report

	mu     sync.Mutex
	ending bool
	cut    bool // it was ended while a turn ran
	title  string
	turns  map[string]*runner.Turn
	order  []string // of turns, oldest first
	idle   *time.Timer

	// recMu guards what records tell, apart from mu: whoever writes a record may
	// hold locks that mu's holder waits for.
	recMu  sync.Mutex
	facts  record.SessionCreated
	inTurn map[string]string // confirmation → turn
	oldest []string          // keys of inTurn, oldest first
	spent  *limits.Usage     // of the turn that runs, nil before its first model call
}

// start makes a session of what a client asks for.
func (s *Server) start(ctx context.Context, in NewSession, from client) (*session, error) {
	if err := s.reserve(); err != nil {
		return nil, err
	}
	live := &session{
		server: s, asked: in, client: from, begun: time.Now(), title: shown(in.Title), feed: newFeed(), closed: make(chan struct{}),
		tally: &tallied{m: s.metrics, classes: map[string]string{}}, broker: approval.NewBroker(approval.BrokerOptions{Attended: true}),
		turns: map[string]*runner.Turn{}, inTurn: map[string]string{},
	}
	err := live.open(ctx)
	if err != nil && s.ctx.Err() != nil {
		err = stopping()
	}
	defer s.ending.Done() // of reserve
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starting--
	switch {
	case err != nil:
		return nil, err
	case s.closing: // it came too late for Close
		s.mu.Unlock()
		live.close("")
		<-live.closed
		s.mu.Lock()
		return nil, stopping()
	}
	s.sessions[live.id] = live
	s.metrics.started.Inc()
	live.mu.Lock()
	live.idle = time.AfterFunc(s.opts.IdleTime, live.expire)
	live.mu.Unlock()
	s.log.Info("session started", zap.String("session", live.id), zap.String("client", from.label), zap.String("workspace", shown(in.Workspace)))
	return live, nil
}

// reserve counts a session that is to be made.
func (s *Server) reserve() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return stopping()
	case len(s.sessions)+s.starting >= s.opts.MaxSessions:
		p := problem(http.StatusTooManyRequests, "sessions", fmt.Sprintf("%d sessions live, and there may be no more", s.opts.MaxSessions),
			"End one with DELETE, or raise max_sessions of serve in the configuration")
		p.retryAfter = "10"
		return p
	}
	s.starting++
	s.ending.Add(1)
	return nil
}

func stopping() error {
	return problem(http.StatusServiceUnavailable, "stopping", "the server is stopping", "Try again when it is back")
}

func (s *session) open(ctx context.Context) error {
	// What the making waits for, such as an image, ends with the server too.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.server.ctx, func() { cancel(context.Cause(s.server.ctx)) })()
	o, done, err := s.server.opts.Prepare(ctx, s.asked)
	if err != nil {
		return s.server.asProblem("prepare session", err)
	}
	s.id, s.dir, s.done = o.Folder.Session, o.Folder.Dir, done
	o.Task, o.Broker, o.Live, o.Force = s.asked.Title, s.broker, s.feed.delta, s.server.opts.Force
	o.Mirror, o.User = s.record, s.client.user()
	speakToClients(&o)
	if s.run, err = runner.Open(s.server.ctx, o); err != nil {
		done()
		return s.server.asProblem("open session", err)
	}
	return nil
}

// record is told of every record once it is in the trace, in order. It must
// return at once.
func (s *session) record(r record.Record, _ []byte) {
	switch r.Kind {
	case record.KindSessionCreated:
		s.recMu.Lock()
		_ = json.Unmarshal(r.Payload, &s.facts) // our own; what is missing is not shown
		s.recMu.Unlock()
	case record.KindTurnStarted, record.KindTurnCompleted, record.KindTurnCancelled:
		s.recMu.Lock()
		s.spent = nil
		s.recMu.Unlock()
	case record.KindModelCallCompleted:
		s.spend(r)
	case record.KindConfirmationRequested:
		var p struct {
			ID string `json:"confirmation_request_id"`
		}
		if json.Unmarshal(r.Payload, &p) == nil {
			s.remember(p.ID, r.Turn)
		}
	}
	s.tally.record(r)
	s.feed.record(r.Seq)
	if r.Seq%indexEvery == 0 {
		s.server.indexes.extend(s.id, s.dir, true)
	}
}

// spend adds what a model call used.
func (s *session) spend(r record.Record) {
	var p record.ModelCallCompleted
	if json.Unmarshal(r.Payload, &p) != nil {
		return
	}
	s.recMu.Lock()
	defer s.recMu.Unlock()
	if s.spent == nil {
		s.spent = &p.Usage
		return
	}
	s.spent = new(s.spent.Plus(p.Usage))
}

// remember notes which turn asked a confirmation.
func (s *session) remember(confirmation, turn string) {
	s.recMu.Lock()
	defer s.recMu.Unlock()
	s.inTurn[confirmation] = turn
	if s.oldest = append(s.oldest, confirmation); len(s.oldest) > keptAsked {
		delete(s.inTurn, s.oldest[0])
		s.oldest = s.oldest[1:]
	}
}

// turnOf is the turn that asked a confirmation, or "".
func (s *session) turnOf(confirmation string) string {
	s.recMu.Lock()
	defer s.recMu.Unlock()
	return s.inTurn[confirmation]
}

// startTurn gives the session a user's message.
func (s *session) startTurn(message string, from client) (*runner.Turn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return nil, over(s.id)
	}
	t, err := s.run.StartFor(from.user(), message)
	switch {
	case errors.Is(err, runner.ErrBusy):
		return nil, problem(http.StatusConflict, "busy", "turn "+s.run.Status().Turn+" runs", "Wait for its end, or cancel it")
	case errors.Is(err, runner.ErrOver):
		return nil, problem(http.StatusConflict, "over", "the session takes no more turns: "+clientText(s.run.Status().Over), "End it with DELETE, and start another one")
	case err != nil:
		return nil, s.server.internal("start turn", err)
	}
	if s.title == "" {
		s.title = shown(message)
	}
	s.turns[t.ID] = t
	if s.order = append(s.order, t.ID); len(s.order) > keptTurns {
		delete(s.turns, s.order[0])
		s.order = s.order[1:]
	}
	s.idle.Stop()
	s.follows.Go(func() { s.follow(t) })
	return t, nil
}

// follow waits for the end of a turn, and ends a session that can't go on: its
// container is of no use any more.
func (s *session) follow(t *runner.Turn) {
	<-t.Done()
	if s.run.Status().Over != "" {
		s.close("")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ending && s.run.Status().Turn == "" {
		s.idle.Reset(s.server.opts.IdleTime)
	}
}

// expire ends a session that nobody has used for long.
func (s *session) expire() {
	s.mu.Lock()
	unused := !s.ending && s.run.Status().Turn == ""
	s.ending = s.ending || unused // no turn begins any more
	s.mu.Unlock()
	if unused {
		s.server.log.Info("session is idle for too long", zap.String("session", s.id))
		s.close("")
	}
}

// close begins to end the session on behalf of a client, "" is none, and returns
// at once; closed tells the end.
func (s *session) close(client string) {
	s.closing.Do(func() {
		s.mu.Lock()
		s.cut = !s.ending && s.run.Status().Turn != ""
		s.ending = true
		if s.idle != nil {
			s.idle.Stop()
		}
		s.mu.Unlock()
		go s.finish(client)
	})
}

func (s *session) finish(client string) {
	s.report = s.run.CloseFor(client)
	s.done()
	s.follows.Wait()
	s.server.metrics.ended.WithLabelValues(string(s.report.Reason)).Inc()
	s.server.log.Info("session ended", zap.String("session", s.id), zap.String("reason", string(s.report.Reason)), zap.Strings("left", s.report.Left))
	s.feed.end()
	s.server.indexes.release(s.id)
	s.server.mu.Lock()
	delete(s.server.sessions, s.id)
	s.server.mu.Unlock()
	close(s.closed)
}

func (s *session) state() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ending:
		return StateClosing
	case s.run.Status().Turn != "":
		return StateRunning
	}
	return StateIdle
}

func over(id string) *Problem {
	return problem(http.StatusGone, "ended", "session "+id+" has ended", "Its records, diff and changes are still there; start another session for more")
}
