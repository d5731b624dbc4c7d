package loop

import (
	"strings"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// AnswerInterrupted adds a result, with note, for each call of the last answer that has
// none because its process ended. Such calls are never run again. It reports each
// result as [MessageAdded], and before that each call that is not in ended as
// [CallRefused].
func AnswerInterrupted(history []Message, ended map[string]bool, note string, emit func(Event) error) ([]Message, error) {
	for _, u := range unansweredCalls(history) {
		text := refusedInterrupted
		if ended[u.ID] {
			text = endedInterrupted
		} else if err := emit(CallRefused{CallID: u.ID, Name: u.Name, Class: tools.ErrorCancelled, Reason: "interrupted", Message: text}); err != nil {
			return history, err
		}
		if note != "" {
			text += " " + note
		}
		m := refusedResult(u, text)
		history = append(history, m)
		if err := emit(MessageAdded{Message: m}); err != nil {
			return history, err
		}
	}
	return history, nil
}

// UnansweredCalls returns the IDs of the last answer's calls that have no result.
func UnansweredCalls(history []Message) []string {
	var ids []string
	for _, u := range unansweredCalls(history) {
		ids = append(ids, u.ID)
	}
	return ids
}

// restoreState restores an unfinished turn's state from the notices in its messages.
func (s *state) restoreState(history []Message) {
	for i, m := range history[s.turnStart:] {
		if m.Role == RoleAssistant {
			delete(s.nudged, topicEmpty)
		}
		if m.Role != RoleUser {
			continue
		}
		switch text := m.joinedText(); {
		case text == nudgeEmpty:
			s.nudged[topicEmpty] = true
		case text == nudgeStuck:
			if topic, ok := findRepetition(history[s.turnStart:s.turnStart+i], s.callHashes); ok {
				s.nudged[topic] = true
			}
		case text == closeStuck:
			s.closing = &ending{reason: StopStuck, truncated: true, err: errStuck}
		case strings.HasPrefix(text, closeLimitPrefix):
			if e := s.reachedLimit(); e != nil {
				s.closing = new(endingForLimit(e))
			}
		}
	}
	if n := len(history); n > 0 && history[n-1].Role == RoleUser {
		s.closing = nil // the last answer is missing and is requested again
	}
}

// reachedLimit returns the limit that closed the turn, or nil if it has been raised
// since.
func (s *state) reachedLimit() *limits.ExceededError {
	if e := s.meter.Exceeded(limits.StepRound, s.elapsed); e != nil {
		return e
	}
	return s.meter.Exceeded(limits.StepToolCall, s.elapsed)
}
