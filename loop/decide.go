package loop

import (
	"slices"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop/boundary"
)

// action is the kind of a step.
type action int

const (
	// actCallModel calls the model, with tools.
	actCallModel action = iota
	// actClose calls the model for a last answer, without tools.
	actClose
	// actHandleCalls runs tool calls and refuses those over a limit.
	actHandleCalls
	// actNudge adds a notice to the model, see [NoticePrefix].
	actNudge
	// actEnd ends the turn.
	actEnd
)

// step is one step of a turn.
type step struct {
	action action
	// ending is the reason, for actClose and actEnd.
	ending ending
	// run and refuse are the calls of the last message to run and to refuse, for
	// actHandleCalls.
	run, refuse []ToolUse
	// refusal is the result of the refused calls.
	refusal string
	// exceeded is the limit for which the turn must close after the calls, if
	// any.
	exceeded *limits.ExceededError
	// message is the notice to the model, for actNudge and actClose.
	message boundary.Text
	// topic identifies the subject of a nudge, for actNudge.
	topic string
}

// maxCalls is the number of calls of one answer that are run. It is far more than
// any model intends, and low enough to bound the cost of a broken model.
const maxCalls = 256

// ending is the way in which a turn ends.
type ending struct {
	reason StopReason
	limit  *limits.ExceededError
	// truncated reports whether the model had not finished.
	truncated bool
	err       error
}

// state is the state of a turn that is not in its history.
type state struct {
	// meter and elapsed are the usage so far. They are read-only for nextStep.
	meter   *limits.Meter
	elapsed time.Duration
	// turnStart is the index in the history at which the turn began.
	turnStart int
	// hasTools reports whether tools are offered to the model.
	hasTools bool
	// unoffered reports whether the last answer called tools although its request
	// offered none.
	unoffered bool
	// callsOnly is set for a turn of [Options].Calls, without a model.
	callsOnly bool
	// closing is the turn's ending once the closing completion was requested.
	closing *ending
	// truncated reports whether the provider cut the last answer at its output
	// limit.
	truncated bool
	// lowered is the limit because of which the last answer was cut earlier than its
	// profile asks for, or nil.
	lowered *limits.ExceededError
	// emptyAnswer reports whether the last answer had neither text nor calls. Such
	// an answer is not in the history.
	emptyAnswer bool
	// refusedBy is the limit for which tool calls were refused, if any.
	refusedBy *limits.ExceededError
	// callHashes keeps what findRepetition computed.
	callHashes roundHashes
	// nudged has the topics of past nudges.
	nudged map[string]bool
}

// nextStep returns the next step of a turn. It is a pure function: a turn follows
// from its history and state, so it can be tested in a table and replayed.
func nextStep(history []Message, s state) step {
	if pending := unansweredCalls(history); len(pending) > 0 {
		return decideCalls(pending, s)
	}
	if s.closing != nil {
		return step{action: actEnd, ending: *s.closing}
	}
	if s.callsOnly && s.refusedBy != nil {
		return step{action: actEnd, ending: ending{reason: StopLimit, limit: s.refusedBy, truncated: true}}
	}
	if s.callsOnly {
		return step{action: actEnd, ending: ending{reason: StopAnswered}}
	}
	if s.truncated && s.lowered != nil && (s.emptyAnswer || history[len(history)-1].Role == RoleAssistant) {
		return step{action: actEnd, ending: ending{reason: StopLimit, limit: s.lowered, truncated: true}}
	}
	if s.emptyAnswer {
		return decideEmpty(s)
	}
	if history[len(history)-1].Role == RoleAssistant {
		// An answer without calls ends the turn, whatever finish reason the
		// provider reports.
		return step{action: actEnd, ending: ending{reason: StopAnswered, truncated: s.truncated}}
	}
	if s.unoffered {
		return decideUnoffered(history, s)
	}
	return decideRound(history, s)
}

