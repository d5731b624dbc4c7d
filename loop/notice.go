package loop

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop/boundary"
)

// NoticePrefix begins a message to the model that neither a user nor the model wrote.
const NoticePrefix = "[caisson] "

// Notices of the loop to the model. A notice is a user message that starts with
// [NoticePrefix]. Tool output is never in a user message, so it can't imitate one.
const (
	nudgeStuck = NoticePrefix + "The same calls gave the same results three times in a row. Do not repeat them: " +
		"use what they already told you, try something different, or answer with what you know."
	nudgeEmpty = NoticePrefix + "Your last answer was empty. Go on with the task, or give your final answer."
	closeStuck = NoticePrefix + "You were told that you repeat the same calls, and went on. No more tools can be used. " +
		"Give your final answer now: what is done, what is not, and what stood in the way."

	closeLimitPrefix = NoticePrefix + "The limit of "

	refusedNoTools     = "Not run: no tools can be used now."
	refusedTooMany     = "Not run: too many calls in one answer. Make fewer at a time."
	refusedInterrupted = "Interrupted: it may have run, wholly or in part. It was not run again."
	endedInterrupted   = "Interrupted: it ran to its end, but its result is lost. It was not run again."
	refusedLost        = "Not run, or without a known result: the run ended before."
	truncatedCall      = "the answer was cut at the output limit in the middle of this call, so it was not run; " +
		"do it in smaller steps"
)

// isNotice reports whether the text of a user message is a notice of the loop.
func isNotice(text string) bool { return strings.HasPrefix(text, NoticePrefix) }

// Causes of endings that no other error explains.
var errStuck = errors.New("the model repeated the same calls with the same results")

const (
	errEmptyAnswer       AnswerError = "the model gave an empty answer twice in a row"
	errCallsWithoutTools AnswerError = "the model called tools though none were offered"
)

// AnswerError is the reason why an answer of the model ends the turn with [StopProviderFailed],
// although the provider did not fail.
type AnswerError string

// Error returns the reason.
func (e AnswerError) Error() string { return string(e) }

// closeLimitMessage returns the notice that requests the closing answer when a
// limit is reached.
func closeLimitMessage(e *limits.ExceededError) boundary.Text {
	return boundary.Sprintf[boundary.Text]("%s%s is reached, so no more tools can be used. Give your final answer now: "+
		"what is done, what is not, and what should be done next.", closeLimitPrefix, boundary.Text(describeLimit(e)))
}

// refusalMessage returns the result of a call that was refused because of a limit.
func refusalMessage(e *limits.ExceededError) string {
	return fmt.Sprintf("Not run: the limit of %s is reached.", describeLimit(e))
}

// describeLimit returns a limit in words, such as "50 rounds".
func describeLimit(e *limits.ExceededError) string {
	switch e.Kind {
	case limits.KindRounds:
		return fmt.Sprintf("%d rounds", e.Limit)
	case limits.KindToolCalls:
		return fmt.Sprintf("%d tool calls", e.Limit)
	case limits.KindTokens:
		return fmt.Sprintf("%d tokens", e.Limit)
	case limits.KindCost:
		return fmt.Sprintf("%.2f US dollars", float64(e.Limit)/1e6)
	case limits.KindWallTime:
		return (time.Duration(e.Limit) * time.Millisecond).String()
	default:
		return string(e.Kind)
	}
}
