package runner

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// cheapEntries is the size up to which a workspace is looked through after
	// each command: 1 µs an entry on two quiet cores and 10 on busy ones
	// (BenchmarkSnapshot), so less than what a command costs.
	cheapEntries = 1000
	// maxNoted bounds the renames that are listed, and those that failed; beyond
	// it they are counted.
	maxNoted = 1000
)

// quarantinedMark follows the old name in a new one.
const quarantinedMark = ".quarantined-"

// Reasons in notices.
const (
	whyUnsure  = "it may have been there before: the workspace could not be looked at whole when the session began"
	whyPartly  = "it could not be looked at whole when the session began, so that nothing can be said of what was changed in it"
	whyClosed  = "it could not be looked into when the session began, and commands could change what is in it"
	whyChanged = "what is obeyed or run in it was changed"
)

// quarantine finds and renames repositories that appeared or were changed. It is safe for
// concurrent use.
type quarantine struct {
	// reader reads the workspace dir; submounts are accepted mounts in it.
	reader    *workspace.Reader
	dir       *os.File
	submounts []string
	git       sandbox.GitMode
	// change makes a change inside the sandbox, renew replaces that by one without
	// protected mounts.
	change func(context.Context, workspace.Op) (workspace.Change, error)
	renew  func() error
	log    *zap.Logger
	// found are the repositories at the session's start.
	found *repositories

	mu sync.Mutex
	// moves are the renames by new path, failed those that failed, and the
	// directories that could not be looked at, by path.
	moves, failed         map[string]record.Quarantined
	moreMoved, moreFailed int
	// pinned are renames that failed, perhaps because of a mount.
	pinned []pinnedMove
}

type pinnedMove struct{ path, why string }

// afterCommand renames repositories that a command made, where finding them is
// cheap; the others are found when the session ends. At the top they are found at
// once.
func (q *quarantine) afterCommand(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, repositoriesTime, errSlow)
	defer cancel()
	q.mu.Lock() // one opens and closes directories at a time
	defer q.mu.Unlock()
	if q.found.entries <= cheapEntries && q.found.whole {
		q.renameNew(ctx, false)
		return
	}
	for _, name := range []string{".hg", ".caisson"} {
		st, err := q.reader.StatEntry(ctx, name)
		if _, known := q.found.known[name]; err == nil && !known && q.found.covers(name) && (name == ".hg" || st.Type == workspace.TypeSymlink) {
			q.move(ctx, name, "", nil)
		}
	}
}

// atEnd renames what is left when the turns are over.
func (q *quarantine) atEnd() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), repositoriesTime, errSlow)
	defer cancel()
	q.mu.Lock()
	defer q.mu.Unlock()
	// An interruption of the session ends the renames that are under way, and
	// all that follow: they are tried once more.
	q.failed, q.moreFailed, q.pinned = nil, 0, nil
	q.renameNew(ctx, true)
	q.movePinned(ctx)
}

// renameNew renames, in one pass over the workspace, every repository that
// was not there when the session began, and every one in which git or hg would
// obey something else than before: a git of the host, a prompt or an editor
// would run what its configuration says as soon as a user enters the
// directory, or at one above it that has it as a submodule. A repository that
// the first scan may have missed could be the user's own, and is only reported. The
// last call also checks the files that ordinary work may change.
func (q *quarantine) renameNew(ctx context.Context, last bool) {
	doors := q.closedDirectories()
	l := q.repositoryLook()
	l.open = func(dir string) (func(), error) { return q.openDirectory(ctx, doors, dir) }
	err := l.reader.Scan(ctx, ".", workspace.ScanOptions{
		Mounts: l.mounts, Open: l.open,
		Visit: func(e *workspace.ScanEntry) (uint8, string) {
			if kind := kindOfEntry(e); kind != noRepository {
				// In it may lie what is a bare repository under any name.
				return 0, q.checkEntry(ctx, l, e.Path(), e.Type, doors)
			}
			return markOf(e.Name()), enterDirectory(e)
		},
		Leave: func(dir string, marks uint8) {
			if isBare(marks) {
				q.checkEntry(ctx, l, dir, workspace.TypeDir, doors)
			}
		},
		Unread: func(dir string, err error) { q.noteUnread(ctx, dir, err) },
	})
	if err == nil && last {
		l.changedObeyed(ctx, q.found.obeyed, func(p, why string) { q.move(ctx, p, why, doors) })
		err = ended(ctx)
	}
	if err != nil {
		q.log.Warn("look for repositories", zap.Error(err))
		q.fail(record.Quarantined{Path: ".", Why: "the look for repositories did not end: " + err.Error()})
	}
}

