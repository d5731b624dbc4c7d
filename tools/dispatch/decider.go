package dispatch

import (
	"context"
	"sync"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// consultDecider asks the operator's decider about the calls of a round that it
// covers and the policy does not deny, all at once. A call that it denies ends; one
// that it wants a person to see is confirmed, whatever the policy says.
func (r *round) consultDecider(all []*pending) {
	var covered []*pending
	var prompts []bool
	for _, p := range all {
		if !p.ended && r.d.opts.Decider.Covers(p.tool.Definition.Class) {
			prompts = append(prompts, p.confirm != nil)
			covered = append(covered, p)
			if p.confirm == nil {
				p.confirm = newConfirmation(p) // what is shown is made from it
			}
		}
	}
	if len(covered) == 0 {
		return
	}
	r.projectCalls(covered)
	answers := make([]approval.Answer, len(covered))
	var asking sync.WaitGroup
	for i, p := range covered {
		c := r.describeCall(p)
		asking.Go(func() { answers[i] = r.d.opts.Decider.Decide(r.ctx, c, prompts[i]) })
	}
	asking.Wait()
	for i, p := range covered {
		if fail := r.applyRuling(p, answers[i], prompts[i]); fail != nil {
			p.confirm = nil
			r.refuseCall(p, fail)
		}
	}
}

// applyRuling applies a decider's answer to a call. It returns why the call is
// refused, or nil.
func (r *round) applyRuling(p *pending, a approval.Answer, prompt bool) *tools.Error {
	switch {
	case r.ctx.Err() != nil:
		return r.cancelledError(context.Cause(r.ctx))
	case !p.isIntact():
		return r.tamperedError(p)
	case a.Decision == approval.DecisionAsk:
		if a.Reason != "" {
			r.warn(p, "a person is asked: "+a.Reason)
		}
		if !prompt {
			p.verdict = policy.Verdict{Mode: policy.ModePrompt, Rule: "the decider, " + p.verdict.Rule, As: p.verdict.As, Command: p.verdict.Command}
		}
		r.needConfirmation(p)
		return nil
	}
	if err := r.emit(ConfirmationResolved{decided(r.d.opts.Decider, p.call.ID, a)}); err != nil {
		return r.cancelledError(err)
	}
	p.confirm = nil
	if a.Decision == approval.DecisionAllow {
		return nil
	}
	message := "The operator's decider refuses this call."
	if a.Reason != "" {
		message += " Its reason: " + a.Reason
	}
	return &tools.Error{Class: tools.ErrorPermissionDenied, Reason: "decider", Message: message, Visible: true}
}

func decided(d *approval.Decider, callID string, a approval.Answer) approval.Resolution {
	return approval.Resolution{CallID: callID, Decision: a.Decision, Scope: approval.ScopeOnce, By: approval.ByDecider, Client: d.Name, Reason: a.Reason}
}
