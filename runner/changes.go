package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// lookTime bounds one look at the whole workspace.
const lookTime = 60 * time.Second

// recordWorkspace begins to look at the workspace as it is, in the background, when the
// sandbox begins to start. Nothing writes or executes before it has ended. It must
// not wait itself.
func (s *Session) recordWorkspace(ctx context.Context) {
	s.looking = true
	if !s.overlaid() {
		go s.lookForRepositories(ctx) // the container waits for it
	}
	go func() {
		defer close(s.looked)
		if s.overlaid() {
			s.exec.unready = s.lookBelow(ctx)
			return
		}
		ctx, cancel := context.WithTimeoutCause(ctx, lookTime, errSlow)
		defer cancel()
		files, err := changes.TakeFileStates(ctx, s.original, s.dir)
		if err != nil {
			s.log.Warn("look at the workspace", zap.Error(err))
			files = &changes.FileStates{} // nothing is known
		}
		s.files = files
		s.privileges.was, s.privileges.before, err = s.privileges.find(ctx, true)
		if err != nil {
			s.log.Warn("look at the workspace", zap.Error(err))
			s.privileges.before = &snapshot{} // nothing is known
		}
		<-s.finished
	}()
}

// lookForRepositories looks for the repositories that there are.
func (s *Session) lookForRepositories(ctx context.Context) {
	defer close(s.finished)
	ctx, cancel := context.WithTimeoutCause(ctx, repositoriesTime, errSlow)
	defer cancel()
	found, err := findRepositories(ctx, s.quarantine.repositoryLook(), s.opts.Git)
	if err != nil {
		s.log.Warn("look for repositories", zap.Error(err))
		found = &repositories{} // nothing is known
	}
	s.quarantine.found = found
	s.reportNewRepositories(found)
}

// reportNewRepositories warns of repositories that a killed session may have left,
// and of live sessions that have this workspace in bind mode: each sees, and lists as
// its own, the changes of the other. It keeps the list of the repositories of now,
// for the next session if this one is killed.
func (s *Session) reportNewRepositories(now *repositories) {
	paths := now.paths()
	suspects, err := sessiondir.TakeNewRepositories(s.dir, s.opts.Workspace.Path, paths)
	if err != nil {
		s.log.Warn("remove inventory", zap.Error(err))
	}
	for _, r := range suspects {
		text := fmt.Sprintf("%s appeared while the session %s worked here, which was killed: look at its configuration before git does", showBytes(r.Path), r.Session)
		if err := s.events.writeRecord(record.Warning{Message: text}); err != nil {
			return // the session ends at its next record
		}
	}
	remove, err := sessiondir.KeepInventory(s.dir, s.opts.Workspace.Path, paths)
	if err != nil {
		s.log.Warn("keep inventory", zap.Error(err))
		return
	}
	s.forget = func() {
		if err := remove(); err != nil {
			s.log.Warn("remove inventory", zap.Error(err))
		}
	}
	for _, session := range sessiondir.Neighbours(s.dir, s.opts.Workspace.Path) {
		s.warn(fmt.Sprintf("The session %s works on this workspace too, in bind mode: what either of them changes is seen, and listed, by both.", session))
	}
}

// isFresh reports whether a file is still as the session found it, by its own
// metadata. Where that can't be told it is not.
func (s *Session) isFresh(ctx context.Context, name string) bool {
	rel, err := s.reader.Relative(name)
	if err != nil || s.overlaid() { // the layers have the whole diff
		return false
	}
	return s.files.IsFresh(ctx, s.original, rel)
}

// addChanges fills in what differs from the session's start.
func (s *Session) addChanges(r *Report) {
	if s.overlaid() {
		s.overlayChanges(r)
		s.endLayers(r)
		return
	}
	r.Changed, r.HostExecuted = []record.Changed{}, []record.HostExecuted{}
	if s.box.isUntouched() {
		return // nothing can have run
	}
	<-s.looked
	ctx, cancel := context.WithTimeoutCause(context.Background(), lookTime, errSlow)
	defer cancel()
	r.Quarantined = s.quarantine.list(ctx)
	found, after, err := s.privileges.find(ctx, false)
	r.Cleared = s.privileges.clearNew(found)
	d, diffErr := s.bindDifferences(ctx)
	if diffErr != nil {
		s.log.Warn("look at the workspace", zap.Error(diffErr))
		d.Incomplete = true
	}
	r.setDifferences(d)
	if err != nil {
		s.log.Warn("look at the workspace", zap.Error(err))
		r.Incomplete = true
		return
	}
	r.Incomplete = r.Incomplete || s.privileges.before.incomplete() || after.incomplete()
}

