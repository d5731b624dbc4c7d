package dispatch

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/internal/utf8text"
	"github.com/caisson-run/caisson/tools/policy"
)

// confirmation is one call's need for an answer. Its result may be read once done
// is closed.
type confirmation struct {
	once bool // the answer holds for the session
	// leader is an earlier confirmation in the round whose answer this one shares.
	leader *confirmation
	shown  tools.Projection
	again  bool
	// ruled reports that the decider ruled on what is shown.
	ruled bool

	id      string            // of the request
	request *approval.Request // nil if nobody was asked

	done chan struct{}
	fail *tools.Error // nil if allowed
	// decision and by are from the recorded resolution.
	decision approval.Decision
	by       string
	// reason is why a person refused, in their words.
	reason string
}

func newConfirmation(p *pending) *confirmation {
	return &confirmation{once: p.verdict.Mode == policy.ModePromptOnce, done: make(chan struct{})}
}

// forgetShown forgets a projection that nobody saw.
func (c *confirmation) forgetShown() {
	if !c.ruled {
		c.shown = tools.Projection{}
	}
}

// resolve sets the result of a confirmation. A nil failure allows the call.
func (c *confirmation) resolve(fail *tools.Error) {
	c.fail = fail
	close(c.done)
}

// resolveWithoutAsking resolves the confirmations that have an earlier answer, or
// all of them if nobody can be asked.
func (r *round) resolveWithoutAsking(all []*pending) {
	leaders := map[approval.AnswerKey]*confirmation{}
	for _, p := range all {
		if p.ended || p.confirm == nil || isClosed(p.confirm.done) {
			continue
		}
		if fail, found := r.applyEarlierAnswer(p); found {
			p.confirm.resolve(fail)
			continue
		}
		if r.d.opts.Broker == nil {
			c := r.describeCall(p)
			c.Seq = int(r.d.confirmations.Add(1))
			p.confirm.id = c.ID
			_ = r.emit(ConfirmationRequested{c})
			p.confirm.resolve(r.applyOnPrompt(p))
			continue
		}
		if p.confirm.once && !p.isOneOff() {
			if leader := leaders[p.remember]; leader != nil {
				p.confirm.leader = leader
			} else {
				leaders[p.remember] = p.confirm
			}
		}
	}
}

// applyEarlierAnswer applies the session's answer or a stored one, if there is one.
func (r *round) applyEarlierAnswer(p *pending) (fail *tools.Error, found bool) {
	earlier, found := r.earlierAnswer(p)
	if !found {
		return nil, false
	}
	if err := r.emit(ConfirmationResolved{earlier}); err != nil {
		return r.cancelledError(err), true
	}
	return denialOf(earlier.Decision), true
}

// earlierAnswer returns the session's answer to a call, or a stored one.
func (r *round) earlierAnswer(p *pending) (earlier approval.Resolution, found bool) {
	if d, ok := r.sessionAnswer(p); ok {
		return approval.Resolution{CallID: p.call.ID, Decision: d, Scope: approval.ScopeSession, By: approval.BySession}, true
	}
	d, ok := r.storedAnswer(p)
	return approval.Resolution{CallID: p.call.ID, Decision: d, Scope: approval.ScopeAlways, By: approval.ByGrant}, ok
}

// sessionAnswer returns the session's answer to a call. An allow does not cover a
// dangerous command.
func (r *round) sessionAnswer(p *pending) (approval.Decision, bool) {
	d, ok := r.d.answers.Find(p.remember)
	return d, ok && (d != approval.DecisionAllow || !p.isOneOff())
}

// storedAnswer returns the stored answer to a call. A dangerous command may have a
// stored allow, from before it was called dangerous or written by hand. It doesn't
// count; a deny does.
func (r *round) storedAnswer(p *pending) (approval.Decision, bool) {
	key, ok := grantKey(p, r.d.opts.Workspace)
	if !ok || r.d.opts.Grants == nil {
		return "", false
	}
	decision, found, err := r.d.opts.Grants.Find(key)
	if err != nil {
		r.warn(p, "stored approvals could not be read and were ignored: "+err.Error())
	}
	return decision, found && (decision != approval.DecisionAllow || !p.isOneOff())
}

