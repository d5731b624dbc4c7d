package tools

import (
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

// errConfirmTimeout is the cause of a question whose time is over.
var errConfirmTimeout = errors.New("confirmation timed out")

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
	leaders := map[Name]*question{}
	for _, p := range all {
		if p.ended || p.ask == nil {
			continue
		}
		if fail, settled := r.earlier(p); settled {
			r.settle(p, fail)
			continue
		}
		if r.d.opts.Broker == nil {
			c := r.confirmation(p)
			_ = r.emit(ConfirmationRequested{c})
			r.settle(p, r.nobody(p, c))
			continue
		}
		if p.ask.once {
			if leader := leaders[p.call.Name]; leader != nil {
				p.ask.leader = leader
			} else {
				leaders[p.call.Name] = p.ask
			}
		}
	}
}

func (r *round) settle(p *pending, fail *Error) {
	p.ask.resolve(fail)
	if fail != nil {
		r.fail(p, fail, Output{}, 0)
	}
}

// earlier looks for an answer of this session, then for a stored one.
func (r *round) earlier(p *pending) (fail *Error, settled bool) {
	decision, by, scope := Decision(""), "session", ScopeSession
	if d, ok := r.d.asked.get(p.call.Name); ok {
		decision = d
	} else if d, ok := r.stored(p); ok {
		decision, by, scope = d, "grant", ScopeAlways
	} else {
		return nil, false
	}
	_ = r.emit(ConfirmationResolved{CallID: p.call.ID, Decision: decision, Scope: scope, By: by})
	return denied(decision), true
}

func (r *round) stored(p *pending) (Decision, bool) {
	key, ok := grantKey(p, r.d.opts.Workspace)
	if !ok || r.d.opts.Grants == nil {
		return "", false
	}
	decision, found, err := r.d.opts.Grants.Find(key)
	if err != nil {
		r.warn(p, "stored approvals could not be read and were ignored: "+err.Error())
	}
	return decision, found
}

// grantKey is what a lasting answer to this call is bound to; false where it
// can't have one.
func grantKey(p *pending, workspace string) (Grant, bool) {
	key := Grant{Tool: p.call.Name, Workspace: workspace}
	if workspace == "" {
		return key, false
	}
	if p.tool.def.Class != ClassExecute {
		return key, true
	}
	if p.tool.def.Phrase == nil {
		return key, false
	}
	phrase, err := StaticPhrase(p.tool.def.Phrase(p.call.Input))
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
	scopes := []Scope{ScopeOnce, ScopeSession}
	if _, ok := grantKey(p, r.d.opts.Workspace); ok && r.d.opts.Grants != nil {
		scopes = append(scopes, ScopeAlways)
	}
	return Confirmation{
		ID: randomHex(16), CallID: p.call.ID, Name: p.call.Name, Class: p.tool.def.Class,
		Input: input, Summary: p.summary, Exact: p.call.Input, InputHash: p.hash,
		Projected: paths, Diff: elide(diff, maxShownDiff), Hidden: hidden || hiddenPath || hiddenDiff,
		Changed: p.ask.again, Scopes: scopes, Expires: time.Now().Add(r.d.opts.ConfirmTimeout),
	}
}

// askAll asks the open questions of a round together: all are made and
// reported, in request order, before the first one is put.
func (r *round) askAll(open []*pending) {
	var asking []*pending
	var wg sync.WaitGroup
	for _, p := range open {
		if p.ask != nil && p.ask.leader == nil && !p.ask.settled() {
			asking = append(asking, p)
			wg.Go(func() { p.ask.shown = r.project(p) })
		}
	}
	wg.Wait()
	if err := context.Cause(r.ctx); err != nil {
		for _, p := range asking {
			p.ask.resolve(r.cancelled(err))
		}
		return
	}
	confirmations := make([]Confirmation, len(asking))
	for i, p := range asking {
		confirmations[i] = r.confirmation(p)
		_ = r.emit(ConfirmationRequested{confirmations[i]})
	}
	for i, p := range asking {
		wg.Go(func() { p.ask.resolve(r.put(p, confirmations[i])) })
	}
	wg.Wait()
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
	case "user":
		by = "session"
	case "on_prompt":
		r.countUnapproved(leader.decision)
	case "":
		return leader.fail // cancelled before it was put
	}
	_ = r.emit(ConfirmationResolved{CallID: p.call.ID, Decision: leader.decision, Scope: ScopeSession, By: by})
	return leader.fail
}