// setDifferences fills in what differs.
func (r *Report) setDifferences(d changes.Differences) {
	r.Changed, r.ChangedOmitted, r.ChangedCount = record.NonNil(d.Changed), d.ChangedOmitted, d.Count
	r.HostExecuted, r.HostExecutedOmitted = record.NonNil(d.HostExecuted), d.HostExecutedOmitted
	r.Patch, r.Incomplete = d.Patch, r.Incomplete || d.Incomplete
}

// closeScratch removes what is kept of the workspace as it was.
func (s *Session) closeScratch() {
	err := s.exec.images.Close()
	if s.looking {
		<-s.looked
	}
	if s.forget != nil {
		s.forget()
	}
	if s.files != nil {
		err = errors.Join(err, s.files.Close())
	}
	if err != nil {
		s.log.Warn("remove scratch files", zap.Error(err))
	}
}

// writePatch writes the diffs beside the trace.
func (s *Session) writePatch(r *Report) error {
	if r.Patch == "" {
		return nil
	}
	text := redact.New(s.opts.Secrets).Bytes([]byte(r.Patch))
	if string(text) != r.Patch {
		text = append([]byte("# keys were left out of this diff: it does not apply as it is\n"), text...)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "workspace.patch"), text, 0o600); err != nil {
		return fmt.Errorf("write patch: %w", err)
	}
	return nil
}

