package sessiondir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// OpenChanges opens the layers of the overlay session whose ID is, or alone begins with, session.
// The caller closes them. The error is a [ChangesError], an [UnchangedError] or a
// [state.DirError].
func OpenChanges(stateDir, session string) (*overlay.Layers, error) {
	names, err := Find(stateDir, session)
	if err != nil {
		return nil, stateError(stateDir, "can't be read: "+err.Error(), err)
	}
	switch len(names) {
	case 0:
		return nil, &ChangesError{Reason: NoSession, Session: session, StateDir: stateDir}
	case 1:
	default:
		return nil, &ChangesError{Reason: ManySessions, Session: session, Matches: names}
	}
	l, err := overlay.Open(filepath.Join(Path(stateDir, names[0]), OverlayDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &ChangesError{Reason: NoneKept, Session: names[0], Err: err}
	}
	if err != nil {
		return nil, &ChangesError{Reason: Unreadable, Session: names[0], StateDir: stateDir, Err: err}
	}
	if l.Info().State != overlay.Kept {
		return nil, goneError(l.Info(), "")
	}
	markChanged(Path(stateDir, names[0]))
	return l, nil
}

// OpenLastChanges opens the layers of the newest overlay session on a workspace, which path names
// in messages. It skips sessions whose changes Caisson itself discarded: checks, and attempts that
// lost against another. Errors are as for [OpenChanges]. If an older session has kept its
// changes, the error names it.
func OpenLastChanges(stateDir string, dir *os.File, path string) (*overlay.Layers, error) {
	names, err := sessionNames(stateDir)
	if err != nil {
		return nil, err
	}
	var newest *overlay.Info
	for _, name := range slices.Backward(names) { // IDs sort by time
		l, err := overlay.Open(filepath.Join(Path(stateDir, name), OverlayDir))
		if err != nil || l.Same(dir) != nil {
			continue
		}
		switch info := l.Info(); {
		case info.State == overlay.Discarded && info.By == "":
		case info.State == overlay.Kept && info.Recorded && newest == nil:
			markChanged(Path(stateDir, name))
			return l, nil
		case info.State == overlay.Kept && info.Recorded:
			return nil, goneError(*newest, info.Session)
		case newest == nil:
			newest = &info
		}
	}
	if newest != nil {
		return nil, goneError(*newest, "")
	}
	return nil, &ChangesError{Reason: NoChangesHere, Workspace: path}
}

func sessionNames(stateDir string) ([]string, error) {
	names, err := List(stateDir)
	if err != nil {
		return nil, stateError(stateDir, "can't be read: "+err.Error(), err)
	}
	return names, nil
}

// ChangesReason tells why changes can't be opened.
type ChangesReason string

// The reasons.
const (
	NoChangesHere ChangesReason = "none_here"     // no overlay session worked on the workspace
	NoSession     ChangesReason = "no_session"    // no session has that ID
	ManySessions  ChangesReason = "many_sessions" // several IDs begin with it
	NoneKept      ChangesReason = "none_kept"     // the session had no overlay, or ran nothing
	Unreadable    ChangesReason = "unreadable"
	ChangesGone   ChangesReason = "gone" // they were applied, discarded or removed
)

// ChangesError reports that the changes of a session can't be opened.
type ChangesError struct {
	Reason ChangesReason
	// Session is the requested ID, or the session's.
	Session string
	// Workspace is set with NoChangesHere, StateDir with NoSession and Unreadable, Matches with
	// ManySessions, State and At with ChangesGone. Older is an older session on the workspace
	// that has kept its changes, or "".
	Workspace, StateDir string
	Matches             []string
	Older               string
	State               overlay.State
	At                  time.Time
	Err                 error
}

func (e *ChangesError) Error() string {
	switch e.Reason {
	case NoChangesHere:
		return "no session in overlay mode has worked on " + e.Workspace
	case NoSession:
		return "there is no session " + e.Session
	case ManySessions:
		return fmt.Sprintf("%d sessions begin with %s", len(e.Matches), e.Session)
	case NoneKept:
		return "the session " + e.Session + " kept no changes: it worked on the directory itself, or ran nothing"
	case Unreadable:
		return fmt.Sprintf("the changes of %s can't be read: %v", e.Session, e.Err)
	}
	at := e.At.Local().Format("2006-01-02 15:04")
	how := map[overlay.State]string{
		overlay.Applied:   "were applied " + at,
		overlay.Discarded: "were discarded " + at,
		overlay.Expired:   "were removed " + at + ", because they were not applied in time",
	}[e.State]
	return "the changes of session " + e.Session + " " + how
}

func (e *ChangesError) Unwrap() error { return e.Err }

// UnchangedError reports that a session changed nothing. Older is an older session on the workspace
// that has kept its changes, or "".
type UnchangedError struct {
	Info  overlay.Info
	Older string
}

func (e *UnchangedError) Error() string { return "session " + e.Info.Session + " changed nothing" }

// Unwrap returns [overlay.ErrGone].
func (e *UnchangedError) Unwrap() error { return overlay.ErrGone }

func goneError(i overlay.Info, older string) error {
	if i.State == overlay.Empty || i.State == overlay.Kept { // killed before anything ran
		return &UnchangedError{i, older}
	}
	return &ChangesError{Reason: ChangesGone, Session: i.Session, State: i.State, At: i.At, Older: older, Err: overlay.ErrGone}
}

// expireTime bounds one call of [ExpireChanges].
const expireTime = time.Second

// ExpireChanges removes unapplied changes of sessions that began longer than keep ago. It also
// removes the remains of layers if a process was killed before anything ran, or while it applied
// or discarded the changes. It skips what is in use, continues after errors, and returns the
// sessions whose changes it removed. If there is much to do, it leaves some to the next call.
func ExpireChanges(stateDir string, keep time.Duration) ([]string, error) {
	kept, err := marked(stateDir, keptDir)
	pending, pendingErr := marked(stateDir, pendingDir)
	if err := errors.Join(err, pendingErr); err != nil {
		return nil, stateError(stateDir, "can't be read: "+err.Error(), err)
	}
	kept = slices.DeleteFunc(kept, func(name string) bool {
		began, ok := sessionBegan(name)
		return ok && time.Since(began) < keep
	})
	var gone []string
	var all []error
	end := time.Now().Add(expireTime)
	for i, name := range slices.Concat(pending, kept) {
		if time.Now().After(end) {
			break
		}
		expired, err := expireSession(stateDir, name, keep)
		if expired {
			gone = append(gone, name)
		}
		if err == nil && i >= len(pending) {
			_, err = sweepSession(stateDir, name)
		}
		all = append(all, err)
	}
	return gone, errors.Join(all...)
}

// expireSession implements [ExpireChanges] for one session. It reports whether it removed changes.
func expireSession(stateDir, name string, keep time.Duration) (bool, error) {
	dir := Path(stateDir, name)
	l, err := overlay.Open(filepath.Join(dir, OverlayDir))
	var swept error
	if err == nil {
		if swept = errors.Join(l.Sweep(), l.Close()); errors.Is(swept, overlay.ErrBusy) {
			swept = nil
		}
	}
	if err != nil || l.Info().State != overlay.Kept {
		// Without changes of the workspace, drop what was written to caches.
		return false, errors.Join(swept, dropDeadCaches(dir))
	}
	if l.Info().Recorded && time.Since(l.Info().Began) < keep {
		return false, swept
	}
	state, err := expire(l)
	switch {
	case errors.Is(err, overlay.ErrBusy): // it is alive, being applied, or still mounted
		return false, swept
	case err == nil && state == overlay.Expired:
		return true, errors.Join(swept, DropCaches(dir))
	}
	return false, errors.Join(swept, err)
}

// DiscardChanges removes the changes that the session in a directory keeps, and what it wrote to
// caches. Without layers it does nothing. by is the label of the user who discards them; with
// "", [OpenLastChanges] skips the session.
func DiscardChanges(session, by string) error {
	l, err := overlay.Open(filepath.Join(session, OverlayDir))
	if err != nil {
		return state.IgnoreMissing(err)
	}
	markChanged(session)
	if state := l.Info().State; state == overlay.Kept || state == overlay.Empty {
		if err := l.Lock(); err != nil {
			return err
		}
		l.SetUser(by)
		err = l.End(overlay.Discarded)
	}
	return errors.Join(err, l.Close(), DropCaches(session))
}

// expire ends opened layers and returns their new state. If they changed between Open and Lock, it
// leaves them and returns "".
func expire(l *overlay.Layers) (overlay.State, error) {
	if err := l.Lock(); err != nil {
		return "", err
	}
	now, err := overlay.Open(l.Dir())
	if err != nil {
		return "", errors.Join(err, l.Close())
	}
	if now.Info().State != overlay.Kept || now.Info().Recorded != l.Info().Recorded {
		return "", l.Close()
	}
	state := overlay.Expired
	if !l.Info().Recorded {
		state = overlay.Empty
	}
	return state, errors.Join(l.End(state), l.Close())
}
