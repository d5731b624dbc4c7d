package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// projectTimeout bounds making a diff; reading a file takes milliseconds.
const projectTimeout = 10 * time.Second

// question is one call's need for an answer. What it becomes is read after
// done is closed.
type question struct {
	name Name
	once bool // the answer holds for the session
	// leader is an earlier question of the same round that this one shares
	// its answer with.
	leader *question
	shown  Projection
	again  bool

	id      string   // of its confirmation
	inquiry *inquiry // nil where it was put to nobody

	done chan struct{}
	fail *Error // nil: allowed
	// decision and by are what was reported of it.
	decision Decision
	by       string
}

func newQuestion(p *pending) *question {
	return &question{name: p.tool.def.Name, once: p.verdict.Mode == ModePromptOnce, done: make(chan struct{})}
}

func (q *question) resolve(fail *Error) {
	q.fail = fail
	close(q.done)
}

// applyPrompts settles the questions of a round that need nobody: by an
// earlier answer, or because nobody can be asked.
func (r *round) applyPrompts(all []*pending) {
	leaders := map[answerKey]*question{}
	for _, p := range all {
		if p.ended || p.ask == nil {
			continue
		}
		if fail, settled := r.earlier(p); settled {
			p.ask.resolve(fail)
			continue
		}
		if r.d.opts.Broker == nil {
			c := r.confirmation(p)
			p.ask.id = c.ID
			_ = r.emit(ConfirmationRequested{c})
			p.ask.resolve(r.nobody(p))
			continue
		}
		if p.ask.once && p.dangerous == "" {
			if leader := leaders[p.remember]; leader != nil {
				p.ask.leader = leader
			} else {
				leaders[p.remember] = p.ask
			}
		}
	}
}

// earlier looks for an answer of this session, then for a stored one.
func (r *round) earlier(p *pending) (fail *Error, settled bool) {
	decision, by, scope := Decision(""), bySession, ScopeSession
	if d, ok := r.remembered(p); ok {
		decision = d
	} else if d, ok := r.stored(p); ok {
		decision, by, scope = d, byGrant, ScopeAlways
	} else {
		return nil, false
	}
	if err := r.emit(ConfirmationResolved{CallID: p.call.ID, Decision: decision, Scope: scope, By: by}); err != nil {
		return r.cancelled(err), true
	}
	return denied(decision), true
}

// remembered is the session's answer about a call's tool. An allow was not
// given to what is dangerous.
func (r *round) remembered(p *pending) (Decision, bool) {
	d, ok := r.d.asked.get(p.remember)
	return d, ok && (d != DecisionAllow || p.dangerous == "")
}

// stored is the lasting answer to a call. What is dangerous can have got an allow
// before it was called so, or by hand: it doesn't count, and a deny does.
func (r *round) stored(p *pending) (Decision, bool) {
	key, ok := grantKey(p, r.d.opts.Workspace)
	if !ok || r.d.opts.Grants == nil {
		return "", false
	}
	decision, found, err := r.d.opts.Grants.Find(key)
	if err != nil {
		r.warn(p, "stored approvals could not be read and were ignored: "+err.Error())
	}
	return decision, found && (decision != DecisionAllow || p.dangerous == "")
}

// grantKey is what a lasting answer to this call is bound to; false where it
// can't have one.
func grantKey(p *pending, workspace string) (Grant, bool) {
	key := Grant{Tool: p.call.Name, Workspace: workspace}
	if workspace == "" {
		return key, false
	}
	if p.tool.def.Class != ClassExecute {
		// A file of answers can't name the part of the tool that was asked about.
		return key, p.verdict.As == ""
	}
	if p.tool.def.Commands == nil {
		return key, false
	}
	commands := p.tool.def.Commands(p.call.Input)
	if len(commands) != 1 {
		return key, false
	}
	phrase, err := StaticPhrase(commands[0])
	key.Phrase = phrase
	return key, err == nil
}

func denied(d Decision) *Error {
	if d == DecisionAllow {
		return nil
	}
	return &Error{Class: ErrorUserDenied, Reason: "user", Message: "The user denied this operation.", Visible: true}
}