// repositoryLook returns a look at the workspace's own directory.
func (q *quarantine) repositoryLook() *repositoryLook {
	l := &repositoryLook{reader: q.reader}
	for _, name := range q.submounts { // absolute, or relative to the workspace
		if rel, err := q.reader.Relative(name); err == nil {
			l.mounts = append(l.mounts, rel)
		}
	}
	return l
}

// checkEntry renames a repository that is new, or was changed, and returns
// its new path, "" where it was not renamed.
func (q *quarantine) checkEntry(ctx context.Context, l *repositoryLook, p string, typ workspace.Type, doors *closedDirectories) string {
	was, known := q.found.known[p]
	name := entrance(p)
	switch {
	case known && isGuarded(p) && (p != ".git" || q.git != sandbox.GitCommit):
		return "" // its mount protects it
	case !known && p == ".git" && typ == workspace.TypeDir && q.isEmpty(ctx, p):
		return "" // the sandbox's own placeholder, and nothing to git
	case !known && !q.found.covers(name):
		q.fail(record.Quarantined{Path: name, Why: whyUnsure})
		return ""
	case !known:
		return q.move(ctx, name, "", doors)
	case was == "":
		q.fail(record.Quarantined{Path: name, Why: whyPartly})
		return ""
	}
	now, err := l.fingerprint(ctx, p, skipped(p, q.git)...)
	if err != nil || now.sum() != was {
		return q.move(ctx, name, whyChanged, doors)
	}
	if p == ".git" {
		q.renameUnfinished(ctx)
	}
	return ""
}

// renameUnfinished renames what git would go on with in the workspace's own
// repository, where commands may write to it: its steps can be commands.
func (q *quarantine) renameUnfinished(ctx context.Context) {
	for _, name := range gitUnfinished {
		p := path.Join(".git", name)
		if _, err := q.reader.StatEntry(ctx, p); err == nil && !q.found.unfinished[p] {
			q.move(ctx, p, "git would go on with the operation, and run its steps", nil)
		}
	}
}

// isEmpty reports whether a directory has no entries.
func (q *quarantine) isEmpty(ctx context.Context, dir string) bool {
	list, err := q.reader.List(ctx, dir, 1)
	return err == nil && len(list.Entries) == 0 && len(list.Incomplete) == 0
}

// entrance returns what is renamed of a repository, without which git takes the
// directory for none: its .git or, since a bare repository's directory may be any
// in the workspace and the workspace itself, its HEAD.
func entrance(repository string) string {
	if isNamed(path.Base(repository), ".git", ".hg", ".caisson") {
		return repository
	}
	return path.Join(repository, "HEAD")
}

// move renames one path, and returns the new one, or "". The caller holds mu.
func (q *quarantine) move(ctx context.Context, p, why string, doors *closedDirectories) string {
	if _, failed := q.failed[p]; failed {
		return ""
	}
	to := record.Quarantined{Path: p, To: p + quarantinedMark + record.NewID("q")[2:], Why: why}
	op := workspace.Op{Kind: workspace.OpRename, Path: p, To: to.To}
	_, err := q.change(ctx, op)
	if denied(err) && doors != nil {
		restore := doors.openAbove(ctx, p)
		_, err = q.change(ctx, op)
		restore()
	}
	if err != nil {
		q.log.Warn("quarantine", zap.String("path", p), zap.Error(err))
		q.fail(record.Quarantined{Path: p, Why: err.Error()})
		q.pin(p, why)
		return ""
	}
	q.done(to)
	return to.To
}

// movePinned tries the renames once more that failed, in a sandbox that mounts
// nothing over the repositories: no command runs in it.
func (q *quarantine) movePinned(ctx context.Context) {
	pinned := q.pinned
	if len(pinned) == 0 {
		return
	}
	if err := q.renew(); err != nil {
		q.log.Warn("quarantine in a fresh sandbox", zap.Error(err))
		return
	}
	doors := q.closedDirectories()
	for _, m := range pinned {
		delete(q.failed, m.path)
		q.move(ctx, m.path, m.why, doors)
	}
}

