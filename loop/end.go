package loop

import (
	"errors"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/dispatch"
)

// endingForCause returns the ending for the cause of a cancelled context or for an
// error of the dispatcher. An unknown error is a cancellation.
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

// endingForModelError returns the ending for a model's failure. used and window are
// the tokens of the last call and of the model's context window, or 0 if unknown.
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

// errorClass returns the class of a model's failure; [ModelOther] if it has none.
func errorClass(err error) ErrorClass {
	if failure, ok := errors.AsType[*ModelError](err); ok {
		return failure.Class
	}
	return ModelOther
}

// describeErrorClass returns the message for users about a model's failure. The
// log has the details.
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
