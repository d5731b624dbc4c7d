package loop

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
)

// endingForCause returns the ending for a context's cause or a dispatcher's error.
// Unknown errors count as cancellation.
func endingForCause(cause error) ending {
	if exceeded, ok := errors.AsType[*limits.ExceededError](cause); ok {
		return ending{reason: StopLimit, limit: exceeded, truncated: true, err: cause}
	}
	reason := StopCancelled
	switch {
	case errors.Is(cause, tools.ErrRecord):
		reason = StopTraceUnwritable
	case errors.Is(cause, tools.ErrSandboxStart):
		reason = StopSandboxStart
	case errors.Is(cause, tools.ErrSandboxLost):
		reason = StopSandboxLost
	case errors.Is(cause, dispatch.ErrNoApprover):
		reason = StopNoApprover
	}
	return ending{reason: reason, err: cause}
}

func endingForLimit(e *limits.ExceededError) ending {
	return ending{reason: StopLimit, limit: e, truncated: true}
}

// endingForModelError returns the ending for a model's failure. used is the number of
// tokens of the last call, and window the context window, or 0 if unknown.
func endingForModelError(err error, used, window int64) ending {
	e := ending{reason: StopProviderFailed, err: err}
	switch errorClass(err) {
	case ModelAuth:
		e.reason = StopAuth
	case ModelContextOverflow:
		e.reason = StopLimit
		e.truncated = true
		e.limit = &limits.ExceededError{Kind: limits.KindContext, Limit: window, Used: used}
	}
	return e
}

func errorClass(err error) ErrorClass {
	if failure, ok := errors.AsType[*ModelError](err); ok {
		return failure.Class
	}
	return ModelOther
}

// describeErrorClass returns the message about a failure for users. The log has
// details.
func describeErrorClass(c ErrorClass) string {
	switch c {
	case ModelRateLimit:
		return "The model's provider refused the request because of its rate limit or quota."
	case ModelAuth:
		return "The model's provider refused the key."
	case ModelServer:
		return "The model's provider had a failure of its own."
	case ModelNetwork:
		return "The model's provider could not be reached, or its answer broke off."
	case ModelContextOverflow:
		return "The conversation is longer than the model's context window."
	case ModelInvalidRequest:
		return "The model's provider refused the request as invalid."
	case ModelCancelled:
		return "The model call was cancelled."
	default:
		return "The model call failed."
	}
}

// StopReason says why a turn ended.
type StopReason string

// The stop reasons, with their usual exit statuses. docs/exit-status.md has all.
const (
	StopAnswered        StopReason = "answered"         // 0
	StopProviderFailed  StopReason = "provider_failed"  // 1
	StopStuck           StopReason = "stuck"            // 1
	StopAuth            StopReason = "auth"             // 41
	StopSandboxStart    StopReason = "sandbox_start"    // 44
	StopSandboxLost     StopReason = "sandbox_lost"     // 45
	StopLimit           StopReason = "limit"            // 53
	StopTraceUnwritable StopReason = "trace_unwritable" // 54
	StopNoApprover      StopReason = "no_approver"      // 56
	StopCancelled       StopReason = "cancelled"        // 130, 143
)

// NoticePrefix starts messages to the model that neither a user nor the model wrote.
const NoticePrefix = "[caisson] "

// Notices to the model. They are user messages that start with [NoticePrefix]. Tool
// output can't imitate them, because it is never in a user message.
const (
	nudgeStuck = NoticePrefix + "The same calls gave the same results three times in a row. Do not repeat them: " +
		"use what they already told you, try something different, or answer with what you know."
	nudgeEmpty = NoticePrefix + "Your last answer was empty. Go on with the task, or give your final answer."
	closeStuck = NoticePrefix + "You were told that you repeat the same calls, and went on. No more tools can be used. " +
		"Give your final answer now: what is done, what is not, and what stood in the way."

	closeLimitPrefix = NoticePrefix + "The limit of "

	// Texts about single calls, in place of their results.
	refusedNoTools     = "Not run: no tools can be used now."
	refusedTooMany     = "Not run: too many calls in one answer. Make fewer at a time."
	refusedInterrupted = "Interrupted: it may have run, wholly or in part. It was not run again."
	endedInterrupted   = "Interrupted: it ran to its end, but its result is lost. It was not run again."
	refusedLost        = "Not run, or without a known result: the run ended before."
	truncatedCall      = "the answer was cut at the output limit in the middle of this call, so it was not run; " +
		"do it in smaller steps"
)

func isNotice(text string) bool { return strings.HasPrefix(text, NoticePrefix) }

var errStuck = errors.New("the model repeated the same calls with the same results")

const (
	errEmptyAnswer       AnswerError = "the model gave an empty answer twice in a row"
	errCallsWithoutTools AnswerError = "the model called tools though none were offered"
)

// AnswerError says why a model's answer ends the turn with [StopProviderFailed],
// although the provider didn't fail.
type AnswerError string

func (e AnswerError) Error() string { return string(e) }

func closeLimitMessage(e *limits.ExceededError) boundary.Text {
	return boundary.Sprintf[boundary.Text]("%s%s is reached, so no more tools can be used. Give your final answer now: "+
		"what is done, what is not, and what should be done next.", closeLimitPrefix, boundary.Text(describeLimit(e)))
}

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
