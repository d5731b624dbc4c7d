package loop

import (
	"errors"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// endingForCause maps what ended the context, or what the dispatcher returned, to a
// stop reason. What none of the known errors explains is a cancellation.
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
	case errors.Is(cause, tools.ErrNoApprover):
		reason = StopNoApprover
	}
	return ending{reason: reason, err: cause}
}

// endingForModelError maps a model's failure to a stop reason. used and window are the
// tokens of the last call and of the model's context, where they are known.
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

// errorClass is the class of a model's failure, other where it has none.
func errorClass(err error) ErrorClass {
	if failure, ok := errors.AsType[*ModelError](err); ok {
		return failure.Class
	}
	return ModelOther
}

// describeErrorClass is what a user sees of a model's failure; the detail is in the log.
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
