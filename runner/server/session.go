package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/trace"
)

// keptTurns bounds the turns whose reports a live session keeps. The trace has
// all.
const keptTurns = 1024

type session struct {
	*diagnostics
	id     string
	dir    string // of its records
	client client // who started it
	// prepare is Options.Prepare, Resume or PrepareSandbox for the client's
	// request. task describes the session in its first record.
	prepare func(ctx context.Context) (runner.Options, func(), error)
	task    string
	begun   time.Time
	run     *runner.Session
	feed    *feed
	steps   *trace.Steps
	// sandbox is nil for a session with a model.
	sandbox *liveSandbox
	// adopted is nil unless somebody else runs the session.
	adopted       *Adoption
	confirmations *confirmations
	// done releases Prepare's resources.
	done func()
	// onClosed is called when the session has ended.
	onClosed func()

	closing sync.Once
	follows sync.WaitGroup
	// closed is closed once report is set.
	closed chan struct{}
	report runner.Report

	mu       sync.Mutex
	ending   bool
	cut      bool // it was ended during a turn
	title    string
	turns    map[string]*runner.Turn
	order    []string // of turns, oldest first
	idle     *time.Timer
	idleTime time.Duration

	// recMu guards the fields set from records. It is separate from mu because
	// the writer of a record may hold locks that the holder of mu waits for.
	recMu sync.Mutex
	facts record.SessionCreated
	spent *limits.Usage // of the running turn; nil before its first model call
	said  string        // the first message
}

func newSession(d *diagnostics, title string, from client) *session {
	return &session{
		diagnostics: d, task: title, client: from, begun: time.Now(), title: displayTitle(title), feed: newFeed(),
		closed: make(chan struct{}), steps: trace.NewSteps(nil), turns: map[string]*runner.Turn{},
		confirmations: newConfirmations(d), onClosed: func() {},
	}
}

// openRun opens the session, which then lives until lifetime ends. ctx bounds
// the opening.
func (s *session) openRun(ctx, lifetime context.Context, opts *Options) error {
	// Waiting for resources, such as an image, also ends when the server stops.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(lifetime, func() { cancel(context.Cause(lifetime)) })()
	o, done, err := s.prepare(ctx)
	if err != nil {
		return s.asProblem("prepare session", err)
	}
	s.id = o.Dir.Session
	s.dir = o.Dir.Path
	s.done = done
	s.confirmations.session = s.id
	o.Task = s.task
	o.Broker = s.confirmations.broker
	o.Live = s.feed.publishDelta
	o.Force = opts.Force
	o.Mirror, o.User = s.observeRecord, s.client.runnerUser()
	o.Hint = sessionHint
	if s.run, err = runner.Open(lifetime, o); err != nil {
		done()
		return s.asProblem("open session", err)
	}
	return nil
}

// observeRecord is called with every record once it is in the trace, in order.
// It must not block.
func (s *session) observeRecord(r record.Record, _ []byte) {
	step := s.steps.Record(r)
	if s.sandbox != nil {
		s.sandbox.watch.Observe(r.Kind)
	}
	switch r.Kind {
	case record.KindSessionCreated, record.KindSessionResumed:
		s.recMu.Lock()
		_ = json.Unmarshal(r.Payload, &s.facts) // missing fields are not shown
		s.recMu.Unlock()
	case record.KindTurnStarted, record.KindTurnCompleted, record.KindTurnCancelled:
		s.recMu.Lock()
		s.spent = nil
		s.recMu.Unlock()
	case record.KindModelCallCompleted, record.KindWorkerModelCall, record.KindBridgeModelCall:
		if step.Model != nil {
			s.addUsage(step.Model.Usage)
		}
	case record.KindMessage:
		if step.Kind == trace.StepUser {
			s.recMu.Lock()
			s.said = cmp.Or(s.said, step.Text)
			s.recMu.Unlock()
		}
	case record.KindConfirmationRequested:
		if c := step.Call; c != nil {
			s.confirmations.rememberTurn(c.Asked[len(c.Asked)-1].ID, r.Turn)
		}
	}
	s.metrics.countRecord(r.Kind, step)
	s.feed.publishRecord(r.Seq)
}