// project makes the diff of a call, and fails into none.
func (r *round) project(p *pending) (shown Projection) {
	ctx, cancel := context.WithTimeoutCause(r.ctx, projectTimeout, errors.New("projection timed out"))
	defer cancel()
	err := guard(func() {
		projector, ok := p.tool.factory().(Projector)
		if !ok {
			return
		}
		call := p.call
		call.Delta = func(string, string) {}
		var err error
		if shown, err = projector.Project(ctx, &call); err != nil {
			shown = Projection{}
			r.d.log.Debug("no projection", zap.String("call", p.call.ID), zap.Error(err))
		}
	})
	if err != nil {
		r.d.log.Error("projection panics", zap.String("tool", string(p.call.Name)), zap.Error(err))
		return Projection{}
	}
	return shown
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
	c := r.confirmation(p)
	_ = r.emit(ConfirmationRequested{c})
	p.ask.resolve(r.put(p, c))
}

// put asks whoever can answer and waits for the first answer: a person's, the
// end of the time, a cancellation, or one to a sibling that holds for the session.
func (r *round) put(p *pending, c Confirmation) *Error {
	ctx, cancel := context.WithDeadlineCause(r.ctx, c.Expires, errConfirmTimeout)
	defer cancel()
	broker := r.d.opts.Broker
	q := broker.ask(ctx, c)
	p.ask.inquiry = q
	for {
		changed := r.d.asked.watch()
		if d, ok := r.d.asked.get(p.call.Name); ok {
			broker.settle(q, Answer{d, ScopeSession}, "session")
		}
		select {
		case <-q.answered:
			return r.replied(p, c, q.reply)
		case <-changed:
		case <-ctx.Done():
			by := "cancel"
			if errors.Is(context.Cause(ctx), errConfirmTimeout) {
				by = "timeout"
			}
			broker.settle(q, Answer{}, by)
		case <-q.alone:
			broker.settle(q, Answer{}, "on_prompt")
		}
	}
}

// replied applies the first answer.
func (r *round) replied(p *pending, c Confirmation, first reply) *Error {
	switch first.by {
	case "session":
		p.ask.shown = Projection{} // the answer was not to this diff
		r.resolved(p, c, first.answer.Decision, ScopeSession, first)
		return denied(first.answer.Decision)
	case "timeout":
		r.resolved(p, c, DecisionTimeout, ScopeOnce, first)
		message := fmt.Sprintf("Nobody confirmed this operation within %v.", r.d.opts.ConfirmTimeout)
		return &Error{Class: ErrorConfirmationTimeout, Message: message, Visible: true}
	case "cancel":
		r.resolved(p, c, DecisionDeny, ScopeOnce, first)
		return r.cancelled(context.Cause(r.ctx))
	case "on_prompt":
		return r.nobody(p, c)
	}
	return r.answered(p, c, first)
}

// answered applies a person's answer.
func (r *round) answered(p *pending, c Confirmation, first reply) *Error {
	a := first.answer
	if a.Decision != DecisionAllow {
		a.Decision = DecisionDeny
	}
	if !slices.Contains(c.Scopes, a.Scope) {
		a.Scope = ScopeOnce
	}
	if a.Scope == ScopeAlways {
		key, _ := grantKey(p, r.d.opts.Workspace)
		key.Decision = a.Decision
		if err := r.d.opts.Grants.Add(key); err != nil {
			r.warn(p, "the answer could not be stored and holds for this call only: "+err.Error())
			a.Scope = ScopeOnce
		}
	}
	if p.ask.once && a.Scope == ScopeOnce {
		a.Scope = ScopeSession
	}
	r.resolved(p, c, a.Decision, a.Scope, first)
	if a.Scope == ScopeSession {
		r.d.asked.set(p.call.Name, a.Decision)
	}
	return denied(a.Decision)
}

// nobody applies OnPrompt to a question that can be put to nobody.
func (r *round) nobody(p *pending, c Confirmation) *Error {
	if r.d.opts.OnPrompt == OnPromptAllow {
		p.ask.shown = Projection{} // nobody saw it
		r.resolved(p, c, DecisionAllow, ScopeOnce, reply{by: "on_prompt"})
		return nil
	}
	r.resolved(p, c, DecisionDeny, ScopeOnce, reply{by: "on_prompt"})
	r.countUnapproved(DecisionDeny)
	if r.d.opts.OnPrompt == OnPromptFail {
		r.stop(fmt.Errorf("tool %s: %w", p.call.Name, ErrNoApprover))
	}
	message := fmt.Sprintf("Tool %q (class %s) needs an approval, and nobody can be asked in this session.", p.tool.wire, p.tool.def.Class)
	return &Error{Class: ErrorPermissionDenied, Reason: "no_approver", Message: message, Visible: true}
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

// resolved records what became of a question, and tells whoever answered it.
func (r *round) resolved(p *pending, c Confirmation, d Decision, s Scope, first reply) {
	p.ask.decision, p.ask.by = d, first.by
	_ = r.emit(ConfirmationResolved{
		CallID: c.CallID, ConfirmationID: c.ID, Decision: d, Scope: s, By: first.by, Client: first.client,
	})
	if p.ask.inquiry != nil {
		r.d.opts.Broker.record(p.ask.inquiry, Resolution{c.ID, c.CallID, d, s, first.by, first.client})
	}
}