// grantKey returns the key of a stored answer to this call, or false if it can't
// have one.
func grantKey(p *pending, workspace string) (approval.Grant, bool) {
	def := p.tool.Definition
	key := approval.Grant{Tool: p.call.Name, Workspace: workspace, Definition: def.Hash}
	if workspace == "" {
		return key, false
	}
	if def.Class != tools.ClassExecute || def.Name.Server() != "" && def.Commands == nil {
		// A stored answer can't name the part of the tool that was asked about.
		return key, p.verdict.As == ""
	}
	if def.Commands == nil {
		return key, false
	}
	commands := def.Commands(p.call.Input)
	if len(commands) != 1 {
		return key, false
	}
	phrase, err := policy.StaticPhrase(commands[0])
	key.Phrase = phrase
	return key, err == nil
}

func denialOf(d approval.Decision) *tools.Error {
	if d == approval.DecisionAllow {
		return nil
	}
	return &tools.Error{Class: tools.ErrorUserDenied, Reason: "user", Message: "The user denied this operation.", Visible: true}
}

func (r *round) describeCall(p *pending) approval.Confirmation {
	input, hidden := inputForDisplay(p.call.Input)
	paths, hiddenPath := p.pathsForDisplay()
	diff, hiddenDiff := tools.DisplayLines(p.confirm.shown.Diff)
	shownDiff := tools.Elide(diff, maxShownDiff)
	dir, _ := tools.Display(r.d.opts.Workspace)
	danger, _ := tools.Display(p.dangerous)
	c := approval.Confirmation{
		Question: approval.Question{
			ID: randomHex(16), CallID: p.call.ID, Name: p.call.Name, Class: p.tool.Definition.Class,
			Runs: p.tool.Definition.Runs, Dangerous: danger, Input: input, Summary: p.summary, InputHash: p.hash,
			Changed: p.confirm.again, Scopes: []approval.Scope{approval.ScopeOnce},
			Projected: paths, Diff: shownDiff, Notices: tools.InputNotices(p.call.Input), Hidden: hidden || hiddenPath || hiddenDiff,
		},
		Workspace: dir, Exact: bytes.Clone(p.call.Input), DiffElided: shownDiff != diff,
		RequiresAdmin: p.tool.Definition.RequiresAdmin, Expires: time.Now().Add(r.d.opts.ConfirmTimeout),
		As: p.remember.As, Command: p.remember.Command,
	}
	if slices.Contains(p.commands, policy.AnyCommand) {
		c.Notices = append(c.Notices, "it may edit, complete or recall a command in the terminal, so the policy can't tell what it runs")
	}
	if before := policy.TypedBefore(p.commands); before != "" {
		safe, hiddenBefore := tools.Display(before)
		c.Notices, c.Hidden = append(c.Notices, "together with what was typed before: "+tools.Elide(safe, maxShownInput)), c.Hidden || hiddenBefore
	}
	for _, phrase := range p.confirm.shown.NotCovered {
		safe, _ := tools.Display(utf8text.Clip(phrase, maxSummaryBytes))
		c.Notices = append(c.Notices, "this answer does not cover the content of "+safe)
	}
	for _, path := range p.confirm.shown.Covers {
		safe, hiddenName := tools.Display(path)
		c.Covers, c.Hidden = append(c.Covers, safe), c.Hidden || hiddenName
	}
	if !p.isOneOff() {
		c.Scopes = append(c.Scopes, approval.ScopeSession)
	}
	if key, ok := grantKey(p, r.d.opts.Workspace); ok && r.d.opts.Grants != nil && !p.isOneOff() {
		c.Scopes = append(c.Scopes, approval.ScopeAlways)
		c.Phrase, _ = tools.Display(key.Phrase)
	}
	if p.call.Name.Server() != "" {
		r.describeDefinition(p, &c)
	}
	return c
}

func (r *round) describeDefinition(p *pending, c *approval.Confirmation) {
	def := p.tool.Definition
	text, hidden := tools.DisplayLines(utf8text.Repair(def.Description))
	c.Description, c.Definition = tools.Elide(text, maxShownDescription), def.Hash
	if hidden {
		c.Notices = append(c.Notices, "the server's description holds characters that terminals don't show")
	}
	key, lasts := grantKey(p, r.d.opts.Workspace)
	c.Redefined = r.d.answers.IsOutdated(p.remember) || lasts && r.d.opts.Grants != nil && r.d.opts.Grants.IsOutdated(key)
}

