package runner

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/caisson-run/caisson/runner/record"
)

// User is a user who acts in a session.
type User struct {
	// Name is the label that records show, such as http:alice or uid:1000; ""
	// is an unknown user.
	Name string
	// Admin reports whether the user may use tools that require an administrator.
	Admin bool
}

// LocalUser returns the label of the user that this process runs as.
func LocalUser() string { return fmt.Sprintf("uid:%d", os.Geteuid()) }

// CancelledByUser is the cause of a turn that a user cancelled.
type CancelledByUser struct{ Client string }

// Error names the user.
func (c *CancelledByUser) Error() string { return "cancelled by " + c.Client }

// cancellation returns what the record of a cancelled turn contains about its cause.
func cancellation(ctx context.Context) record.TurnCancelled {
	cause := context.Cause(ctx)
	if i, ok := errors.AsType[*Interrupted](cause); ok {
		return record.TurnCancelled{Reason: i.Error(), By: "signal"}
	}
	if c, ok := errors.AsType[*CancelledByUser](cause); ok {
		return record.TurnCancelled{Reason: "cancelled", By: "user", Client: c.Client}
	}
	return record.TurnCancelled{Reason: "cancelled", By: "session"}
}
