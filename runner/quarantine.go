package runner

import (
	"context"
	"maps"
	"path"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// cheapEntries is the size up to which a workspace is looked through after
	// each command: 3 µs an entry on two quiet cores and 20 on busy ones
	// (BenchmarkSnapshot), so about what a command costs.
	cheapEntries = 500
	// quarantineTime bounds the look at the end, a fresh container where one is
	// needed for the renames, and the renames.
	quarantineTime = 60 * time.Second
)

// quarantine is what was renamed, or should have been. It is safe for
// concurrent use.
type quarantine struct {
	mu    sync.Mutex
	moves map[string]Quarantined // by path and new path
}

// quarantineAfterCommand renames repositories that a command made, where
// finding them is cheap; the others are found when the session ends.
func (s *Session) quarantineAfterCommand(ctx context.Context) {
	if s.overlaid() {
		return // no program of the host sees them before they are applied
	}
	if s.before.files <= cheapEntries && !s.before.incomplete() {
		s.quarantine(ctx)
	}
}

// quarantineAll does so at the end, before the container is taken down: the
// rename is a change of the workspace, and those are made inside. A command
// that took its container down to get around it gets a fresh one for this.
func (s *Session) quarantineAll() {
	if s.overlaid() {
		return
	}
	select {
	case <-s.looked:
	default:
		return // nothing has run, or the file system is stuck
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), quarantineTime, errSlow)
	defer cancel()
	s.moved.again()
	s.quarantine(ctx)
	if s.forget != nil {
		s.forget()
	}
}

// quarantine renames every .git that was not there when the session began, and
// every one below the top in which git would obey something else than before: a
// git of the host, a prompt or an editor would run what its configuration says
// as soon as somebody looks at the folder, or at one above it that has it as a
// submodule. What the look at the beginning may
// have missed could be the user's own, and is only reported.
func (s *Session) quarantine(ctx context.Context) {
	s.moved.mu.Lock() // one opens and closes folders at a time
	defer s.moved.mu.Unlock()
	closed := s.closedFolders()
	defer closed.restore(ctx)
	now, err := s.lookInto(ctx, closed)
	if err != nil {
		s.log.Warn("look for new repositories", zap.Error(err))
		if !denied(err) {
			return
		}
		now = &snapshot{unread: []string{"."}}
	}
	for _, dir := range now.unread {
		if s.before.knowsInside(dir) && !s.moved.failed(dir) {
			s.moved.note(Quarantined{Path: dir, Why: "what is in it can't be looked at, and could be when the session began: there may be a repository in it"})
		}
	}
	for _, p := range s.before.newRepositories(now) {
		switch name := entrance(p); {
		case !s.before.knows(p):
			s.moved.note(Quarantined{Path: name, Why: "it may have been there before: the workspace could not be looked at whole when the session began"})
		case s.moved.failed(name):
			// A placeholder of the sandbox's own can't be moved.
		default:
			s.moved.note(s.move(ctx, name, closed))
		}
	}
	for _, p := range s.before.changedRepositories(now) {
		name := entrance(p)
		if s.moved.failed(name) {
			continue
		}
		q := s.move(ctx, name, closed)
		if q.To != "" {
			q.Why = "what git obeys or runs in it was changed"
		}
		s.moved.note(q)
	}
}

// entrance is what is renamed of a repository, without which git takes the
// folder for none: its .git or, since the folder of a bare repository may be any
// in the workspace and the workspace itself, its HEAD.
func entrance(repository string) string {
	if path.Base(repository) == ".git" {
		return repository
	}
	return path.Join(repository, "HEAD")
}

// move renames the entrance of one repository. Folders above it that their modes keep from
// being changed are opened for that, and stay in closed.
func (s *Session) move(ctx context.Context, p string, closed *closedFolders) Quarantined {
	q := Quarantined{Path: p, To: p + ".quarantined-" + newID("q")[2:]}
	op := workspace.Op{Kind: workspace.OpRename, Path: p, To: q.To}
	_, err := s.changeInside(ctx, op)
	if denied(err) && closed.openAbove(ctx, p) {
		_, err = s.changeInside(ctx, op)
	}
	if err != nil {
		s.log.Warn("quarantine repository", zap.String("path", p), zap.Error(err))
		q.To, q.Why = "", err.Error()
	}
	return q
}

// note keeps one rename, or its failure. The caller holds mu.
func (q *quarantine) note(m Quarantined) {
	if q.moves == nil {
		q.moves = map[string]Quarantined{}
	}
	q.moves[m.Path+"\x00"+m.To] = m
}

// again forgets the renames that failed, so that they are tried once more: an
// interruption of the session ends those that are under way, and all that follow.
func (q *quarantine) again() {
	q.mu.Lock()
	defer q.mu.Unlock()
	maps.DeleteFunc(q.moves, func(_ string, m Quarantined) bool { return m.To == "" })
}

// failed says whether a rename was tried in vain. The caller holds mu.
func (q *quarantine) failed(p string) bool {
	_, ok := q.moves[p+"\x00"]
	return ok
}

// list gives the renames, and the failed ones whose repository is still there
// after the container, or may be: a placeholder of the sandbox's own is not.
func (q *quarantine) list(after *snapshot) []Quarantined {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []Quarantined
	for _, key := range slices.Sorted(maps.Keys(q.moves)) {
		if m := q.moves[key]; m.To != "" || after.enters(m.Path) || after.hides(m.Path) {
			out = append(out, m)
		}
	}
	return out
}
