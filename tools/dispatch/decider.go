package dispatch

import (
	"context"
	"slices"
	"sync"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// consultDecider asks the operator's decider about the calls that it covers, all at
// once. A call that it refuses, or allows without a person, has a resolved
// confirmation afterwards.
func (r *round) consultDecider(all []*pending) {
	var covered []*pending
	for _, p := range all {
		if !p.ended && r.d.opts.Decider.Covers(p.tool.Definition) {
			if p.confirm == nil {
				p.confirm = newConfirmation(p) // projectCalls and describeCall need one
			}
			covered = append(covered, p)
		}
	}
	r.projectCalls(covered)
	shown := make([]approval.Confirmation, len(covered))
	answers := make([]approval.Answer, len(covered))
	failures := make([]error, len(covered))
	var asking sync.WaitGroup
	for i, p := range covered {
		p.confirm.ruled = true
		shown[i] = r.describeCall(p)
		c := approval.Case{Confirmation: shown[i], Dir: r.d.opts.Workspace, Prompt: p.verdict.Mode != policy.ModeAuto, Commands: p.commands}
		if def := p.tool.Definition; def.Commands != nil && !def.Typed {
			c.Commands = def.Commands(p.call.Input)
		}
		asking.Go(func() { answers[i], failures[i] = r.d.opts.Decider.Decide(r.ctx, c) })
	}
	asking.Wait()
	for i, p := range covered {
		r.applyRuling(p, shown[i], answers[i], failures[i])
	}
}

// applyRuling applies a decider's answer about what it was shown to a call. failed is
// why there was no valid one; a then has the decision for that.
func (r *round) applyRuling(p *pending, shown approval.Confirmation, a approval.Answer, failed error) {
	prompt := p.verdict.Mode != policy.ModeAuto
	switch {
	case r.ctx.Err() != nil:
		p.confirm.resolve(r.cancelledError(context.Cause(r.ctx)))
		return
	case !p.isIntact():
		p.confirm.resolve(r.tamperedError(p))
		return
	case a.Decision == approval.DecisionAllow && prompt && !r.mayRuleAlone(p):
		return // an earlier answer or a person decides
	case a.Decision == approval.DecisionAsk:
		p.mustAsk, p.confirm.once = true, false
		p.verdict.Mode = policy.ModePrompt
		p.remember = p.answerKey()
		if !prompt {
			p.verdict.Rule = "the decider, " + p.verdict.Rule
		}
		if failed != nil {
			r.warn(p, failed.Error())
		} else if a.Reason != "" {
			r.warn(p, "the decider wants a person to see this call: "+a.Reason)
		}
		return
	}
	fail := refusedByDecider(a, failed)
	p.confirm.decision, p.confirm.by = a.Decision, approval.ByDecider
	if _, err := r.d.reportRuling(shown, a, failed, r.emit); err != nil {
		fail = r.cancelledError(err)
	}
	p.confirm.resolve(fail)
}

// mayRuleAlone reports whether the decider's allow is enough for a call that the policy
// asks about. It isn't where a person has refused such calls.
func (r *round) mayRuleAlone(p *pending) bool {
	if !r.d.opts.Decider.MayAllow || p.dangerous != "" || p.tool.Definition.RequiresAdmin || slices.Contains(p.commands, policy.AnyCommand) {
		return false
	}
	d, found := r.earlierAnswer(p)
	return !found || d.Decision == approval.DecisionAllow
}

// refusedByDecider returns why a call is refused, or nil if it is allowed.
func refusedByDecider(a approval.Answer, failed error) *tools.Error {
	if a.Decision == approval.DecisionAllow {
		return nil
	}
	message := "The operator's decider refuses this call."
	switch {
	case failed != nil:
		message = "The operator's decider gave no valid answer about this call, so it is refused."
	case a.Reason != "":
		message += " Its reason: " + a.Reason
	}
	return &tools.Error{Class: tools.ErrorPermissionDenied, Reason: "decider", Message: message, Visible: true, Err: failed}
}

// reportRuling reports a decider's final answer, with what it is about.
func (d *Dispatcher) reportRuling(c approval.Confirmation, a approval.Answer, failed error, emit func(Event) error) (approval.Resolution, error) {
	c.Seq = int(d.confirmations.Add(1))
	r := approval.Resolution{CallID: c.CallID, RequestID: c.ID, Decision: a.Decision, Scope: approval.ScopeOnce, By: approval.ByDecider, Client: d.opts.Decider.Name, Reason: a.Reason}
	if failed != nil {
		r.Reason, _ = tools.Display(failed.Error())
	}
	if err := emit(ConfirmationRequested{c}); err != nil {
		return r, err
	}
	return r, emit(ConfirmationResolved{r})
}
