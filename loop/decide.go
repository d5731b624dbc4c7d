package loop

import (
	"slices"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop/boundary"
)

type action int

const (
	actCallModel action = iota
	// actClose requests a last answer, without tools.
	actClose
	// actHandleCalls runs tool calls, and refuses those beyond a limit.
	actHandleCalls
	// actNudge sends the model a notice; see [NoticePrefix].
	actNudge
	actEnd
)

type step struct {
	action action
	// ending is set for actClose and actEnd.
	ending ending
	// run and refuse are the last message's calls to run and to refuse, for
	// actHandleCalls.
	run, refuse []ToolUse
	refusal     string
	// exceeded is the limit for which the turn must close after the calls, or nil.
	exceeded *limits.ExceededError
	// message is the notice for actNudge and actClose.
	message boundary.Text
	// topic identifies what an actNudge is about.
	topic string
}

// maxCalls bounds the calls of one answer that are run: more than any model intends,
// but few enough to bound the cost of a broken one.
const maxCalls = 256

type ending struct {
	reason StopReason
	limit  *limits.ExceededError
	// truncated reports whether the model was still working.
	truncated bool
	err       error
}

// state is the part of a turn's state that is not in its history.
type state struct {
	// meter and elapsed are the usage so far. nextStep only reads them.
	meter     *limits.Meter
	elapsed   time.Duration
	turnStart int
	hasTools  bool
	// unoffered reports whether the last answer called tools although none were
	// offered.
	unoffered bool
	// callsOnly is set for a turn of [Options].Calls.
	callsOnly bool
	// closing is set once the closing completion was requested.
	closing *ending
	// truncated reports whether the provider cut the last answer at its output limit.
	truncated bool
	// lowered is the limit that cut the last answer earlier than its profile does, or
	// nil.
	lowered *limits.ExceededError
	// emptyAnswer reports whether the last answer had neither text nor calls. Such
	// answers are not added to the history.
	emptyAnswer bool
	// refusedBy is the limit for which calls were refused, or nil.
	refusedBy  *limits.ExceededError
	callHashes roundHashes
	nudged     map[string]bool
}

// nextStep returns a turn's next step. It is a pure function of history and state, so
// that tests can use tables and turns can be replayed.
func nextStep(history []Message, s state) step {
	if pending := unansweredCalls(history); len(pending) > 0 {
		return decideCalls(pending, s)
	}
	if s.closing != nil {
		return endStep(*s.closing)
	}
	if s.callsOnly && s.refusedBy != nil {
		return endStep(endingForLimit(s.refusedBy))
	}
	if s.callsOnly {
		return endStep(ending{reason: StopAnswered})
	}
	if s.truncated && s.lowered != nil && (s.emptyAnswer || history[len(history)-1].Role == RoleAssistant) {
		return endStep(endingForLimit(s.lowered))
	}
	if s.emptyAnswer {
		return decideEmpty(s)
	}
	if history[len(history)-1].Role == RoleAssistant {
		// The provider's finish reason doesn't matter: an answer without calls ends the
		// turn.
		return endStep(ending{reason: StopAnswered, truncated: s.truncated})
	}
	if s.unoffered {
		return decideUnoffered(history, s)
	}
	return decideRound(history, s)
}

// decideUnoffered ends a turn whose model called tools although none are offered.
// Asking again would not help, so the last text is the answer.
func decideUnoffered(history []Message, s state) step {
	if lastText(history[s.turnStart:]) == "" {
		return endStep(ending{reason: StopProviderFailed, err: errCallsWithoutTools})
	}
	return endStep(ending{reason: StopAnswered, truncated: s.truncated})
}

func decideCalls(pending []ToolUse, s state) step {
	if s.closing != nil || !s.hasTools {
		return step{action: actHandleCalls, refuse: pending, refusal: refusedNoTools}
	}
	// The results could not be sent to the model.
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

const topicEmpty = "empty"

// decideEmpty handles an empty answer: it nudges once, then ends the turn.
func decideEmpty(s state) step {
	if s.nudged[topicEmpty] {
		return endStep(ending{reason: StopProviderFailed, truncated: s.truncated, err: errEmptyAnswer})
	}
	if e := s.meter.Exceeded(limits.StepRound, s.elapsed); e != nil {
		return endStep(endingForLimit(e))
	}
	return step{action: actNudge, message: nudgeEmpty, topic: topicEmpty}
}

func decideRound(history []Message, s state) step {
	if e := s.meter.Exceeded(limits.StepClosing, s.elapsed); e != nil {
		return endStep(endingForLimit(e))
	}
	if s.refusedBy != nil {
		return closingStep(endingForLimit(s.refusedBy))
	}
	if e := s.meter.Exceeded(limits.StepRound, s.elapsed); e != nil {
		return closingStep(endingForLimit(e))
	}
	if topic, stuck := findRepetition(history[s.turnStart:], s.callHashes); stuck {
		if s.nudged[topic] {
			return closingStep(ending{reason: StopStuck, truncated: true, err: errStuck})
		}
		return step{action: actNudge, message: nudgeStuck, topic: topic}
	}
	return step{action: actCallModel}
}

func endStep(e ending) step { return step{action: actEnd, ending: e} }

func closingStep(e ending) step {
	message := boundary.Text(closeStuck)
	if e.limit != nil {
		message = closeLimitMessage(e.limit)
	}
	return step{action: actClose, ending: e, message: message}
}

// unansweredCalls returns the last assistant message's calls that have no result yet.
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