// decideUnoffered ends a turn whose model called tools although none are offered.
// Another call would not help, so the last text is the answer.
func decideUnoffered(history []Message, s state) step {
	if lastText(history[s.turnStart:]) == "" {
		return step{action: actEnd, ending: ending{reason: StopProviderFailed, err: errCallsWithoutTools}}
	}
	return step{action: actEnd, ending: ending{reason: StopAnswered, truncated: s.truncated}}
}

// decideCalls returns the step for tool calls that have no result yet.
func decideCalls(pending []ToolUse, s state) step {
	if s.closing != nil || !s.hasTools {
		return step{action: actHandleCalls, refuse: pending, refusal: refusedNoTools}
	}
	// The results of these calls could not be sent to the model.
	if e := s.meter.Exceeded(limits.StepClosing, s.elapsed); e != nil {
		return step{action: actHandleCalls, refuse: pending, refusal: refusalMessage(e), exceeded: e}
	}
	left, limited := s.meter.LeftToolCalls()
	switch {
	case limited && left < min(int64(len(pending)), maxCalls):
		bound := *s.meter.Budget().ToolCalls
		exceeded := &limits.ExceededError{Kind: limits.KindToolCalls, Limit: bound, Used: bound}
		return step{action: actHandleCalls, run: pending[:left], refuse: pending[left:], exceeded: exceeded, refusal: refusalMessage(exceeded)}
	case len(pending) > maxCalls:
		return step{action: actHandleCalls, run: pending[:maxCalls], refuse: pending[maxCalls:], refusal: refusedTooMany}
	}
	return step{action: actHandleCalls, run: pending}
}

// topicEmpty is the topic of the nudge for an empty answer.
const topicEmpty = "empty"

// decideEmpty returns the step after an empty answer: one nudge, then the end.
func decideEmpty(s state) step {
	if s.nudged[topicEmpty] {
		return step{action: actEnd, ending: ending{reason: StopProviderFailed, truncated: s.truncated, err: errEmptyAnswer}}
	}
	if e := s.meter.Exceeded(limits.StepRound, s.elapsed); e != nil {
		return step{action: actEnd, ending: ending{reason: StopLimit, limit: e, truncated: true}}
	}
	return step{action: actNudge, message: nudgeEmpty, topic: topicEmpty}
}

// decideRound returns the step when the model is next: another call unless a
// limit is reached or the model is stuck.
func decideRound(history []Message, s state) step {
	if e := s.meter.Exceeded(limits.StepClosing, s.elapsed); e != nil {
		return step{action: actEnd, ending: ending{reason: StopLimit, limit: e, truncated: true}}
	}
	if s.refusedBy != nil {
		return closingStep(ending{reason: StopLimit, limit: s.refusedBy, truncated: true})
	}
	if e := s.meter.Exceeded(limits.StepRound, s.elapsed); e != nil {
		return closingStep(ending{reason: StopLimit, limit: e, truncated: true})
	}
	if topic, stuck := findRepetition(history[s.turnStart:], s.callHashes); stuck {
		if s.nudged[topic] {
			return closingStep(ending{reason: StopStuck, truncated: true, err: errStuck})
		}
		return step{action: actNudge, message: nudgeStuck, topic: topic}
	}
	return step{action: actCallModel}
}

// closingStep returns the step that requests the last answer.
func closingStep(e ending) step {
	message := boundary.Text(closeStuck)
	if e.limit != nil {
		message = closeLimitMessage(e.limit)
	}
	return step{action: actClose, ending: e, message: message}
}

// unansweredCalls returns the tool uses of the last assistant message that have no
// result yet, in order.
func unansweredCalls(history []Message) []ToolUse {
	done := map[string]bool{}
	for _, m := range slices.Backward(history) {
		switch m.Role {
		case RoleTool:
			for _, b := range m.Blocks {
				if b.ToolResult != nil {
					done[b.ToolResult.ToolUseID] = true
				}
			}
		case RoleAssistant:
			var out []ToolUse
			for _, u := range m.toolUses() {
				if !done[u.ID] {
					out = append(out, u)
				}
			}
			return out
		}
	}
	return nil
}
