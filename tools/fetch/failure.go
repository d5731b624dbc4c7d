package fetch

import (
	"context"
	"errors"
	"fmt"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
)

// failure is why there is no response. Its message is for the model.
type failure struct {
	reason, message string
	// denied says that the egress policy refused; it is then recorded.
	denied bool
	// addr is the address that was refused; redirect says that a server named
	// the URL.
	addr     string
	redirect bool
	// outage says that the host is at fault, which its breaker counts.
	outage bool
	// err is the cause, for the log.
	err error
}

func (f *failure) Error() string { return f.message }

func (f *failure) Unwrap() error { return f.err }

func newDenied(reason, format string, args ...any) *failure {
	return &failure{reason: reason, message: fmt.Sprintf(format, args...), denied: true}
}

func newFailure(reason, format string, args ...any) *failure {
	return &failure{reason: reason, message: fmt.Sprintf(format, args...)}
}

func newOutage(err error, reason, format string, args ...any) *failure {
	return &failure{reason: reason, message: fmt.Sprintf(format, args...), outage: true, err: err}
}

// asFailure gives any error of a fetch a reason and a sentence.
func asFailure(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errTimeout) {
		return fmt.Errorf("fetch: %w", cause)
	}
	if f, ok := errors.AsType[*failure](err); ok {
		if f.outage && f.reason != reasonTimeout && context.Cause(ctx) != nil {
			return networkFailure(ctx, f) // what it was doing when its time was up
		}
		return f
	}
	if bad, ok := errors.AsType[*urlError](err); ok {
		return newDenied(bad.reason, "%s", bad.message)
	}
	if over, ok := errors.AsType[*limits.ExceededError](err); ok {
		return budgetFailure(over)
	}
	return networkFailure(ctx, err)
}

// overBudget is a limit of the session's egress, which nothing mends.
func budgetFailure(over *limits.ExceededError) *failure {
	f := newDenied(string(over.Kind), "this session's egress budget is used up (%s: %d of %d); fetch nothing more that is not known already",
		over.Kind, over.Used, over.Limit)
	if over.Kind == limits.KindEgressHosts {
		f.message = fmt.Sprintf("this session may fetch from %d hosts, and has; only those can be fetched from", over.Limit)
	}
	f.err = over
	return f
}

// toolError words an error for the dispatcher: a refusal of the policy is a
// denial, anything else is for the model to mend.
func toolError(err error) error {
	f, ok := errors.AsType[*failure](err)
	if !ok {
		return err
	}
	// Parts of it may be a server's: a name in a certificate, a line of its answer.
	message, _ := tools.Display(f.message)
	out := &tools.Error{Class: tools.ErrorExecution, Reason: f.reason, Message: "Not fetched: " + message + ".", Visible: true, Err: err}
	switch {
	case f.denied:
		out.Class = tools.ErrorPermissionDenied
	case f.reason == reasonTimeout:
		out.Class = tools.ErrorTimeout
	}
	return out
}
