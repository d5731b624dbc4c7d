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
	// keptTurns bounds the turns whose reports a live session keeps; the trace has
	// all.
	keptTurns = 1024
	// keptAsked bounds the confirmations whose turn a live session keeps, as the
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
	tally  *callMetrics
	// done releases the resources of Prepare.
	done func()

	closing sync.Once
	follows sync.WaitGroup
	// closed is closed when report is set.
	closed chan struct{}
	report runner.Report

	mu     sync.Mutex
	ending bool
	cut    bool // it was ended while a turn ran
	title  string
	turns  map[string]*runner.Turn
	order  []string // of turns, oldest first
	idle   *time.Timer

	// recMu guards the fields set from records. It is separate from mu because the
	// writer of a record may hold locks that the holder of mu waits for.
	recMu  sync.Mutex
	facts  record.SessionCreated
	inTurn map[string]string // confirmation → turn
	oldest []string          // keys of inTurn, oldest first
	spent  *limits.Usage     // of the turn that runs, nil before its first model call
}

// startSession starts a session that a client requests.
func (s *Server) startSession(ctx context.Context, in NewSession, from client) (*session, error) {
	if err := s.reserveSession(); err != nil {
		return nil, err
	}
	live := &session{
		server: s, asked: in, client: from, begun: time.Now(), title: displayTitle(in.Title), feed: newFeed(), closed: make(chan struct{}),
		tally: &callMetrics{m: s.metrics, classes: map[string]string{}}, broker: approval.NewBroker(approval.BrokerOptions{Attended: true}),
		turns: map[string]*runner.Turn{}, inTurn: map[string]string{},
	}
	err := live.openRun(ctx)
	if err != nil && s.ctx.Err() != nil {
		err = serverStopping()
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
		return nil, serverStopping()
	}
	s.sessions[live.id] = live
	s.metrics.started.Inc()
	live.mu.Lock()
	live.idle = time.AfterFunc(s.opts.IdleTime, live.endIfIdle)
	live.mu.Unlock()
	s.log.Info("session started", zap.String("session", live.id), zap.String("client", from.label), zap.String("workspace", displayTitle(in.Workspace)))
	return live, nil
}

// reserveSession counts a session that is about to be started.
func (s *Server) reserveSession() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closing:
		return serverStopping()
	case len(s.sessions)+s.starting >= s.opts.MaxSessions:
		p := newProblem(http.StatusTooManyRequests, "sessions", fmt.Sprintf("%d sessions live, and there may be no more", s.opts.MaxSessions),
			"End one with DELETE, or raise max_sessions of serve in the configuration")
		p.retryAfter = "10"
		return p
	}
	s.starting++
	s.ending.Add(1)
	return nil
}

func serverStopping() error {
	return newProblem(http.StatusServiceUnavailable, "stopping", "the server is stopping", "Try again when it is back")
}

func (s *session) openRun(ctx context.Context) error {
	// Waiting for resources, such as an image, also ends when the server stops.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.server.ctx, func() { cancel(context.Cause(s.server.ctx)) })()
	o, done, err := s.server.opts.Prepare(ctx, s.asked)
	if err != nil {
		return s.server.asProblem("prepare session", err)
	}
	s.id, s.dir, s.done = o.Dir.Session, o.Dir.Path, done
	o.Task, o.Broker, o.Live, o.Force = s.asked.Title, s.broker, s.feed.publishDelta, s.server.opts.Force
	o.Mirror, o.User = s.observeRecord, s.client.runnerUser()
	speakToClients(&o)
	if s.run, err = runner.Open(s.server.ctx, o); err != nil {
		done()
		return s.server.asProblem("open session", err)
	}
	return nil
}