// isGone reports whether nothing has a path any more.
func (q *quarantine) isGone(ctx context.Context, p string) bool {
	_, err := q.reader.StatEntry(ctx, p)
	e, ok := errors.AsType[*workspace.Error](err)
	return ok && e.Kind == workspace.KindNotFound
}

// noteUnread reports a directory that could not be looked into, unless it is one
// that could not be when the session began either, nor by commands.
func (q *quarantine) noteUnread(ctx context.Context, dir string, cause error) {
	was, closed := q.found.closed[dir]
	if !closed {
		why := "it can't be looked into, so that there may be a repository in it"
		if !q.found.covers(dir) {
			why = whyUnsure
		}
		q.fail(record.Quarantined{Path: dir, Why: fmt.Sprintf("%s: %v", why, cause)})
		return
	}
	st, err := q.reader.StatEntry(ctx, dir)
	if err != nil || closedOf(st) != was || q.isSearchable(was) {
		q.fail(record.Quarantined{Path: dir, Why: whyClosed})
	}
}

// isSearchable reports whether commands could go into a directory without changing
// its mode: they have the identity of the workspace's owner.
func (q *quarantine) isSearchable(d closedDirectory) bool {
	info, err := q.dir.Stat()
	if err != nil {
		return true
	}
	if owner, _, known := owners(info); known && uint32(owner) == d.uid { //nolint:gosec // a uid
		return d.mode&ownerSearch != 0
	}
	return d.mode&0o011 != 0
}

// done keeps one rename. The caller holds mu.
func (q *quarantine) done(m record.Quarantined) {
	for _, dir := range ancestors(m.Path) {
		if _, renamed := q.moves[dir]; renamed {
			return // it goes without saying
		}
	}
	if q.moves == nil {
		q.moves = map[string]record.Quarantined{}
	}
	if len(q.moves) >= maxNoted {
		q.moreMoved++
		return
	}
	q.moves[m.To] = m
}

// fail keeps what was not renamed, or could not be looked at. The caller holds mu.
func (q *quarantine) fail(m record.Quarantined) {
	if q.failed == nil {
		q.failed = map[string]record.Quarantined{}
	}
	if _, known := q.failed[m.Path]; !known && len(q.failed) >= maxNoted {
		q.moreFailed++
		return
	}
	q.failed[m.Path] = m
}

// pin keeps a rename to be tried once more. The caller holds mu.
func (q *quarantine) pin(p, why string) {
	if len(q.pinned) < maxNoted {
		q.pinned = append(q.pinned, pinnedMove{p, why})
	}
}

// list lists what was not renamed, as far as it is still there, and then
// the renames.
func (q *quarantine) list(ctx context.Context) []record.Quarantined {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []record.Quarantined
	for _, p := range slices.Sorted(maps.Keys(q.failed)) {
		if !q.isGone(ctx, p) { // a placeholder of the sandbox's own goes with it
			out = append(out, q.failed[p])
		}
	}
	if q.moreFailed > 0 {
		out = append(out, record.Quarantined{Path: ".", Why: fmt.Sprintf("%d more in the workspace were not renamed either, or could not be looked at", q.moreFailed)})
	}
	moves := slices.SortedFunc(maps.Values(q.moves), func(a, b record.Quarantined) int {
		return strings.Compare(a.Path+"\x00"+a.To, b.Path+"\x00"+b.To)
	})
	out = append(out, moves...)
	if q.moreMoved > 0 {
		out = append(out, record.Quarantined{Path: ".", To: ".", Why: fmt.Sprintf("%d more were renamed", q.moreMoved)})
	}
	for i := range out {
		out[i].Path, out[i].To = showBytes(out[i].Path), showBytes(out[i].To)
	}
	return out
}

// hasUnvouched reports whether something was not renamed, or not looked at.
func hasUnvouched(list []record.Quarantined) bool {
	return slices.ContainsFunc(list, func(q record.Quarantined) bool { return q.To == "" })
}

// showBytes writes the bytes of a name that are not UTF-8 as \xNN, so that a
// record can hold it.
func showBytes(name string) string {
	valid := strings.ToValidUTF8(name, "\x00") // which no name holds
	if valid == name {
		return name
	}
	var out strings.Builder
	for _, r := range []byte(name) {
		if r < 0x80 {
			out.WriteByte(r)
		} else {
			fmt.Fprintf(&out, `\x%02x`, r)
		}
	}
	return out.String()
}
