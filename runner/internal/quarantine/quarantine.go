// Package quarantine finds the repositories of a workspace and renames the ones that a session
// added, or in which it changed what git or hg on the host would obey.
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
	// cheapEntries is the size of a workspace up to which existing repositories are compared
	// after each command. An entry takes 1 µs on two idle cores and 10 on busy ones
	// (BenchmarkSnapshot), so this costs less than a command.
	cheapEntries = 1000
	// lookTime bounds a look after a command. The look at the end finds the rest.
	lookTime = time.Minute
	// maxNoted bounds the listed renames, and the listed failures. More are counted.
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

// maxMade is how many repositories a session may make before it counts as repeating.
const maxMade = 8

var errSlow = errors.New("no answer in time")

// errTurnsOver cancels looks that the one at the end replaces.
var errTurnsOver = errors.New("the turns are over")

// Options configures a [Quarantine]. Reader, Change, Renew and Log are required.
type Options struct {
	// Reader reads the workspace; Submounts are accepted mounts in it.
	Reader    *workspace.Reader
	Submounts []string
	Git       sandbox.GitMode
	// Unguarded reports that no mounts protect the directory's own repository, so that it is
	// compared like the ones below it. Git is then ignored.
	Unguarded bool
	// Change makes a change inside the sandbox. Renew replaces the sandbox with one without
	// protected mounts.
	Change func(context.Context, workspace.Op) (workspace.Change, error)
	Renew  func() error
	// Repeated, if set, is called when a repository is renamed for the second time, or after
	// many others: what makes them is still running. It must not wait for a look.
	Repeated func(path string)
	Log      *zap.Logger
}

// Quarantine finds and renames repositories that appeared or changed. It is safe for concurrent
// use once [Quarantine.Record] has returned.
type Quarantine struct {
	opts Options
	// found are the repositories at the session's start.
	found *repositories

	// looks bounds looks after commands; CheckAtEnd ends it.
	looks     context.Context
	stopLooks context.CancelCauseFunc
	// asked guards next, which is closed when the next look to begin is over and nil if none
	// is wanted, and looking, which reports that looks are under way.
	asked   sync.Mutex
	next    chan struct{}
	looking bool

	mu sync.Mutex
	// seen are the directories of the workspace as of the last look.
	seen workspace.SeenDirs
	// moves are the renames by new path. failed are failed renames and unreadable directories,
	// by path.
	moves, failed         map[string]record.Quarantined
	moreMoved, moreFailed int
	// seenBefore are the paths of renamed repositories.
	seenBefore map[string]bool
	// pinned are failed renames, perhaps because of a mount.
	pinned []pinnedMove
}

type pinnedMove struct{ path, why string }

// New returns a quarantine. [Quarantine.Record] must be called next.
func New(o Options) *Quarantine {
	if o.Unguarded {
		o.Git = sandbox.GitReadOnly
	}
	q := &Quarantine{opts: o, moves: map[string]record.Quarantined{}, failed: map[string]record.Quarantined{}, seenBefore: map[string]bool{}}
	q.looks, q.stopLooks = context.WithCancelCause(context.Background())
	return q
}

// Record finds the repositories of the workspace as it is now, and returns their paths.
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

// Nested returns the recorded repositories that the sandbox must protect with separate mounts,
// the topmost first.
func (q *Quarantine) Nested() []string { return q.found.listNested() }

// Scripts returns the keys of git's configuration that hold shell text, each with its file. Git
// runs this text unasked, and which files it reads is unknown.
func (q *Quarantine) Scripts() []string { return q.found.scripts }