// observeRecord is called with every record once it is in the trace, in order. It
// must not block.
func (s *session) observeRecord(r record.Record, _ []byte) {
	switch r.Kind {
	case record.KindSessionCreated:
		s.recMu.Lock()
		_ = json.Unmarshal(r.Payload, &s.facts) // missing fields are not shown
		s.recMu.Unlock()
	case record.KindTurnStarted, record.KindTurnCompleted, record.KindTurnCancelled:
		s.recMu.Lock()
		s.spent = nil
		s.recMu.Unlock()
	case record.KindModelCallCompleted:
		s.addUsage(r)
	case record.KindConfirmationRequested:
		var p struct {
			ID string `json:"confirmation_request_id"`
		}
		if json.Unmarshal(r.Payload, &p) == nil {
			s.rememberTurn(p.ID, r.Turn)
		}
	}
	s.tally.countRecord(r)
	s.feed.publishRecord(r.Seq)
	if r.Seq%indexEvery == 0 {
		s.server.indexes.extendIndex(s.id, s.dir, true)
	}
}

// addUsage adds the usage of a model call.
func (s *session) addUsage(r record.Record) {
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

// rememberTurn stores the turn of a confirmation.
func (s *session) rememberTurn(confirmation, turn string) {
	s.recMu.Lock()
	defer s.recMu.Unlock()
	s.inTurn[confirmation] = turn
	if s.oldest = append(s.oldest, confirmation); len(s.oldest) > keptAsked {
		delete(s.inTurn, s.oldest[0])
		s.oldest = s.oldest[1:]
	}
}

// turnOf returns the turn of a confirmation, or "".
func (s *session) turnOf(confirmation string) string {
	s.recMu.Lock()
	defer s.recMu.Unlock()
	return s.inTurn[confirmation]
}

// startTurn starts a turn with a user's message.
func (s *session) startTurn(message string, from client) (*runner.Turn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ending {
		return nil, sessionEnded(s.id)
	}
	t, err := s.run.StartFor(from.runnerUser(), message)
	switch {
	case errors.Is(err, runner.ErrBusy):
		return nil, newProblem(http.StatusConflict, "busy", "turn "+s.run.Status().Turn+" runs", "Wait for its end, or cancel it")
	case errors.Is(err, runner.ErrOver):
		return nil, newProblem(http.StatusConflict, "over", "the session takes no more turns: "+clientText(s.run.Status().Over), "End it with DELETE, and start another one")
	case err != nil:
		return nil, s.server.internalProblem("start turn", err)
	}
	if s.title == "" {
		s.title = displayTitle(message)
	}
	s.turns[t.ID] = t
	if s.order = append(s.order, t.ID); len(s.order) > keptTurns {
		delete(s.turns, s.order[0])
		s.order = s.order[1:]
	}
	s.idle.Stop()
	s.follows.Go(func() { s.watchTurn(t) })
	return t, nil
}

// watchTurn waits for the end of a turn, and then ends a session that takes no
// more turns, or restarts its idle timer.
func (s *session) watchTurn(t *runner.Turn) {
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

// endIfIdle ends a session that has been idle for IdleTime.
func (s *session) endIfIdle() {
	s.mu.Lock()
	unused := !s.ending && s.run.Status().Turn == ""
	s.ending = s.ending || unused // no turn begins any more
	s.mu.Unlock()
	if unused {
		s.server.log.Info("session is idle for too long", zap.String("session", s.id))
		s.close("")
	}
}

// close starts to end the session, on behalf of a client unless it is "", and
// returns at once. The channel closed reports the end.
func (s *session) close(client string) {
	s.closing.Do(func() {
		s.mu.Lock()
		s.cut = !s.ending && s.run.Status().Turn != ""
		s.ending = true
		if s.idle != nil {
			s.idle.Stop()
		}
		s.mu.Unlock()
		go s.finishClose(client)
	})
}

func (s *session) finishClose(client string) {
	s.report = s.run.CloseFor(client)
	s.done()
	s.follows.Wait()
	s.server.metrics.ended.WithLabelValues(string(s.report.Reason)).Inc()
	s.server.log.Info("session ended", zap.String("session", s.id), zap.String("reason", string(s.report.Reason)), zap.Strings("left", s.report.Left))
	s.feed.closeFeed()
	s.server.indexes.releaseIndex(s.id)
	s.server.mu.Lock()
	delete(s.server.sessions, s.id)
	s.server.mu.Unlock()
	close(s.closed)
}

func (s *session) currentState() State {
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

func sessionEnded(id string) *Problem {
	return newProblem(http.StatusGone, "ended", "session "+id+" has ended", "Its records, diff and changes are still there; start another session for more")
}
