package loop

import (
	"slices"
	"time"

	"github.com/caisson-run/caisson/limits"
)

// action is what a step does.
type action int

const (
	// actCallModel asks the model, with tools.
	actCallModel action = iota
	// actClose asks it for a last answer, without tools.
	actClose
	// actHandleCalls runs tool calls and refuses those over a limit.
	actHandleCalls
	// actNudge tells the model something as a message of ours.
	actNudge
	// actEnd ends the turn.
	actEnd
)

// step is what comes next.
type step struct {
	action action
	// ending says why, for actClose and actEnd.
	ending ending
	// run and refuse split the calls of the last message, for actCall;
	// refusal is what the refused ones are told, and over the limit that the
	// turn must close for, if any.
	run, refuse []ToolUse
	refusal     string
	exceeded    *limits.ExceededError
	// message is the message of actNudge and of actClose; about marks what a
	// nudge was about.
	message, topic string
}

// maxCalls is how many calls of one answer are run: far more than any model
// makes on purpose, and few enough that a broken one stays cheap.
const maxCalls = 256

// ending is why a turn ends.
type ending struct {
	reason StopReason
	limit  *limits.ExceededError
	// truncated says that the model was not done.
	truncated bool
	err       error
}

// state is what the history does not tell.
type state struct {
	// meter and elapsed say what is used; decide only reads them.
	meter   *limits.Meter
	elapsed time.Duration
	// turnStart is the index in the history at which this turn began.
	turnStart int
	// hasTools says that the model has tools.
	hasTools bool
	// closing is set once the closing completion was asked for.
	closing *ending
	// truncated says that the provider cut the last answer at its output limit.
	truncated bool
	// emptyAnswer says that the last answer said nothing and called nothing, so that
	// it is not in the history.
	emptyAnswer bool
	// refusedBy is set once a call was refused for the tool-call limit.
	refusedBy *limits.ExceededError
	// nudged holds what the model was told already.
	nudged map[string]bool
}

// nextStep says what comes next. It depends on its arguments alone and changes
// neither: everything that a turn does follows from the history, so that it can
// be tested in a table and replayed.
func nextStep(history []Message, s state) step {
	if pending := unansweredCalls(history); len(pending) > 0 {
		return decideCalls(pending, s)
	}
	if s.closing != nil {
		return step{action: actEnd, ending: *s.closing}
	}
	if s.emptyAnswer {
		return decideEmpty(s)
	}
	if history[len(history)-1].Role == RoleAssistant {
		// That there are no calls is what ends a turn, not what the provider
		// calls its answer.
		return step{action: actEnd, ending: ending{reason: StopAnswered, truncated: s.truncated}}
	}
	if !s.hasTools && hasToolResult(history[s.turnStart:]) {
		return decideUnoffered(history, s)
	}
	return decideRound(history, s)
}

// decideUnoffered ends a turn whose model called tools though it has none:
// asking it again would not help, so what it said is the answer.
func decideUnoffered(history []Message, s state) step {
	if lastText(history[s.turnStart:]) == "" {
		return step{action: actEnd, ending: ending{reason: StopProviderFailed, err: errCallsWithoutTools}}
	}
	return step{action: actEnd, ending: ending{reason: StopAnswered, truncated: s.truncated}}
}

// decideCalls decides on tool calls that have no result yet.
func decideCalls(pending []ToolUse, s state) step {
	if s.closing != nil || !s.hasTools {
		return step{action: actHandleCalls, refuse: pending, refusal: refusedNoTools}
	}
	// What comes of these calls could never be sent back.
	if e := s.meter.Exceeded(limits.StepClosing, s.elapsed); e != nil {
		return step{action: actHandleCalls, refuse: pending, refusal: refusalMessage(e)}
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

// topicEmpty marks the nudge for an empty answer.
const topicEmpty = "empty"

// decideEmpty gives a model that said nothing at all one more chance.
func decideEmpty(s state) step {
	if s.nudged[topicEmpty] {
		return step{action: actEnd, ending: ending{reason: StopProviderFailed, truncated: s.truncated, err: errEmptyAnswer}}
	}
	if e := s.meter.Exceeded(limits.StepRound, s.elapsed); e != nil {
		return step{action: actEnd, ending: ending{reason: StopLimit, limit: e, truncated: true}}
	}
	return step{action: actNudge, message: nudgeEmpty, topic: topicEmpty}
}

// decideRound decides whether the model is asked again.
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
	if topic, stuck := findRepetition(history[s.turnStart:]); stuck {
		if s.nudged[topic] {
			return closingStep(ending{reason: StopStuck, truncated: true, err: errStuck})
		}
		return step{action: actNudge, message: nudgeStuck, topic: topic}
	}
	return step{action: actCallModel}
}

// closingStep asks for the last answer.
func closingStep(e ending) step {
	message := closeStuck
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

// hasToolResult says that a tool result is among the messages.
func hasToolResult(messages []Message) bool {
	for _, m := range messages {
		if m.Role == RoleTool {
			return true
		}
	}
	return false
}