// needsReply reports whether a person must be asked about a call.
func (p *pending) needsReply() bool {
	return p.confirm != nil && p.confirm.leader == nil && !isClosed(p.confirm.done)
}

// requestConfirmations requests a round's unresolved confirmations together: all
// are reported, in the order of the calls, before the first is delivered.
func (r *round) requestConfirmations(asking []*pending) {
	if len(asking) == 0 {
		return
	}
	r.projectCalls(asking)
	asking = slices.DeleteFunc(asking, func(p *pending) bool {
		if p.isIntact() {
			return false
		}
		p.confirm.resolve(r.tamperedError(p))
		return true
	})
	if err := context.Cause(r.ctx); err != nil {
		for _, p := range asking {
			p.confirm.resolve(r.cancelledError(err))
		}
		return
	}
	requests := make([]*approval.Request, len(asking))
	for i, p := range asking {
		requests[i] = r.requestConfirmation(p)
	}
	r.d.opts.Broker.Deliver(requests...)
	for _, p := range asking {
		go func() { p.confirm.resolve(r.waitForReply(p)) }() // its call waits for it
	}
}

// requestConfirmation requests and reports the confirmation of a call. From then on
// it can be answered.
func (r *round) requestConfirmation(p *pending) *approval.Request {
	c := r.describeCall(p)
	c.Seq = int(r.d.confirmations.Add(1))
	p.confirm.id = c.ID
	p.confirm.request = r.d.opts.Broker.Request(r.ctx, c)
	_ = r.emit(ConfirmationRequested{c})
	return p.confirm.request
}

// waitForConfirmation waits until a call is confirmed. It returns nil if the call
// may run.
func (r *round) waitForConfirmation(p *pending) *tools.Error {
	if p.confirm == nil {
		return nil
	}
	if leader := p.confirm.leader; leader != nil {
		<-leader.done
		p.confirm.reason = leader.reason
		return r.followLeader(p, leader)
	}
	<-p.confirm.done
	return p.confirm.fail
}

func (r *round) followLeader(p *pending, leader *confirmation) *tools.Error {
	by := leader.by
	switch by {
	case approval.ByUser:
		by = approval.BySession
	case approval.ByOnPrompt, approval.ByTimeout:
		r.countUnapproved(leader.decision)
	case "":
		return leader.fail // cancelled before it was requested
	}
	if err := r.emit(ConfirmationResolved{approval.Resolution{CallID: p.call.ID, Decision: leader.decision, Scope: approval.ScopeSession, By: by}}); err != nil {
		return r.cancelledError(err)
	}
	return leader.fail
}

// confirmAgain asks about a call once more, with what it would change now.
func (r *round) confirmAgain(p *pending) {
	p.call.Projected = ""
	p.confirm = newConfirmation(p)
	p.confirm.again = true
	p.confirm.shown = r.projectCall(p, projectTimeout)
	if r.d.opts.Decider.Covers(p.tool.Definition) {
		r.consultDecider([]*pending{p})
		r.resolveWithoutAsking([]*pending{p})
		if isClosed(p.confirm.done) {
			return
		}
	}
	r.d.opts.Broker.Deliver(r.requestConfirmation(p))
	p.confirm.resolve(r.waitForReply(p))
}

// waitForReply waits for the first reply to a call's request and applies it. It
// returns nil if the call may run.
func (r *round) waitForReply(p *pending) *tools.Error {
	first := r.d.opts.Broker.Wait(p.confirm.request, &r.d.answers, func() (approval.Decision, bool) { return r.sessionAnswer(p) })
	switch first.By {
	case approval.BySession:
		p.confirm.forgetShown() // the answer was not to this diff
		return cmp.Or(r.recordResolution(p, first, first.Answer.Decision, approval.ScopeSession), denialOf(first.Answer.Decision))
	case approval.ByTimeout:
		message := fmt.Sprintf("No one confirmed this operation within %v.", r.d.opts.ConfirmTimeout)
		timeout := &tools.Error{Class: tools.ErrorConfirmationTimeout, Message: message, Visible: true}
		r.countUnapproved(approval.DecisionTimeout)
		return cmp.Or(r.recordResolution(p, first, approval.DecisionTimeout, approval.ScopeOnce), timeout)
	case approval.ByCancel:
		return cmp.Or(r.recordResolution(p, first, approval.DecisionDeny, approval.ScopeOnce), r.cancelledError(context.Cause(r.ctx)))
	case approval.ByOnPrompt:
		return r.applyOnPrompt(p)
	}
	return r.applyUserAnswer(p, first)
}