// confirmation is what a person is asked about a call.
func (r *round) confirmation(p *pending) Confirmation {
	input, hidden := inputForDisplay(p.call.Input)
	paths, hiddenPath := p.pathsForDisplay()
	diff, hiddenDiff := DisplayLines(p.ask.shown.Diff)
	shownDiff := Elide(diff, maxShownDiff)
	folder, _ := Display(r.d.opts.Workspace)
	danger, _ := Display(p.dangerous)
	c := Confirmation{
		ID: randomHex(16), CallID: p.call.ID, Seq: int(r.d.questions.Add(1)), Name: p.call.Name, Class: p.tool.def.Class,
		Runs: p.tool.def.Runs, Workspace: folder, Dangerous: danger,
		Input: input, Summary: p.summary, Exact: bytes.Clone(p.call.Input), InputHash: p.hash,
		RequiresAdmin: p.tool.def.RequiresAdmin, Changed: p.ask.again, Scopes: []Scope{ScopeOnce}, Expires: time.Now().Add(r.d.opts.ConfirmTimeout),
		Projected: paths, Diff: shownDiff, DiffElided: shownDiff != diff, Notices: inputNotices(p.call.Input), Hidden: hidden || hiddenPath || hiddenDiff,
	}
	for _, what := range p.ask.shown.NotCovered {
		safe, _ := Display(clip(what, maxSummaryBytes))
		c.Notices = append(c.Notices, "this answer does not cover the content of "+safe)
	}
	for _, path := range p.ask.shown.Covers {
		safe, hiddenName := Display(path)
		c.Covers, c.Hidden = append(c.Covers, safe), c.Hidden || hiddenName
	}
	// An answer about what is dangerous is about nothing else.
	if p.dangerous == "" {
		c.Scopes = append(c.Scopes, ScopeSession)
	}
	if key, ok := grantKey(p, r.d.opts.Workspace); ok && r.d.opts.Grants != nil && p.dangerous == "" {
		c.Scopes = append(c.Scopes, ScopeAlways)
		c.Phrase, _ = Display(key.Phrase)
	}
	return c
}

// askAll asks the open questions of a round together: all are made and
// reported, in request order, before the first one is put.
func (r *round) askAll(open []*pending) {
	var asking []*pending
	for _, p := range open {
		if p.ask != nil && p.ask.leader == nil && !p.ask.settled() {
			asking = append(asking, p)
		}
	}
	if len(asking) == 0 {
		return
	}
	r.projectAll(asking)
	asking = slices.DeleteFunc(asking, func(p *pending) bool {
		if p.intact() {
			return false
		}
		p.ask.resolve(r.tampered(p))
		return true
	})
	if err := context.Cause(r.ctx); err != nil {
		for _, p := range asking {
			p.ask.resolve(r.cancelled(err))
		}
		return
	}
	inquiries := make([]*inquiry, len(asking))
	for i, p := range asking {
		inquiries[i] = r.pose(p)
	}
	r.d.opts.Broker.present(inquiries...)
	for i, p := range asking {
		go func() { p.ask.resolve(r.put(p, inquiries[i])) }() // its call waits for it
	}
}

// pose makes a call's question and reports it. An answer may come from then on.
func (r *round) pose(p *pending) *inquiry {
	c := r.confirmation(p)
	p.ask.id = c.ID
	p.ask.inquiry = r.d.opts.Broker.open(r.ctx, c)
	_ = r.emit(ConfirmationRequested{c})
	return p.ask.inquiry
}

func (q *question) settled() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// answer waits for what became of a call's question.
func (r *round) answer(p *pending) *Error {
	if p.ask == nil {
		return nil
	}
	if leader := p.ask.leader; leader != nil {
		<-leader.done
		return r.follow(p, leader)
	}
	<-p.ask.done
	return p.ask.fail
}

// follow gives a call the answer that an earlier one of its round got.
func (r *round) follow(p *pending, leader *question) *Error {
	by := leader.by
	switch by {
	case byUser:
		by = bySession
	case byOnPrompt, byTimeout:
		r.countUnapproved(leader.decision)
	case "":
		return leader.fail // cancelled before it was put
	}
	if err := r.emit(ConfirmationResolved{CallID: p.call.ID, Decision: leader.decision, Scope: ScopeSession, By: by}); err != nil {
		return r.cancelled(err)
	}
	return leader.fail
}