// writeReport writes the whole report beside the trace.
func (s *Session) writeReport(r Report) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		text = append(record.SafeJSON(redact.New(s.opts.Secrets).JSON(text)), '\n')
		err = os.WriteFile(filepath.Join(s.dir, "report.json"), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// short bounds the lists of the last record.
func short(e record.SessionEnded) record.SessionEnded {
	if over := len(e.Changed) - record.MaxListed; over > 0 {
		e.Changed, e.ChangedOmitted = e.Changed[:record.MaxListed], e.ChangedOmitted+over
	}
	if over := len(e.HostExecuted) - record.MaxListed; over > 0 {
		e.HostExecuted, e.HostExecutedOmitted = e.HostExecuted[:record.MaxListed], e.HostExecutedOmitted+over
	}
	// What was not renamed comes first, and is never left out.
	renamed := slices.IndexFunc(e.Quarantined, func(q record.Quarantined) bool { return q.To != "" })
	if renamed >= 0 {
		e.Quarantined = e.Quarantined[:min(len(e.Quarantined), max(renamed, record.MaxListed))]
	}
	e.Cleared = e.Cleared[:min(len(e.Cleared), record.MaxListed)]
	e.Denials = e.Denials[:min(len(e.Denials), record.MaxListed)]
	e.Left = e.Left[:min(len(e.Left), record.MaxListed)]
	if e.Overlay != nil {
		o := *e.Overlay
		for _, list := range []*[]record.PathNote{&o.Conflicts, &o.LeftOut, &o.Failed} {
			n := min(len(*list), record.MaxListed)
			o.Omitted += len(*list) - n
			*list = (*list)[:n]
		}
		e.Overlay = &o
	}
	return e
}

// quarantineAfterCommand renames repositories that a command made; see
// [quarantine.afterCommand].
func (s *Session) quarantineAfterCommand(ctx context.Context) {
	if !s.overlaid() { // no program of the host sees them before they are applied
		s.quarantine.afterCommand(ctx)
	}
}

// quarantineAll does so at the end, before the container is taken down: the
// rename is a change of the workspace, and those are made inside. A command
// that took its container down to get around it gets a fresh one for this.
func (s *Session) quarantineAll() {
	if s.overlaid() || s.box.isUntouched() {
		return
	}
	select {
	case <-s.looked:
		s.quarantine.atEnd()
	default: // nothing has run, or the file system is stuck
	}
}

// changeInside makes a change, in a fresh container where there is none any more.
func (s *Session) changeInside(ctx context.Context, op workspace.Op) (workspace.Change, error) {
	change, err := s.exec.Apply(ctx, op)
	if e, ok := errors.AsType[*tools.Error](err); ok && e.Reason == replacedReason {
		change, err = s.exec.Apply(ctx, op)
	}
	if errors.Is(err, tools.ErrSandboxLost) {
		if err = s.box.startAgain(); err == nil {
			change, err = s.exec.Apply(ctx, op)
		}
	}
	return change, err
}

const (
	// readerEntries bounds the entries that one call of a tool reads.
	readerEntries = 500_000
	// unreadDirectories bounds the directories that a snapshot names.
	unreadDirectories = 20
)

// snapshot records how much of the workspace a scan met. The zero value knows nothing.
type snapshot struct {
	// whole reports whether the scan came to its end and could look at every entry
	// that it met; unread are directories that it could not read, all of them
	// unless there are unreadDirectories.
	whole  bool
	unread []string
}

// incomplete reports whether there may be files that the scan did not meet.
func (s *snapshot) incomplete() bool { return !s.whole || len(s.unread) > 0 }

// knows reports whether the scan saw everything there was on the way to p: only
// then is a file that it did not meet a new one.
func (s *snapshot) knows(p string) bool {
	if !s.whole || len(s.unread) >= unreadDirectories {
		return false
	}
	return !slices.ContainsFunc(s.unread, func(dir string) bool { return dir == "." || strings.HasPrefix(p, dir+"/") })
}

// takeSnapshot scans the workspace and calls visit for each entry, whose error
// reports that it could not be looked at. What lies in repositories is left out:
// see [repositories]. It keeps nothing of an entry, however many there are.
func takeSnapshot(ctx context.Context, r *workspace.Reader, visit func(*workspace.ScanEntry) error) (*snapshot, error) {
	s := &snapshot{whole: true}
	err := r.Scan(ctx, ".", workspace.ScanOptions{
		Visit: func(e *workspace.ScanEntry) (uint8, string) {
			if err := visit(e); err != nil && !errors.Is(err, fs.ErrNotExist) {
				s.whole = false
			}
			if e.Type == workspace.TypeDir && !isNamed(string(e.Name()), ".git", ".hg") {
				return 0, e.Path()
			}
			return 0, ""
		},
		Unread: func(dir string, _ error) {
			if len(s.unread) < unreadDirectories {
				s.unread = append(s.unread, dir)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Differences returns what differs now from the session's start. It may be called
// while a turn runs: what is written meanwhile is in it or not. It ends with ctx,
// and when the session is closed; its errors then wrap [ErrOver].
func (s *Session) Differences(ctx context.Context) (changes.Differences, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	began := s.turns > 0
	if s.closing {
		s.mu.Unlock()
		return changes.Differences{}, fmt.Errorf("compare workspace: %w: it is closed", ErrOver)
	}
	s.lookers.Add(1) // under mu: Close waits for no looker that comes later
	s.mu.Unlock()
	defer s.lookers.Done()
	stop := context.AfterFunc(s.looks, func() { cancel(fmt.Errorf("%w: it is closed", ErrOver)) })
	defer stop()
	if !began {
		return changes.Differences{}, nil // nothing has run
	}
	select {
	case <-s.looked:
	case <-ctx.Done():
		return changes.Differences{}, fmt.Errorf("compare workspace: %w", context.Cause(ctx))
	}
	ctx, slow := context.WithTimeoutCause(ctx, lookTime, errSlow)
	defer slow()
	var d changes.Differences
	var err error
	if s.overlaid() {
		d, err = s.overlayDifferences(ctx)
	} else {
		d, err = s.bindDifferences(ctx)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return changes.Differences{}, fmt.Errorf("compare workspace: %w", err)
	}
	return d, nil
}

func (s *Session) overlayDifferences(ctx context.Context) (changes.Differences, error) {
	if !s.recorded {
		return changes.Differences{}, nil // nothing has run
	}
	list, err := s.layers.Changes(ctx, s.opts.Workspace.Dir, changes.ReadBounds)
	if err != nil {
		return changes.Differences{}, err
	}
	return changes.ReadOverlay(ctx, s.layers, s.opts.Workspace.Dir, list)
}

// bindDifferences compares the workspace with its state at the session's start.
func (s *Session) bindDifferences(ctx context.Context) (changes.Differences, error) {
	return s.files.Compare(ctx, s.original, s.exec.images)
}