func (s *session) addUsage(u limits.Usage) {
	s.recMu.Lock()
	defer s.recMu.Unlock()
	if s.spent != nil {
		u = s.spent.Plus(u)
	}
	s.spent = &u
}

// startTurn starts a turn with a user's message, or continues the last one.
func (s *session) startTurn(in NewTurn, from client, traceparent string) (*runner.Turn, error) {
	if s.adopted != nil {
		return s.startAdopted(in, from, traceparent)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ending:
		return nil, sessionEnded(s.id)
	case s.sandbox != nil:
		return nil, newProblem(http.StatusConflict, "no_model", "session "+s.id+" is a sandbox without a model", "Start a session for turns")
	}
	o := runner.TurnOptions{Budget: in.Limits.Budget(), Traceparent: traceparent}
	var t *runner.Turn
	var err error
	if in.Continue {
		t, err = s.run.ContinueFor(from.runnerUser(), o)
	} else {
		t, err = s.run.StartFor(from.runnerUser(), in.Message, o)
	}
	if err != nil {
		return nil, s.turnProblem(err)
	}
	if s.title == "" {
		s.title = displayTitle(in.Message)
	}
	s.keepTurn(t)
	s.idle.Stop()
	s.follows.Go(func() { s.watchTurn(t) })
	return t, nil
}

// turnProblem returns the problem of a turn that could not begin.
func (s *session) turnProblem(err error) *Problem {
	if p := limitProblem(err); p != nil {
		return p
	}
	if p := s.resumeProblem(err); p != nil {
		return p
	}
	switch {
	case errors.Is(err, runner.ErrBusy):
		return newProblem(http.StatusConflict, "busy", "turn "+s.run.Status().Turn+" is running", "Wait for its end, or cancel it")
	case errors.Is(err, runner.ErrOver):
		return newProblem(http.StatusConflict, "over", "the session takes no more turns: "+s.run.Status().Over, "End it, and start another one")
	}
	return s.internalProblem("start turn", err)
}

// keepTurn keeps a turn for its report. The caller holds mu.
func (s *session) keepTurn(t *runner.Turn) {
	s.turns[t.ID] = t
	s.order = append(s.order, t.ID)
	if len(s.order) > keptTurns {
		delete(s.turns, s.order[0])
		s.order = s.order[1:]
	}
}

// turnView returns a turn that the session still remembers.
func (s *session) turnView(id string) (Turn, bool) {
	s.mu.Lock()
	t := s.turns[id]
	s.mu.Unlock()
	if t == nil {
		return Turn{}, false
	}
	select {
	case <-t.Done():
		return turnView(t.Report()), true
	default:
		return Turn{ID: id, State: TurnRunning}, true
	}
}

func (s *session) cancelTurn(id string, from client) {
	s.mu.Lock()
	t := s.turns[id]
	s.mu.Unlock()
	if t == nil && s.adopted != nil {
		if t = s.adopted.Running(); t != nil && t.ID != id {
			t = nil
		}
	}
	if t != nil {
		select {
		case <-t.Done(): // it has ended
			return
		default:
		}
		s.log.Info("turn cancelled", zap.String("session", s.id), zap.String("turn", id), zap.String("client", from.label))
		t.Cancel(&runner.CancelledByUser{Client: from.name()})
	}
}

// startIdleTimer starts the timer that ends the session if no turn, or no
// command, begins.
func (s *session) startIdleTimer() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sandbox != nil {
		s.follows.Go(func() {
			s.sandbox.watch.Wait(s.sandbox.ctx, s.run, s.sandbox.ttl)
			s.close("")
		})
		return
	}
	s.idle = time.AfterFunc(s.idleTime, s.endIfIdle)
}