// projectAll makes the diffs of calls, a few at a time: each may hold two
// versions of a large file.
func (r *round) projectAll(all []*pending) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, r.d.opts.Concurrency)
	for _, p := range all {
		slots <- struct{}{}
		wg.Go(func() {
			p.ask.shown = r.project(p)
			<-slots
		})
	}
	wg.Wait()
}

// project makes the diff of a call, and fails into none. A tool that does not
// come back holds nobody up; Close waits for it.
func (r *round) project(p *pending) Projection {
	if r.ctx.Err() != nil {
		return Projection{} // a round of a closed dispatcher starts nothing
	}
	ctx, cancel := context.WithTimeoutCause(r.ctx, projectTimeout, errors.New("projection timed out"))
	defer cancel()
	call := p.call
	call.Input, call.Delta = bytes.Clone(p.call.Input), func(string, string) {}
	done := make(chan Projection, 1)
	r.d.running.Go(func() {
		var shown Projection
		err := errNoReturn
		defer func() {
			if err != nil {
				r.unprojected(call, err)
				shown = Projection{}
			}
			done <- shown
		}()
		if broken := guard(func() {
			projector, ok := p.tool.factory().(Projector)
			if !ok {
				err = nil
				return
			}
			shown, err = projector.Project(ctx, &call)
		}); broken != nil {
			err = broken
		}
	})
	select {
	case shown := <-done:
		return shown
	case <-ctx.Done():
		return Projection{}
	}
}

// unprojected logs why there is no diff: often there can be none.
func (r *round) unprojected(call Call, err error) {
	level := zap.DebugLevel
	if _, broken := errors.AsType[*panicError](err); broken || errors.Is(err, errNoReturn) {
		level = zap.ErrorLevel
	}
	r.d.log.Log(level, "no projection", zap.String("call", call.ID), zap.String("tool", string(call.Name)), zap.Error(err))
}

// asShown says whether what was approved is still what would happen.
func (r *round) asShown(p *pending) bool {
	if p.ask == nil || p.ask.shown.State == "" {
		return true
	}
	p.ticket.tell() // others don't wait for the file system
	p.call.Projected = p.ask.shown.State
	return r.project(p).State == p.ask.shown.State || r.ctx.Err() != nil
}

// askAgain puts a call's question once more, with what it would change now.
func (r *round) askAgain(p *pending) {
	p.call.Projected = ""
	p.ask = newQuestion(p)
	p.ask.again = true
	p.ask.shown = r.project(p)
	q := r.pose(p)
	r.d.opts.Broker.present(q)
	p.ask.resolve(r.put(p, q))
}

// put waits for the first answer to a question: a person's, the end of the
// time, a cancellation, or one to a sibling that holds for the session.
func (r *round) put(p *pending, q *inquiry) *Error {
	broker := r.d.opts.Broker
	for {
		changed := r.d.asked.watch()
		if d, ok := r.remembered(p); ok {
			broker.settle(q, Answer{d, ScopeSession}, bySession)
		}
		select {
		case <-q.answered:
			return r.replied(p, q)
		case <-changed:
			continue
		case <-q.ctx.Done():
			broker.settle(q, Answer{}, byCancel) // or by the timeout, which the broker sees
		case <-q.alone:
			broker.settle(q, Answer{}, byOnPrompt)
		}
		return r.replied(p, q)
	}
}

// replied applies the first answer.
func (r *round) replied(p *pending, q *inquiry) *Error {
	first := q.reply
	switch first.by {
	case bySession:
		p.ask.shown = Projection{} // the answer was not to this diff
		return firstOf(r.resolved(p, first, first.answer.Decision, ScopeSession), denied(first.answer.Decision))
	case byTimeout:
		message := fmt.Sprintf("Nobody confirmed this operation within %v.", r.d.opts.ConfirmTimeout)
		timeout := &Error{Class: ErrorConfirmationTimeout, Message: message, Visible: true}
		r.countUnapproved(DecisionTimeout)
		return firstOf(r.resolved(p, first, DecisionTimeout, ScopeOnce), timeout)
	case byCancel:
		return firstOf(r.resolved(p, first, DecisionDeny, ScopeOnce), r.cancelled(context.Cause(r.ctx)))
	case byOnPrompt:
		return r.nobody(p)
	}
	return r.answered(p, q)
}