func (r *round) applyUserAnswer(p *pending, first approval.Reply) *tools.Error {
	a := first.Answer
	if a.Decision != approval.DecisionAllow {
		a.Decision = approval.DecisionDeny
	}
	if !slices.Contains(p.confirm.request.Scopes, a.Scope) {
		a.Scope = approval.ScopeOnce
	}
	var stored approval.Grant
	if a.Scope == approval.ScopeAlways {
		stored, _ = grantKey(p, r.d.opts.Workspace)
		stored.Decision = a.Decision
		if err := r.d.opts.Grants.AnsweredBy(first.Client).Add(stored); err != nil {
			r.warn(p, "the answer could not be stored, so the question comes again later: "+err.Error())
			a.Scope = approval.ScopeOnce
		}
	}
	if p.confirm.once && a.Scope == approval.ScopeOnce && !p.isOneOff() {
		a.Scope = approval.ScopeSession
	}
	fail := r.recordUserAnswer(p, first, a)
	if fail != nil && a.Scope == approval.ScopeAlways && a.Decision == approval.DecisionAllow {
		_, _ = r.d.opts.Grants.AnsweredBy(first.Client).Revoke(stored.SameKey) // an answer that no client learns of must not last
	}
	return cmp.Or(fail, denialOf(a.Decision))
}

// recordUserAnswer records a person's answer, and keeps it if it holds for the
// session.
func (r *round) recordUserAnswer(p *pending, first approval.Reply, a approval.Answer) (fail *tools.Error) {
	if a.Scope != approval.ScopeSession {
		return r.recordResolution(p, first, a.Decision, a.Scope)
	}
	r.d.answers.Keep(p.remember, a.Decision, func(s approval.Scope) bool {
		fail = r.recordResolution(p, first, a.Decision, s)
		return fail == nil
	})
	return fail
}

func (r *round) applyOnPrompt(p *pending) *tools.Error {
	first := approval.Reply{By: approval.ByOnPrompt}
	if r.d.opts.OnPrompt == OnPromptAllow && !p.mustAsk {
		p.confirm.forgetShown() // nobody saw it
		return r.recordResolution(p, first, approval.DecisionAllow, approval.ScopeOnce)
	}
	fail := r.recordResolution(p, first, approval.DecisionDeny, approval.ScopeOnce)
	r.countUnapproved(approval.DecisionDeny)
	if r.d.opts.OnPrompt == OnPromptFail {
		r.stopRun(fmt.Errorf("tool %s: %w", p.call.Name, ErrNoApprover))
	}
	message := fmt.Sprintf("Tool %q (class %s) needs an approval, and no one can be asked in this session.", p.tool.Wire, p.tool.Definition.Class)
	return cmp.Or(fail, &tools.Error{Class: tools.ErrorPermissionDenied, Reason: "no_approver", Message: message, Visible: true})
}

func (r *round) countUnapproved(d approval.Decision) {
	if d == approval.DecisionAllow {
		return
	}
	r.d.mu.Lock()
	defer r.d.mu.Unlock()
	r.d.unapproved++
}

// recordResolution records the resolution of a confirmation, and then tells the
// clients. An answer that can't be recorded doesn't count: the call fails.
func (r *round) recordResolution(p *pending, first approval.Reply, d approval.Decision, s approval.Scope) *tools.Error {
	p.confirm.decision, p.confirm.by, p.confirm.reason = d, first.By, first.Answer.Reason
	resolution := approval.Resolution{
		CallID: p.call.ID, RequestID: p.confirm.id, Decision: d, Scope: s, By: first.By, Client: first.Client, Reason: p.confirm.reason,
	}
	err := r.emit(ConfirmationResolved{resolution})
	if q := p.confirm.request; q != nil {
		r.d.opts.Broker.Record(q, resolution, err)
	}
	if err != nil {
		return r.cancelledError(err)
	}
	return nil
}