// watchTurn waits for the end of a turn. It then ends a session that takes no
// more turns, and restarts the idle timer of any other.
func (s *session) watchTurn(t *runner.Turn) {
	<-t.Done()
	if s.run.Status().Over != "" {
		s.close("")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ending && s.run.Status().Turn == "" {
		s.idle.Reset(s.idleTime)
	}
}

func (s *session) endIfIdle() {
	s.mu.Lock()
	unused := !s.ending && !s.isBusy()
	s.ending = s.ending || unused // from now on, no turn begins
	s.mu.Unlock()
	if unused {
		s.log.Info("session is idle for too long", zap.String("session", s.id))
		s.close("")
	}
}

func (s *session) isBusy() bool {
	return s.run.Status().Turn != "" || s.sandbox != nil && s.sandbox.watch.Running() > 0
}

// endIdle ends an idle session, and reports whether it did. A session that is
// being ended during a turn is not idle: its changes are incomplete.
func (s *session) endIdle(client string) bool {
	s.mu.Lock()
	idle := s.ending && !s.cut || !s.ending && !s.isBusy()
	s.ending = s.ending || idle // from now on, no turn begins
	s.mu.Unlock()
	if idle {
		s.close(client)
	}
	return idle
}

// close starts to end the session, on behalf of a client unless it is "", and
// returns at once. The channel closed reports the end. An adopted session goes
// on elsewhere.
func (s *session) close(client string) {
	s.closing.Do(func() {
		s.mu.Lock()
		s.cut = !s.ending && s.isBusy()
		s.ending = true
		if s.idle != nil {
			s.idle.Stop()
		}
		if s.sandbox != nil {
			s.sandbox.end(nil)
		}
		s.mu.Unlock()
		go s.finishClose(client)
	})
}

func (s *session) finishClose(client string) {
	if s.adopted == nil {
		s.closeRun(client)
	}
	s.feed.closeFeed()
	s.onClosed()
	close(s.closed)
}

// closeRun ends the run, and sets report.
func (s *session) closeRun(client string) {
	s.report = s.run.CloseFor(client)
	s.follows.Wait()
	if s.sandbox != nil {
		if err := s.sandbox.commands.removeOutput(); err != nil {
			s.log.Warn("remove the output of commands", zap.String("session", s.id), zap.Error(err))
		}
	}
	s.done()
	s.metrics.ended.WithLabelValues(string(s.report.Reason)).Inc()
	s.log.Info("session ended", zap.String("session", s.id), zap.String("reason", string(s.report.Reason)), zap.Strings("left", s.report.Left))
}

func (s *session) isEnding() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ending
}

func (s *session) currentState() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ending:
		return StateClosing
	case s.isBusy():
		return StateRunning
	}
	return StateIdle
}

func (s *session) sessionView(whole bool) Session {
	st, state := s.run.Status(), s.currentState()
	s.mu.Lock()
	title := s.title
	s.mu.Unlock()
	v := Session{
		ID: s.id, State: state, Title: title, Begun: s.begun.UTC(),
		Turn: st.Turn, Turns: &st.Turns, Usage: st.Usage, CostUSD: record.CostUSD(st.Usage.CostMicroUSD),
		Waiting: len(s.confirmations.listPending()), Seq: s.feed.lastSeq(), Over: st.Over,
	}
	s.recMu.Lock()
	if v.Title == "" {
		v.Title = displayTitle(s.said)
	}
	v.Spent = s.spent
	v.setFacts(s.facts, whole)
	s.recMu.Unlock()
	if whole {
		v.Unfinished = s.run.Recap().Unfinished
		v.Attestation, v.Restarts = st.Attestation, st.Restarts
		if st.Last != nil {
			v.LastTurn = new(turnView(*st.Last))
		}
	}
	return v
}

func sessionEnded(id string) *Problem {
	return newProblem(http.StatusGone, "ended", "session "+id+" has ended", "Its records, diff and changes are still there; start another session for more")
}
