package runner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// KeptChanges opens the layers of an overlay session of a workspace: of the one
// that is named by its id or the beginning of it, or of the last one on the
// workspace whose changes are still there. The caller closes them. Its errors
// are an [Error] with status 42, or an [UnchangedError].
func KeptChanges(stateDir, session string, w *Workspace) (*overlay.Layers, error) {
	names, err := sessionNames(stateDir)
	if err != nil {
		return nil, err
	}
	if session != "" {
		return namedChanges(stateDir, session, names)
	}
	var last *overlay.Layers
	for _, name := range slices.Backward(names) { // ids sort by time
		l, err := overlay.Open(filepath.Join(SessionDir(stateDir, name), overlayDir))
		if err != nil || l.Same(w.Dir) != nil {
			continue
		}
		if !l.Info().Recorded {
			continue // it was killed before anything ran
		}
		if l.Info().State == overlay.Kept {
			return l, nil
		}
		if last == nil {
			last = l
		}
	}
	if last != nil {
		return nil, goneError(last.Info())
	}
	return nil, inputError("no session in overlay mode has worked on "+w.Path,
		"caisson run --mode overlay makes one; --workspace names another folder.", nil)
}

func sessionNames(stateDir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(SessionDir(stateDir, "x")))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, stateError(stateDir, "can't be read: "+err.Error(), err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), "ses_") {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func namedChanges(stateDir, session string, names []string) (*overlay.Layers, error) {
	names = slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, session) && !strings.HasPrefix(name, "ses_"+session)
	})
	switch len(names) {
	case 0:
		return nil, inputError("there is no session "+session, "The end of a run names its session; the folders of "+stateDir+"/sessions are all of them.", nil)
	case 1:
	default:
		return nil, inputError(fmt.Sprintf("%d sessions begin with %s", len(names), session), "Write more of the id: "+names[0]+" is one of them.", nil)
	}
	l, err := overlay.Open(filepath.Join(SessionDir(stateDir, names[0]), overlayDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, inputError("the session "+names[0]+" kept no changes: it worked on the folder itself, or ran nothing",
			"workspace.patch in its folder shows what can be shown; caisson run --mode overlay keeps changes.", err)
	}
	if err != nil {
		return nil, inputError("the changes of "+names[0]+" can't be read: "+err.Error(), "Look at its folder below "+stateDir+".", err)
	}
	if l.Info().State != overlay.Kept {
		return nil, goneError(l.Info())
	}
	return l, nil
}

// UnchangedError reports that a session changed nothing.
type UnchangedError struct{ Info overlay.Info }

// Error names the session.
func (e *UnchangedError) Error() string { return "session " + e.Info.Session + " changed nothing" }

// Unwrap returns [overlay.ErrGone].
func (e *UnchangedError) Unwrap() error { return overlay.ErrGone }

// goneError says why there is nothing to show or apply any more.
func goneError(i overlay.Info) error {
	if i.State == overlay.Empty {
		return &UnchangedError{i}
	}
	at := i.At.Local().Format("2006-01-02 15:04")
	why := map[overlay.State]string{
		overlay.Applied:   "were applied " + at,
		overlay.Discarded: "were discarded " + at,
		overlay.Expired:   "were removed " + at + ", because nobody had applied them in time",
	}[i.State]
	return inputError("the changes of session "+i.Session+" "+why, "workspace.patch in the session's folder still shows the text of them.", overlay.ErrGone)
}

// ExpireChanges removes the changes of sessions that began longer than keep ago
// and that nobody applied. It leaves alone what is in use. It returns the
// sessions whose changes it removed, and goes on after an error.
func ExpireChanges(stateDir string, keep time.Duration) ([]string, error) {
	names, err := sessionNames(stateDir)
	if err != nil {
		return nil, err
	}
	var gone []string
	var all []error
	for _, name := range names {
		l, err := overlay.Open(filepath.Join(SessionDir(stateDir, name), overlayDir))
		if err == nil {
			if err := errors.Join(l.Sweep(), l.Close()); err != nil && !errors.Is(err, overlay.ErrBusy) {
				all = append(all, err)
			}
		}
		if err != nil || l.Info().State != overlay.Kept || l.Info().Recorded && time.Since(l.Info().Began) < keep {
			continue
		}
		state, err := expire(l)
		switch {
		case errors.Is(err, overlay.ErrBusy): // it runs, is being applied, or is mounted still
		case err != nil:
			all = append(all, err)
		case state == overlay.Expired:
			gone = append(gone, name)
		}
	}
	return gone, errors.Join(all...)
}

// expire ends layers that were opened, and says how, "" for not at all. What was read before they
// were locked may have changed since: where it has, they are left alone.
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

// ListChanges lists changes as records do, and counts them.
func ListChanges(c *overlay.Changes, s *overlay.Stats) Differences {
	d := Differences{Incomplete: c.Truncated || len(c.Unread) > 0}
	d.setList(overlayList(c, s))
	return d
}

// HostExecutedChanges lists the changes that a program of the host would run or
// obey once they are applied with o, and the symlinks that lead out. What apply
// leaves out is not among them, nor the rest of a repository, which git only
// reads.
func HostExecutedChanges(c *overlay.Changes, o overlay.ApplyOptions) []record.HostExecuted {
	out := []record.HostExecuted{}
	for i := range c.List {
		change := &c.List[i]
		switch {
		case o.LeavesOut(change), !change.File(), !change.Git && slices.Contains(strings.Split(change.Path, "/"), ".git"):
		case change.LinkOut:
			out = append(out, record.HostExecuted{Path: change.Path, By: bySymlink, Target: change.Target})
		default:
			out = append(out, hostExecuted([]record.Changed{{Path: change.Path, Change: string(change.Kind)}})...)
		}
	}
	return out
}