// CheckAfterCommand renames repositories that a command made and, in a small workspace, ones that
// it changed. If ctx ends, it returns and the look goes on in the background, until CheckAtEnd.
// Callers share the next look, since only one runs at a time.
//
// Other commands may be running. A repository that one of them is still making is renamed too,
// and that command fails: git on the host would obey it already, and nothing else bounds how
// long.
func (q *Quarantine) CheckAfterCommand(ctx context.Context) {
	if !q.found.whole { // which ones are new is unknown
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

func (q *Quarantine) look() {
	ctx, cancel := context.WithTimeoutCause(q.looks, lookTime, errSlow)
	defer cancel()
	q.mu.Lock() // only one may open and close directories at a time
	defer q.mu.Unlock()
	if ctx.Err() == nil { // otherwise CheckAtEnd has looked, or will
		q.renameNew(ctx, false)
	}
}

// CheckAtEnd renames what is left after the turns.
func (q *Quarantine) CheckAtEnd() {
	q.stopLooks(errTurnsOver)
	ctx, cancel := context.WithTimeoutCause(context.Background(), repositoriesTime, errSlow)
	defer cancel()
	q.mu.Lock()
	defer q.mu.Unlock()
	// When the session is interrupted, running and later renames fail: try them again.
	clear(q.failed)
	q.moreFailed, q.pinned = 0, nil
	q.renameNew(ctx, true)
	q.movePinned(ctx)
}

// renameNew renames every repository that was not there when the session began, and every one in
// which git or hg would now obey something else. Otherwise git on the host, a prompt or an editor
// would run what its configuration says as soon as a user enters the directory, or one above
// it that has it as a submodule. A repository that the first scan may have missed could be the
// user's, so it is only reported.
//
// The last call reads the whole workspace, and also checks the files that ordinary work may
// change. Other calls read only directories that changed, and compare existing repositories only
// in a small workspace.
func (q *Quarantine) renameNew(ctx context.Context, last bool) {
	s := q.newScanner()
	s.open = func(dir string) (func(), error) { return q.openDirectory(ctx, dir) }
	since := &q.seen
	if last {
		since = nil
	} else if q.found.entries <= cheapEntries {
		q.checkKnown(ctx, s)
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
		return q.checkEntry(ctx, s, p, typ)
	}
	// The first pass runs in parallel and so opens no directory: another goroutine could be in
	// it when it is closed again. Closed ones are read one by one afterwards.
	var closed []string
	o := workspace.ScanOptions{
		Mounts: s.mounts, Since: since, Parallel: true,
		Visit: func(e *workspace.ScanEntry) (uint8, string) {
			if kindOfEntry(e) != noRepository {
				// A bare repository of any name may lie in it.
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
		s.changedObeyed(ctx, q.found.obeyed, func(p, why string) { q.renamePath(ctx, p, why) })
		err = contextError(ctx)
	}
	if err != nil && !isReplaced(ctx) {
		q.opts.Log.Warn("look for repositories", zap.Error(err))
		q.addFailure(record.Quarantined{Path: ".", Why: "the look for repositories did not end: " + err.Error()})
	}
}

// isReplaced reports whether the look at the end replaces the one with ctx.
func isReplaced(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errTurnsOver) }

func (q *Quarantine) checkKnown(ctx context.Context, s *scanner) {
	for _, p := range q.found.listPaths() {
		st, err := s.reader.StatEntry(ctx, p)
		if err == nil && (entryToRename(p) == p || s.isBare(ctx, p)) {
			q.checkEntry(ctx, s, p, st.Type)
		}
	}
}

func (q *Quarantine) newScanner() *scanner {
	s := &scanner{reader: q.opts.Reader, protected: q.isProtected}
	for _, name := range q.opts.Submounts { // absolute, or relative to the workspace
		if rel, err := q.opts.Reader.Relative(name); err == nil {
			s.mounts = append(s.mounts, rel)
		}
	}
	return s
}

// isProtected reports whether a mount protects all of a repository that existed when the session
// began.
func (q *Quarantine) isProtected(p string) bool {
	return isGuarded(p) && !q.opts.Unguarded && (p != ".git" || q.opts.Git != sandbox.GitCommit)
}

// checkEntry renames a repository that is new or was changed. It returns the path of the
// directory to scan: the new name, or a placeholder's path.
func (q *Quarantine) checkEntry(ctx context.Context, s *scanner, p string, typ workspace.Type) string {
	was, known := q.found.known[p]
	name := entryToRename(p)
	switch {
	case known && q.isProtected(p):
		return ""
	case !known && p == ".git" && typ == workspace.TypeDir && q.isEmpty(ctx, p):
		return p // the sandbox's placeholder; git ignores it while it is empty
	case !known && !q.found.coversPath(name):
		q.addFailure(record.Quarantined{Path: name, Why: whyUnsure})
		return ""
	case !known:
		return q.renamePath(ctx, name, "")
	case was == "":
		q.addFailure(record.Quarantined{Path: name, Why: whyPartly})
		return ""
	}
	now, err := s.computeFingerprint(ctx, p, skippedEntries(p, q.opts.Git)...)
	if err != nil || now.hashLines() != was {
		return q.renamePath(ctx, name, whyChanged)
	}
	if p == ".git" {
		q.renameUnfinished(ctx)
	}
	return ""
}

// renameUnfinished renames unfinished operations in the workspace's own repository, where
// commands may write to them: their steps can be commands.
func (q *Quarantine) renameUnfinished(ctx context.Context) {
	for _, name := range gitUnfinished {
		p := path.Join(".git", name)
		if _, err := q.opts.Reader.StatEntry(ctx, p); err == nil && !q.found.unfinished[p] {
			q.renamePath(ctx, p, "git would go on with the operation, and run its steps")
		}
	}
}

func (q *Quarantine) isEmpty(ctx context.Context, dir string) bool {
	list, err := q.opts.Reader.List(ctx, dir, 1)
	return err == nil && len(list.Entries) == 0 && len(list.Incomplete) == 0
}

// entryToRename returns the path to rename so that git no longer takes the directory for a
// repository. This is its .git or, for a bare repository, its HEAD: the directory could be any,
// even the workspace.
func entryToRename(repository string) string {
	if isNamed(path.Base(repository), ".git", ".hg", ".caisson") {
		return repository
	}
	return path.Join(repository, "HEAD")
}

// renamePath renames one path and returns the new one, or "". The caller holds mu.
func (q *Quarantine) renamePath(ctx context.Context, p, why string) string {
	if _, failed := q.failed[p]; failed {
		return ""
	}
	to := record.Quarantined{Path: p, To: p + quarantinedMark + record.NewID("q")[2:], Why: why}
	op := workspace.Op{Kind: workspace.OpRename, Path: p, To: to.To}
	_, err := q.opts.Change(ctx, op)
	if isDenied(err) {
		restore := q.openParents(ctx, p)
		_, err = q.opts.Change(ctx, op)
		restore()
	}
	if err != nil && isReplaced(ctx) {
		// The sandbox may have renamed it although its answer was lost.
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
	if len(q.seenBefore) < maxNoted {
		q.seenBefore[p] = true
	}
	return to.To
}

// movePinned retries failed renames, in a sandbox that mounts nothing over the repositories and
// runs no commands.
func (q *Quarantine) movePinned(ctx context.Context) {
	pinned := q.pinned
	if len(pinned) == 0 {
		return
	}
	if err := q.opts.Renew(); err != nil {
		q.opts.Log.Warn("quarantine in a fresh sandbox", zap.Error(err))
		return
	}
	for _, m := range pinned {
		delete(q.failed, m.path)
		q.renamePath(ctx, m.path, m.why)
	}
}

func (q *Quarantine) isGone(ctx context.Context, p string) bool {
	_, err := q.opts.Reader.StatEntry(ctx, p)
	e, ok := errors.AsType[*workspace.Error](err)
	return ok && e.Kind == workspace.KindNotFound
}

// noteUnread reports a directory that could not be read, unless neither we nor commands could
// read it when the session began.
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
	if err != nil || closedOf(st) != was || q.isSearchable(ctx, was) {
		q.addFailure(record.Quarantined{Path: dir, Why: whyClosed})
	}
}

// isSearchable reports whether commands, which have the identity of the workspace's owner, could
// enter a directory without changing its mode.
func (q *Quarantine) isSearchable(ctx context.Context, d closedDirectory) bool {
	top, err := q.opts.Reader.StatEntry(ctx, ".")
	if err != nil {
		return true
	}
	if top.UID == d.uid {
		return d.mode&ownerSearch != 0
	}
	return d.mode&0o011 != 0
}

// addMove notes a rename. The caller holds mu.
func (q *Quarantine) addMove(m record.Quarantined) {
	for _, dir := range parentDirs(m.Path) {
		if _, renamed := q.moves[dir]; renamed {
			return // the parent's rename includes it
		}
	}
	if len(q.moves) >= maxNoted {
		q.moreMoved++
		return
	}
	q.moves[m.To] = m
}

// addFailure notes what was not renamed or could not be read. The caller holds mu.
func (q *Quarantine) addFailure(m record.Quarantined) {
	if _, known := q.failed[m.Path]; !known && len(q.failed) >= maxNoted {
		q.moreFailed++
		return
	}
	q.failed[m.Path] = m
}

// pinMove notes a rename to retry. The caller holds mu.
func (q *Quarantine) pinMove(p, why string) {
	if len(q.pinned) < maxNoted {
		q.pinned = append(q.pinned, pinnedMove{p, why})
	}
}

// List returns what was not renamed and still exists, and then the renames.
func (q *Quarantine) List(ctx context.Context) []record.Quarantined {
	q.mu.Lock()
	defer q.mu.Unlock()
	var out []record.Quarantined
	for _, p := range slices.Sorted(maps.Keys(q.failed)) {
		if !q.isGone(ctx, p) { // it may have been a placeholder that went with the sandbox
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

// HasUnvouched reports whether something was not renamed or not read.
func HasUnvouched(list []record.Quarantined) bool {
	return slices.ContainsFunc(list, func(q record.Quarantined) bool { return q.To == "" })
}

// ShowBytes writes bytes of a name that are not valid UTF-8 as \xNN, so that a record can hold
// it.
func ShowBytes(name string) string {
	valid := strings.ToValidUTF8(name, "\x00") // no name contains NUL
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
