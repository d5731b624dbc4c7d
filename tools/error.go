package tools

import "errors"

// Errors that end the run instead of travelling in a result; a tool, or the
// adapter that it calls, returns one that wraps them, and
// [dispatch.Dispatcher].Round passes it on.
var (
	// ErrSandboxStart: the container could not be started.
	ErrSandboxStart = errors.New("sandbox could not start")
	// ErrSandboxLost: the container is gone and can't be had again.
	ErrSandboxLost = errors.New("sandbox lost")
	// ErrRecord: an event could not be recorded, so nothing more may run.
	ErrRecord = errors.New("record could not be written")
)

// ErrorClass is the closed set of the dispatcher specification, docs/internal/specification.md §6.
type ErrorClass string

// The classes of tool.failed, and the one of tool.input_invalid.
const (
	ErrorNotFound            ErrorClass = "not_found"
	ErrorValidation          ErrorClass = "validation_error"
	ErrorPermissionDenied    ErrorClass = "permission_denied"
	ErrorUserDenied          ErrorClass = "user_denied"
	ErrorTimeout             ErrorClass = "timeout"
	ErrorExecution           ErrorClass = "execution_error"
	ErrorCancelled           ErrorClass = "cancelled"
	ErrorConfirmationTimeout ErrorClass = "confirmation_timeout"
)

// Error is a failure that the model is told about in its own words. The zero
// value is not useful.
type Error struct {
	Class ErrorClass
	// Reason tells causes of one class apart: "mode_deny",
	// "no_approver", "workspace_escape", …; it is recorded.
	Reason string
	// Message is for the model: what is wrong and what would help.
	Message string
	// Visible allows Message to be shown; otherwise the model gets a
	// generic text with an error id, and Message and Err go to the log.
	Visible bool
	// Partial is the output until the failure, bounded.
	Partial string
	// Err is the cause, for the log.
	Err error
}

// Error returns the message, or the class if there is none.
func (e *Error) Error() string {
	if e.Message == "" {
		return string(e.Class)
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
