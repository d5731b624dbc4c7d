package trace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
)

// Session locates one session's records. It holds no open file.
type Session struct {
	// ID is the session's ID, or the base name of a file given by its path.
	ID string
	// Dir has the files of long values.
	Dir  string
	Path string
	// Pruned reports that retention has removed all but the audit records.
	Pruned bool
}

// Last is the name of the session that began last.
const Last = "last"

// Find returns the session called name: an ID or a unique prefix of one,
// [Last], or the path of a session's directory or trace, which has a separator
// or ends in .jsonl. Errors are of type [*Error].
func Find(stateDir, name string) (Session, error) {
	if strings.ContainsRune(name, filepath.Separator) || strings.HasSuffix(name, ".jsonl") {
		return sessionAtPath(name)
	}
	if name == Last {
		names, err := listSessions(stateDir)
		if err != nil {
			return Session{}, err
		}
		for _, id := range slices.Backward(names) {
			if s, err := sessionInDir(sessiondir.Path(stateDir, id)); err == nil {
				return s, nil
			}
		}
		return Session{}, &Error{Reason: NoSessions}
	}
	names, err := sessiondir.Find(stateDir, name)
	if err != nil {
		return Session{}, notListed(stateDir, err)
	}
	switch len(names) {
	case 0:
		return Session{}, &Error{Reason: NoSession, Name: name}
	case 1:
		return sessionInDir(sessiondir.Path(stateDir, names[0]))
	}
	return Session{}, &Error{Reason: ManySessions, Name: name, Matches: names}
}

func listSessions(stateDir string) ([]string, error) {
	names, err := sessiondir.List(stateDir)
	if err != nil {
		return nil, notListed(stateDir, err)
	}
	return names, nil
}

func notListed(stateDir string, err error) error {
	return &Error{Reason: NotListed, Name: filepath.Dir(sessiondir.Path(stateDir, "x")), Err: err}
}

func sessionInDir(dir string) (Session, error) {
	s := Session{ID: filepath.Base(dir), Dir: dir, Path: filepath.Join(dir, record.TraceFile)}
	_, err := os.Lstat(s.Path)
	if err == nil {
		return s, nil
	}
	path := filepath.Join(dir, record.AuditFile)
	if _, err := os.Lstat(path); err == nil {
		s.Path, s.Pruned = path, true
		return s, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return s, &Error{Reason: Unreadable, Name: s.ID, Err: err}
	}
	return s, &Error{Reason: NoRecords, Name: s.ID, Err: fs.ErrNotExist}
}

func sessionAtPath(path string) (Session, error) {
	path, err := filepath.Abs(path)
	if err == nil {
		var info fs.FileInfo
		if info, err = os.Stat(path); err == nil && info.IsDir() {
			return sessionInDir(path)
		}
	}
	if err != nil {
		return Session{}, &Error{Reason: Unreadable, Name: path, Err: err}
	}
	dir, name := filepath.Split(path)
	dir = filepath.Clean(dir)
	s := Session{ID: name, Dir: dir, Path: path, Pruned: name == record.AuditFile}
	if name == record.TraceFile || name == record.AuditFile {
		s.ID = filepath.Base(dir)
	}
	return s, nil
}

// openFile opens the records. In a running session, they end with what has been
// written so far. Errors are of type [*Error].
func (s Session) openFile() (*os.File, error) {
	f, err := record.OpenRegular(s.Path)
	if err != nil {
		return nil, &Error{Reason: Unreadable, Name: s.ID, Err: err}
	}
	return f, nil
}

// readFrom returns a reader of the part of a file between two places.
func readFrom(f *os.File, at record.Position, end int64) *record.Reader {
	return record.ResumeReader(io.NewSectionReader(f, at.Offset, end-at.Offset), at)
}

// Reason is the reason of an [Error].
type Reason string

// The reasons.
const (
	NoSessions   Reason = "no_sessions"   // there are none yet
	NoSession    Reason = "no_session"    // no session has that ID
	ManySessions Reason = "many_sessions" // several IDs begin with it
	NotListed    Reason = "not_listed"    // the sessions directory can't be read
	NoRecords    Reason = "no_records"    // the session wrote none, or they were removed
	Unreadable   Reason = "unreadable"
	NotExported  Reason = "not_exported" // its messages were removed
	NotAttested  Reason = "not_attested" // it can't be described, or an attestation is not about it
)

// Error reports that a session can't be found, or that its records can't be
// read.
type Error struct {
	Reason Reason
	// Name is the ID or path that was looked for, or the sessions directory.
	Name string
	// Matches is set with ManySessions.
	Matches []string
	Err     error
}

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
	case NotAttested:
		return fmt.Sprintf("the session %s is not attested: %v", e.Name, e.Err)
	}
	return fmt.Sprintf("the records of %s can't be read: %v", e.Name, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }
