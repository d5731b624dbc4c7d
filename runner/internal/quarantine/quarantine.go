// Package quarantine finds the repositories of a workspace and renames those that a
// session added or in which it changed what git or hg of the host would obey.
package quarantine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// cheapEntries is the size up to which the repositories that a workspace had are compared
	// after each command: 1 µs an entry on two quiet cores and 10 on busy ones
	// (BenchmarkSnapshot), so it costs less than a command.
	cheapEntries = 1000
	// lookTime bounds one look after a command. The look at the end finds the rest.
	lookTime = time.Minute
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

// maxMade is how many repositories may be made while a session runs.
const maxMade = 8

// errSlow is the cause of a scan that took too long.
var errSlow = errors.New("no answer in time")

// errTurnsOver is the cause of a look that the one at the end replaces.
var errTurnsOver = errors.New("the turns are over")

// Options configures a [Quarantine]. Reader, Owner, Change, Renew and Log are
// required.
type Options struct {
	// Reader reads the workspace; Submounts are accepted mounts in it.
	Reader    *workspace.Reader
	Submounts []string
	Git       sandbox.GitMode
	// Unguarded reports that no mounts protect the directory's own repository, so
	// that it is compared as those below it are. Git does not count then.
	Unguarded bool
	// Owner returns the user ID of the workspace's owner.
	Owner func() (uid int, known bool)
	// Change makes a change inside the sandbox. Renew replaces the sandbox by one
	// without protected mounts.
	Change func(context.Context, workspace.Op) (workspace.Change, error)
	Renew  func() error
	// Repeated, if set, is called when a repository is renamed that was made again after
	// it had been renamed, or after many others: what makes them still runs. It must not
	// wait for a look.
	Repeated func(path string)
	Log      *zap.Logger
}

// Quarantine finds and renames repositories that appeared or were changed. It is
// safe for concurrent use once [Quarantine.Record] has returned.
type Quarantine struct {
	opts Options
	// found are the repositories at the session's start.
	found *repositories

	// looks are the looks after commands, which CheckAtEnd ends.
	looks     context.Context
	stopLooks context.CancelCauseFunc
	// next, under asked, is closed when the look is over that is to begin next, nil if none
	// is. looking reports whether looks are under way.
	asked   sync.Mutex
	next    chan struct{}
	looking bool

	mu sync.Mutex
	// seen are the directories of the workspace as the last look found them.
	seen workspace.SeenDirs
	// moves are the renames by new path, failed those that failed, and the
	// directories that could not be read, by path.
	moves, failed         map[string]record.Quarantined
	moreMoved, moreFailed int
	// seenBefore are the paths of renamed repositories.
	seenBefore map[string]bool
	// pinned are renames that failed, perhaps because of a mount.
	pinned []pinnedMove
}

type pinnedMove struct{ path, why string }

// New returns a quarantine. [Quarantine.Record] must be called next.
func New(o Options) *Quarantine {
	if o.Unguarded {
		o.Git = sandbox.GitReadOnly
	}
	q := &Quarantine{opts: o}
	q.looks, q.stopLooks = context.WithCancelCause(context.Background())
	return q
}

// Record finds the repositories of the workspace as it is, and returns their paths.
func (q *Quarantine) Record(ctx context.Context) []string {
	ctx, cancel := context.WithTimeoutCause(ctx, repositoriesTime, errSlow)
	defer cancel()
	found, err := findRepositories(ctx, q.newScanner(), q.opts.Git, &q.seen)
	if err != nil {
		q.opts.Log.Warn("scan for repositories", zap.Error(err))
		found = &repositories{} // nothing is known
	}
	q.found = found
	return found.listPaths()
}

// Nested returns the recorded repositories that the sandbox must protect by mounts of
// their own, those nearest to the top first.
func (q *Quarantine) Nested() []string { return q.found.listNested() }

// Scripts returns the keys of git's configuration that hold shell text, each with its
// file. Git runs this text unasked, and it is unknown which files the text reads.
func (q *Quarantine) Scripts() []string { return q.found.scripts }

// CheckAfterCommand renames repositories that a command made. In a small workspace it
// also renames those that the command changed. It returns when ctx ends: the look goes on
// in the background then, until CheckAtEnd. There is one look at a time, so that a caller
// may share the next one with others.
//
// Other commands may run meanwhile: those of later calls, or in the background. A repository
// that one of them is still making is renamed all the same, and the command fails. Git on the
// host would obey it already, and nothing else bounds for how long.
func (q *Quarantine) CheckAfterCommand(ctx context.Context) {
	if !q.found.whole { // it is unknown which ones are new
		return
	}
	q.asked.Lock()
	if q.next == nil {
		q.next = make(chan struct{})
	}
	over := q.next
	if !q.looking {
		q.looking = true
		go q.lookWhileAsked()
	}
	q.asked.Unlock()
	select {
	case <-over:
	case <-ctx.Done():
	}
}

// lookWhileAsked looks for new repositories until no caller waits for a look.
func (q *Quarantine) lookWhileAsked() {
	for {
		q.asked.Lock()
		over := q.next
		q.next, q.looking = nil, over != nil
		q.asked.Unlock()
		if over == nil {
			return
		}
		q.look()
		close(over)
	}
}

// look renames what commands made since the last look.
func (q *Quarantine) look() {
	ctx, cancel := context.WithTimeoutCause(q.looks, lookTime, errSlow)
	defer cancel()
	q.mu.Lock() // one opens and closes directories at a time
	defer q.mu.Unlock()
	if ctx.Err() == nil { // else CheckAtEnd has looked, or will
		q.renameNew(ctx, false)
	}
}

// CheckAtEnd renames what is left when the turns are over.
func (q *Quarantine) CheckAtEnd() {
	q.stopLooks(errTurnsOver)
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

// renameNew renames every repository that was not there when the session began, and every
// one in which git or hg would obey something else than before: a git of the host, a prompt
// or an editor would run what its configuration says as soon as a user enters the directory,
// or at one above it that has it as a submodule. A repository that the first scan may have
// missed could be the user's own, and is only reported.
//
// The last call reads the whole workspace, and also checks the files that ordinary work may
// change. Others only read the directories that changed, and only compare the repositories
// that were there if the workspace was small.
func (q *Quarantine) renameNew(ctx context.Context, last bool) {
	doors := q.closedDirectories()
	s := q.newScanner()
	s.open = func(dir string) (func(), error) { return q.openDirectory(ctx, doors, dir) }
	since := &q.seen
	if last {
		since = nil
	} else if q.found.entries <= cheapEntries {
		q.checkKnown(ctx, s, doors)
	}
	var mu sync.Mutex
	check := func(p string, typ workspace.Type) (enter string) {
		mu.Lock()
		defer mu.Unlock()
		if _, known := q.found.known[p]; known && !last {
			if st, err := s.reader.StatEntry(ctx, p); err != nil || st.Inode == q.found.inodes[p] {
				return "" // the same one
			}
		}
		return q.checkEntry(ctx, s, p, typ, doors)
	}
	// The first pass opens no directory: another goroutine could be in it when it is closed
	// again. Those that need it are read one by one.
	var closed []string
	o := workspace.ScanOptions{
		Mounts: s.mounts, Since: since, Parallel: true,
		Visit: func(e *workspace.ScanEntry) (uint8, string) {
			if kindOfEntry(e) != noRepository {
				// In it may lie what is a bare repository under any name.
				return 0, check(e.Path(), e.Type)
			}
			return markOf(e.Name()), enterDirectory(e)
		},
		Leave: func(dir *workspace.ScanDirectory) {
			if isBare(dir.Marks) {
				check(dir.Path, workspace.TypeDir)
			}
		},
		Unread: func(dir string, err error) {
			mu.Lock()
			defer mu.Unlock()
			if isDenied(err) && len(closed) < maxClosed {
				closed = append(closed, dir)
				return
			}
			q.noteUnread(ctx, dir, err)
		},
	}
	err := s.reader.Scan(ctx, ".", o)
	o.Parallel, o.Since, o.Open = false, nil, s.open
	o.Unread = func(dir string, err error) { q.noteUnread(ctx, dir, err) }
	for _, dir := range closed {
		if err != nil {
			break
		}
		err = s.reader.Scan(ctx, dir, o)
	}
	if err == nil && last {
		s.changedObeyed(ctx, q.found.obeyed, func(p, why string) { q.renamePath(ctx, p, why, doors) })
		err = contextError(ctx)
	}
	if err != nil && !isReplaced(ctx) {
		q.opts.Log.Warn("look for repositories", zap.Error(err))
		q.addFailure(record.Quarantined{Path: ".", Why: "the look for repositories did not end: " + err.Error()})
	}
}

// isReplaced reports whether the look at the end does all that a look with ctx leaves.
func isReplaced(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errTurnsOver) }

// checkKnown renames the repositories that were there when the session began, still are,
// and were changed.
func (q *Quarantine) checkKnown(ctx context.Context, s *scanner, doors *closedDirectories) {
	for _, p := range q.found.listPaths() {
		st, err := s.reader.StatEntry(ctx, p)
		if err == nil && (entryToRename(p) == p || s.isBare(ctx, p)) {
			q.checkEntry(ctx, s, p, st.Type, doors)
		}
	}
}

// newScanner returns a scanner of the workspace's own directory.
func (q *Quarantine) newScanner() *scanner {
	s := &scanner{reader: q.opts.Reader, protected: q.isProtected}
	for _, name := range q.opts.Submounts { // absolute, or relative to the workspace
		if rel, err := q.opts.Reader.Relative(name); err == nil {
			s.mounts = append(s.mounts, rel)
		}
	}
	return s
}

// isProtected reports whether a mount protects all of a repository that was there when the
// session began.
func (q *Quarantine) isProtected(p string) bool {
	return isGuarded(p) && !q.opts.Unguarded && (p != ".git" || q.opts.Git != sandbox.GitCommit)
}

// checkEntry renames a repository that is new or was changed. It returns the path of the
// directory to scan: the new name, or a placeholder's path.
func (q *Quarantine) checkEntry(ctx context.Context, s *scanner, p string, typ workspace.Type, doors *closedDirectories) string {
	was, known := q.found.known[p]
	name := entryToRename(p)
	switch {
	case known && q.isProtected(p):
		return ""
	case !known && p == ".git" && typ == workspace.TypeDir && q.isEmpty(ctx, p):
		return p // the sandbox's own placeholder, and nothing to git as long as it is empty
	case !known && !q.found.coversPath(name):
		q.addFailure(record.Quarantined{Path: name, Why: whyUnsure})
		return ""
	case !known:
		return q.renamePath(ctx, name, "", doors)
	case was == "":
		q.addFailure(record.Quarantined{Path: name, Why: whyPartly})
		return ""
	}
	now, err := s.computeFingerprint(ctx, p, skippedEntries(p, q.opts.Git)...)
	if err != nil || now.hashLines() != was {
		return q.renamePath(ctx, name, whyChanged, doors)
	}
	if p == ".git" {
		q.renameUnfinished(ctx)
	}
	return ""
}

// renameUnfinished renames what git would go on with in the workspace's own
// repository, where commands may write to it: its steps can be commands.
func (q *Quarantine) renameUnfinished(ctx context.Context) {
	for _, name := range gitUnfinished {
		p := path.Join(".git", name)
		if _, err := q.opts.Reader.StatEntry(ctx, p); err == nil && !q.found.unfinished[p] {
			q.renamePath(ctx, p, "git would go on with the operation, and run its steps", nil)
		}
	}
}

// isEmpty reports whether a directory has no entries.
func (q *Quarantine) isEmpty(ctx context.Context, dir string) bool {
	list, err := q.opts.Reader.List(ctx, dir, 1)
	return err == nil && len(list.Entries) == 0 && len(list.Incomplete) == 0
}

// entryToRename returns the path that is renamed so that git no longer takes the
// directory for a repository: its .git or, since a bare repository's directory may be any
// in the workspace and the workspace itself, its HEAD.
func entryToRename(repository string) string {
	if isNamed(path.Base(repository), ".git", ".hg", ".caisson") {
		return repository
	}
	return path.Join(repository, "HEAD")
}

// renamePath renames one path, and returns the new one, or "". The caller holds mu.
func (q *Quarantine) renamePath(ctx context.Context, p, why string, doors *closedDirectories) string {
	if _, failed := q.failed[p]; failed {
		return ""
	}
	to := record.Quarantined{Path: p, To: p + quarantinedMark + record.NewID("q")[2:], Why: why}
	op := workspace.Op{Kind: workspace.OpRename, Path: p, To: to.To}
	_, err := q.opts.Change(ctx, op)
	if isDenied(err) && doors != nil {
		restore := doors.openParents(ctx, p)
		_, err = q.opts.Change(ctx, op)
		restore()
	}
	if err != nil && isReplaced(ctx) {
		// The sandbox may have renamed it, and only its answer was lost.
		if _, err = q.opts.Reader.StatEntry(context.WithoutCancel(ctx), to.To); err != nil {
			return ""
		}
	}
	if err != nil {
		q.opts.Log.Warn("quarantine", zap.String("path", p), zap.Error(err))
		q.addFailure(record.Quarantined{Path: p, Why: err.Error()})
		q.pinMove(p, why)
		return ""
	}
	q.addMove(to)
	if (q.seenBefore[p] || len(q.seenBefore) >= maxMade) && q.opts.Repeated != nil {
		q.opts.Repeated(p)
	}
	if q.seenBefore == nil {
		q.seenBefore = map[string]bool{}
	}
	if len(q.seenBefore) < maxNoted {
		q.seenBefore[p] = true
	}
	return to.To
}

// movePinned tries the renames once more that failed, in a sandbox that mounts
// nothing over the repositories: no command runs in it.
func (q *Quarantine) movePinned(ctx context.Context) {
	pinned := q.pinned
	if len(pinned) == 0 {
		return
	}
	if err := q.opts.Renew(); err != nil {
		q.opts.Log.Warn("quarantine in a fresh sandbox", zap.Error(err))
		return
	}
	doors := q.closedDirectories()
	for _, m := range pinned {
		delete(q.failed, m.path)
		q.renamePath(ctx, m.path, m.why, doors)
	}
}

// isGone reports whether nothing has a path any more.
func (q *Quarantine) isGone(ctx context.Context, p string) bool {
	_, err := q.opts.Reader.StatEntry(ctx, p)
	e, ok := errors.AsType[*workspace.Error](err)
	return ok && e.Kind == workspace.KindNotFound
}

// noteUnread reports a directory that could not be read, unless it is one
// that could not be when the session began either, nor by commands.
func (q *Quarantine) noteUnread(ctx context.Context, dir string, cause error) {
	was, closed := q.found.closed[dir]
	if !closed {
		why := "it can't be looked into, so that there may be a repository in it"
		if !q.found.coversPath(dir) {
			why = whyUnsure
		}
		q.addFailure(record.Quarantined{Path: dir, Why: fmt.Sprintf("%s: %v", why, cause)})
		return
	}
	st, err := q.opts.Reader.StatEntry(ctx, dir)
	if err != nil || closedOf(st) != was || q.isSearchable(was) {
		q.addFailure(record.Quarantined{Path: dir, Why: whyClosed})
	}
}

// isSearchable reports whether commands could go into a directory without changing
// its mode: they have the identity of the workspace's owner.
func (q *Quarantine) isSearchable(d closedDirectory) bool {
	owner, known := q.opts.Owner()
	if !known {
		return true
	}
	if uint32(owner) == d.uid { //nolint:gosec // a uid
		return d.mode&ownerSearch != 0
	}
	return d.mode&0o011 != 0
}

// addMove keeps one rename. The caller holds mu.
func (q *Quarantine) addMove(m record.Quarantined) {
	for _, dir := range parentDirs(m.Path) {
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

// addFailure keeps what was not renamed, or could not be read. The caller holds mu.
func (q *Quarantine) addFailure(m record.Quarantined) {
	if q.failed == nil {
		q.failed = map[string]record.Quarantined{}
	}
	if _, known := q.failed[m.Path]; !known && len(q.failed) >= maxNoted {
		q.moreFailed++
		return
	}
	q.failed[m.Path] = m
}

// pinMove keeps a rename to be tried once more. The caller holds mu.
func (q *Quarantine) pinMove(p, why string) {
	if len(q.pinned) < maxNoted {
		q.pinned = append(q.pinned, pinnedMove{p, why})
	}
}

// List returns what was not renamed, as far as it is still there, and then
// the renames.
func (q *Quarantine) List(ctx context.Context) []record.Quarantined {
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
		out[i].Path, out[i].To = ShowBytes(out[i].Path), ShowBytes(out[i].To)
	}
	return out
}

// HasUnvouched reports whether something was not renamed, or not read.
func HasUnvouched(list []record.Quarantined) bool {
	return slices.ContainsFunc(list, func(q record.Quarantined) bool { return q.To == "" })
}

// ShowBytes writes the bytes of a name that are not UTF-8 as \xNN, so that a
// record can hold it.
func ShowBytes(name string) string {
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
