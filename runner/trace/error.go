package trace

import "fmt"

// Reason is the reason of an [Error].
type Reason string

// The reasons.
const (
	NoSessions   Reason = "no_sessions"   // there are none yet
	NoSession    Reason = "no_session"    // no session has that id
	ManySessions Reason = "many_sessions" // several ids begin with it
	NotListed    Reason = "not_listed"    // the directory of the sessions can't be read
	NoRecords    Reason = "no_records"    // the session wrote none, or they were removed
	Unreadable   Reason = "unreadable"
	NotExported  Reason = "not_exported" // its messages were removed
)

// Error reports that a session can't be found, or that its records can't be read.
type Error struct {
	Reason Reason
	// Name is the id or path that was looked for, or the directory of the sessions.
	Name string
	// Matches is set with ManySessions.
	Matches []string
	Err     error
}

// Error describes the reason.
func (e *Error) Error() string {
	switch e.Reason {
	case NoSessions:
		return "there are no sessions yet"
	case NoSession:
		return "there is no session " + e.Name
	case ManySessions:
		return fmt.Sprintf("%d sessions begin with %s", len(e.Matches), e.Name)
	case NotListed:
		return fmt.Sprintf("the sessions in %s can't be listed: %v", e.Name, e.Err)
	case NoRecords:
		return "the session " + e.Name + " has no records"
	case NotExported:
		return fmt.Sprintf("the session %s can't be exported: %v", e.Name, e.Err)
	}
	return fmt.Sprintf("the records of %s can't be read: %v", e.Name, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
