package runner

import (
	"context"
	"maps"
	"path"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// cheapEntries is the size up to which a workspace is looked through after
	// each command: 5 µs an entry on an idle machine and 20 on a busy one
	// (BenchmarkSnapshot), so about what a command costs.
	cheapEntries = 500
	// quarantineTime bounds one look and its renames.
	quarantineTime = 20 * time.Second
)

// quarantineAfterCommand renames repositories that a command made, where
// finding them is cheap; the others are found when the session ends.
func (s *session) quarantineAfterCommand(ctx context.Context) {
	if len(s.before.files) <= cheapEntries && !s.before.incomplete {
		s.quarantine(ctx)
	}
}

// quarantineAll does so at the end, while the container is still there: the
// rename is a change of the workspace, and those are made inside.
func (s *session) quarantineAll() {
	select {
	case <-s.looked:
	default:
		return // nothing has run, or the file system is stuck
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), quarantineTime, errSlow)
	defer cancel()
	s.quarantine(ctx)
}

// quarantine renames every .git that was not there when the session began: a
// git of the host, a prompt or an editor would run what its configuration says
// as soon as somebody looks at the folder.
func (s *session) quarantine(ctx context.Context) {
	now, err := takeSnapshot(ctx, s.reader)
	if err != nil {
		s.log.Warn("look for new repositories", zap.Error(err))
		return
	}
	s.moved.mu.Lock()
	defer s.moved.mu.Unlock()
	for _, p := range s.before.newRepositories(now) {
		if path.Base(p) != ".git" {
			if !slices.Contains(s.moved.found, p) {
				s.moved.found = append(s.moved.found, p)
			}
			continue
		}
		if _, tried := s.moved.moves[p+"\x00"]; tried {
			continue // a placeholder of the sandbox's own can't be moved
		}
		q := Quarantined{Path: p, To: p + ".quarantined-" + newID("q")[2:]}
		if _, err := s.exec.Apply(ctx, workspace.Op{Kind: workspace.OpRename, Path: p, To: q.To}); err != nil {
			s.log.Warn("quarantine repository", zap.String("path", p), zap.Error(err))
			q.To, q.Why = "", err.Error()
		}
		if s.moved.moves == nil {
			s.moved.moves = map[string]Quarantined{}
		}
		s.moved.moves[p+"\x00"+q.To] = q
	}
}

// list gives the renames, and the failed ones whose repository is still there
// after the container: a placeholder of the sandbox's own is not.
func (q *quarantine) list(after *snapshot) []Quarantined {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []Quarantined
	for _, key := range slices.Sorted(maps.Keys(q.moves)) {
		if m := q.moves[key]; m.To != "" || after.repositories[m.Path] {
			out = append(out, m)
		}
	}
	return out
}

// bare lists the bare repositories that appeared.
func (q *quarantine) bare() []HostExecuted {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []HostExecuted
	for _, p := range q.found {
		out = append(out, HostExecuted{Path: p, By: "git, as a bare repository"})
	}
	return out
}
