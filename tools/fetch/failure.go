package fetch

import (
	"context"
	"errors"
	"fmt"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// failure is the error of a fetch. Its message is for the model.
type failure struct {
	reason, message string
	// denied reports whether the egress policy refused the fetch. Such failures are
	// recorded.
	denied bool
	// addr is the refused address. redirect reports whether the URL came from a
	// redirect.
	addr     string
	redirect bool
	// outage reports whether the host is at fault, so that its circuit breaker
	// counts it.
	outage bool
	err    error
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

// asFailure returns err as a *failure, or an error that wraps the cause if ctx was
// cancelled.
func asFailure(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, errTimeout) {
		return fmt.Errorf("fetch: %w", cause)
	}
	if f, ok := errors.AsType[*failure](err); ok {
		if f.outage && f.reason != reasonTimeout && context.Cause(ctx) != nil {
			return networkFailure(ctx, f) // f is a consequence of the timeout
		}
		return f
	}
	if bad, ok := errors.AsType[*rule.Error](err); ok {
		return newDenied(bad.Reason, "%s", bad.Message)
	}
	if over, ok := errors.AsType[*limits.ExceededError](err); ok {
		return budgetFailure(over)
	}
	return networkFailure(ctx, err)
}

func budgetFailure(over *limits.ExceededError) *failure {
	f := newDenied(string(over.Kind), "this session's egress budget is used up (%s: %d of %d); fetch nothing more that is not known already",
		over.Kind, over.Used, over.Limit)
	if over.Kind == limits.KindEgressHosts {
		f.message = fmt.Sprintf("this session may fetch from %d hosts, and has; only those can be fetched from", over.Limit)
	}
	f.err = over
	return f
}

// toolError returns a failure as a [tools.Error], and other errors unchanged.
func toolError(err error) error {
	f, ok := errors.AsType[*failure](err)
	if !ok {
		return err
	}
	// Parts may come from the server, such as a name in a certificate.
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