func firstOf(fails ...*Error) *Error {
	for _, fail := range fails {
		if fail != nil {
			return fail
		}
	}
	return nil
}

// answered applies a person's answer.
func (r *round) answered(p *pending, q *inquiry) *Error {
	a := q.reply.answer
	if a.Decision != DecisionAllow {
		a.Decision = DecisionDeny
	}
	if !slices.Contains(q.Scopes, a.Scope) {
		a.Scope = ScopeOnce
	}
	var stored Grant
	if a.Scope == ScopeAlways {
		stored, _ = grantKey(p, r.d.opts.Workspace)
		stored.Decision = a.Decision
		if err := r.d.opts.Grants.answeredBy(q.reply.client).Add(stored); err != nil {
			r.warn(p, "the answer could not be stored and holds for this call only: "+err.Error())
			a.Scope = ScopeOnce
		}
	}
	if p.ask.once && a.Scope == ScopeOnce && p.dangerous == "" {
		a.Scope = ScopeSession
	}
	fail := r.recordAnswer(p, q.reply, a)
	if fail != nil && a.Scope == ScopeAlways && a.Decision == DecisionAllow {
		_, _ = r.d.opts.Grants.answeredBy(q.reply.client).Revoke(stored.SameKey) // what nobody was told of must not last
	}
	return firstOf(fail, denied(a.Decision))
}

// recordAnswer records a person's answer, and keeps it where it holds for the
// session.
func (r *round) recordAnswer(p *pending, first reply, a Answer) (fail *Error) {
	if a.Scope != ScopeSession {
		return r.resolved(p, first, a.Decision, a.Scope)
	}
	r.d.asked.keep(p.remember, a.Decision, func(s Scope) bool {
		fail = r.resolved(p, first, a.Decision, s)
		return fail == nil
	})
	return fail
}

// nobody applies OnPrompt to a question that can be put to nobody.
func (r *round) nobody(p *pending) *Error {
	first := reply{by: byOnPrompt}
	if r.d.opts.OnPrompt == OnPromptAllow {
		p.ask.shown = Projection{} // nobody saw it
		return r.resolved(p, first, DecisionAllow, ScopeOnce)
	}
	fail := r.resolved(p, first, DecisionDeny, ScopeOnce)
	r.countUnapproved(DecisionDeny)
	if r.d.opts.OnPrompt == OnPromptFail {
		r.stop(fmt.Errorf("tool %s: %w", p.call.Name, ErrNoApprover))
	}
	message := fmt.Sprintf("Tool %q (class %s) needs an approval, and nobody can be asked in this session.", p.tool.wire, p.tool.def.Class)
	return firstOf(fail, &Error{Class: ErrorPermissionDenied, Reason: "no_approver", Message: message, Visible: true})
}

// countUnapproved counts a call that was refused for want of an approver.
func (r *round) countUnapproved(d Decision) {
	if d == DecisionAllow {
		return
	}
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	r.d.unapproved++
}

// resolved records what became of a question, and then tells whoever answered
// it. An answer that can't be recorded is none: the call fails.
func (r *round) resolved(p *pending, first reply, d Decision, s Scope) *Error {
	p.ask.decision, p.ask.by = d, first.by
	err := r.emit(ConfirmationResolved{
		CallID: p.call.ID, ConfirmationID: p.ask.id, Decision: d, Scope: s, By: first.by, Client: first.client,
	})
	if q := p.ask.inquiry; q != nil {
		r.d.opts.Broker.record(q, Resolution{q.ID, q.CallID, d, s, first.by, first.client}, err)
	}
	if err != nil {
		return r.cancelled(err)
	}
	return nil
}
