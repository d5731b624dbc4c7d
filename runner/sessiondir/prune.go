package sessiondir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// PruneOptions selects what [Prune] shortens.
type PruneOptions struct {
	StateDir string
	// Keep is how long a session stays whole after its last record. It must be positive.
	Keep   time.Duration
	DryRun bool
	// Now is the clock; nil means [time.Now].
	Now func() time.Time
}

// PruneReport is the result of [Prune].
type PruneReport struct {
	Pruned []Pruned `json:"pruned"`
	// Left are old sessions that were left whole, and why.
	Left []NotPruned `json:"left"`
}

// Pruned is a session that was shortened to its audit records.
type Pruned struct {
	Session string `json:"session"`
	// Ended is the time of the last record (RFC 3339), or "".
	Ended string `json:"ended"`
	// Removed and Audit count records; Bytes is the freed space.
	Removed int64 `json:"removed_records"`
	Audit   int64 `json:"audit_records"`
	Bytes   int64 `json:"freed_bytes"`
}

// NotPruned is an old session that was left whole.
type NotPruned struct {
	Session string `json:"session"`
	Why     string `json:"why"`
}

// Prune shortens sessions that ended longer than o.Keep ago to audit.jsonl, the long values of
// audit records, and the note about what became of an overlay. It leaves sessions whole that are
// alive, keep unapplied changes or have a sandbox left, and damaged ones, which may be evidence. It
// begins with the oldest, and continues after errors. The next call completes one that was
// killed.
func Prune(ctx context.Context, o PruneOptions) (PruneReport, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	names, err := oldSessions(o)
	if err != nil {
		return PruneReport{Pruned: []Pruned{}, Left: []NotPruned{}}, err
	}
	report, looked, err := pruneSessions(ctx, o, names)
	if looked < len(names) {
		err = errors.Join(err, context.Cause(ctx))
	}
	return report, err
}

const (
	// prunedFile, in the state directory, has the ID of the session that [PruneNext] looked at
	// last. Its time is when PruneNext last found no more to do.
	prunedFile = "pruned"
	// pruneEvery is how long PruneNext then does nothing.
	pruneEvery = time.Hour
	// pruneTime bounds one call of PruneNext.
	pruneTime = 200 * time.Millisecond
)

// PruneNext is [Prune] for a start. For a short time, it continues after the session at which the
// last call stopped, and once a day begins with the oldest. After finding no more to do, it does
// nothing for an hour, or for o.Keep if that is shorter.
func PruneNext(ctx context.Context, o PruneOptions) error {
	if o.Now == nil {
		o.Now = time.Now
	}
	now := o.Now()
	path := filepath.Join(o.StateDir, prunedFile)
	var after []byte
	if info, err := os.Lstat(path); err == nil {
		last := info.ModTime()
		if now.Sub(last) < min(pruneEvery, o.Keep) {
			return nil
		}
		if last.UTC().YearDay() == now.UTC().YearDay() {
			after, _ = state.Read(path, 100) // without it, this is the first call of the day
		}
	}
	if err := os.WriteFile(path, after, 0o600); err != nil { // other starts leave the work to this one
		return fmt.Errorf("prune sessions: %w", err)
	}
	names, err := oldSessions(o)
	if err != nil {
		return err
	}
	next, found := slices.BinarySearch(names, string(after))
	if found {
		next++
	}
	ctx, cancel := context.WithTimeoutCause(ctx, pruneTime, errors.New("the rest is for the next start"))
	defer cancel()
	_, looked, err := pruneSessions(ctx, o, names[next:])
	next += looked
	if next > 0 {
		err = errors.Join(err, os.WriteFile(path, []byte(names[next-1]), 0o600))
	}
	if next < len(names) {
		now = now.Add(-pruneEvery) // the next start continues
	}
	return errors.Join(err, os.Chtimes(path, now, now))
}

func oldSessions(o PruneOptions) ([]string, error) {
	if o.Keep <= 0 {
		return nil, fmt.Errorf("prune sessions: a time of %s to keep them is no time", o.Keep)
	}
	names, err := sessionNames(o.StateDir)
	before := o.Now().Add(-o.Keep)
	return slices.DeleteFunc(names, func(name string) bool {
		began, ok := sessionBegan(name)
		return !ok || !began.Before(before)
	}), err
}

// pruneSessions shortens sessions until ctx ends, and returns how many it looked at. The end of ctx
// is not an error.
func pruneSessions(ctx context.Context, o PruneOptions, names []string) (PruneReport, int, error) {
	report := PruneReport{Pruned: []Pruned{}, Left: []NotPruned{}}
	before := o.Now().Add(-o.Keep)
	var errs []error
	for i, name := range names {
		if ctx.Err() != nil {
			return report, i, errors.Join(errs...)
		}
		p, err := pruneSession(o, name, before)
		why, left := errors.AsType[notPrunedError](err)
		switch {
		case left:
			report.Left = append(report.Left, NotPruned{name, string(why)})
		case err != nil:
			errs = append(errs, fmt.Errorf("prune session %s: %w", name, err))
		case p != nil:
			report.Pruned = append(report.Pruned, *p)
		}
	}
	return report, len(names), errors.Join(errs...)
}

func sessionBegan(session string) (time.Time, bool) {
	id, err := ulid.ParseStrict(strings.TrimPrefix(session, "ses_"))
	return id.Timestamp(), err == nil
}

type notPrunedError string

func (e notPrunedError) Error() string { return string(e) }

// pruneSession shortens one session. It returns nil if there was nothing to do.
func pruneSession(o PruneOptions, name string, before time.Time) (_ *Pruned, err error) {
	dir := Path(o.StateDir, name)
	trace, err := os.Open(filepath.Join(dir, record.TraceFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // shortened before, or never begun
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = trace.Close() }()
	release, err := prunable(o.StateDir, dir)
	if err != nil {
		return nil, err
	}
	defer release()
	var out *os.File
	if !o.DryRun {
		if out, err = os.CreateTemp(dir, ".audit-*"); err != nil {
			return nil, err
		}
		defer func() { _ = errors.Join(out.Close(), state.IgnoreMissing(os.Remove(out.Name()))) }() // a renamed file is gone
	}
	a, err := writeAudit(out, trace)
	switch {
	case errors.Is(err, record.ErrChain):
		return nil, notPrunedError("its records are damaged: " + err.Error())
	case err != nil:
		return nil, err
	case !a.ended.IsZero() && !a.ended.Before(before):
		return nil, nil
	}
	p := &Pruned{Session: name, Removed: a.removed, Audit: a.kept}
	if !a.ended.IsZero() {
		p.Ended = a.ended.Format(record.TimeLayout)
	}
	stays := append(a.spilled, record.AuditFile)
	if out != nil {
		stays = append(stays, filepath.Base(out.Name()))
	}
	if p.Bytes, err = bulk(dir, stays, o.DryRun, func() error { return placeAudit(out, dir) }); err != nil {
		return nil, err
	}
	p.Bytes -= a.bytes
	return p, nil
}

// prunable locks a session's log like a living session, so that no other process prunes it, or
// returns why the session must stay whole.
func prunable(stateDir, dir string) (release func(), err error) {
	log, err := os.Open(filepath.Join(dir, LogFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notPrunedError("its log is missing, so whether it runs is unknown")
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = log.Close()
		}
	}()
	if held(log) { // otherwise held has locked it
		return nil, notPrunedError("it runs")
	}
	if hasRemains(stateDir, dir) {
		return nil, notPrunedError("its sandbox is not gone: the next session removes it")
	}
	if hasInventory(dir) {
		return nil, notPrunedError("it was killed: the next session on its workspace looks for repositories that it left")
	}
	if hasUnreportedPatch(dir) {
		return nil, notPrunedError("a patch of it was cut off: the next session on its workspace reports it")
	}
	if _, err := os.Lstat(filepath.Join(dir, OverlayDir)); errors.Is(err, fs.ErrNotExist) {
		return func() { _ = log.Close() }, nil
	}
	layers, err := overlay.Open(filepath.Join(dir, OverlayDir))
	if err != nil {
		return nil, notPrunedError("its changes can't be read: " + err.Error())
	}
	state := layers.Info().State
	if err := layers.Close(); err != nil {
		return nil, err
	}
	if state == overlay.Kept {
		return nil, notPrunedError("its changes wait to be applied")
	}
	return func() { _ = log.Close() }, nil
}

type auditResult struct {
	kept, removed, bytes int64
	ended                time.Time // time of the last record
	spilled              []string  // of audit records, relative to the session's directory
}

// writeAudit copies the audit records of a trace to out, which may be nil.
func writeAudit(out *os.File, trace *os.File) (auditResult, error) {
	var a auditResult
	in := record.NewReader(trace)
	var gone *record.Omission
	put := func(text []byte) error {
		a.bytes += int64(len(text)) + 1
		if out == nil {
			return nil
		}
		_, err := out.Write(append(slices.Clip(text), '\n'))
		return err
	}
	flush := func() error {
		if gone == nil {
			return nil
		}
		text, err := record.EncodeOmission(*gone)
		gone = nil
		if err != nil {
			return err
		}
		return put(text)
	}
	for {
		prev := in.Hash()
		rec, err := in.Next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = flush()
			}
			return a, err
		}
		a.ended = rec.Time
		if record.IsAudited(rec.Kind) {
			if err := errors.Join(flush(), put(in.Line())); err != nil {
				return a, err
			}
			a.kept++
			a.spilled = append(a.spilled, record.SpilledFiles(rec)...)
			continue
		}
		a.removed++
		if gone == nil {
			gone = &record.Omission{First: rec.Seq, Prev: prev}
		}
		gone.Last, gone.SHA256 = rec.Seq, in.Hash()
	}
}

// placeAudit puts the audit file in place, on disk, before anything is removed.
func placeAudit(out *os.File, dir string) error {
	if err := out.Sync(); err != nil {
		return err
	}
	if err := os.Rename(out.Name(), filepath.Join(dir, record.AuditFile)); err != nil {
		return err
	}
	return state.SyncDir(dir)
}

// bulk calls place, then removes what a shortened session does not keep and returns its size. The
// log goes last: its lock protects the directory.
func bulk(dir string, stays []string, dry bool, place func() error) (int64, error) {
	files, err := bulkFiles(dir, stays)
	if err != nil {
		return 0, err
	}
	size := int64(0)
	for _, path := range files {
		if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
	}
	if dry {
		return size, nil
	}
	if err := place(); err != nil {
		return 0, err
	}
	for _, path := range files {
		// A directory is now empty, or holds something that stays.
		if err := state.IgnoreMissing(os.Remove(path)); err != nil && !nonEmpty(path) {
			return size, err
		}
	}
	return size, nil
}

func nonEmpty(path string) bool {
	inside, err := os.ReadDir(path)
	return err == nil && len(inside) > 0
}

// bulkFiles lists what to remove: files before their directory, and the log last. It does not enter
// the directories of sandboxes, overlays and caches, and follows no links.
func bulkFiles(dir string, stays []string) ([]string, error) {
	var files []string
	log := ""
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch name, _ := filepath.Rel(dir, path); {
		case name == ".", slices.Contains(stays, name):
		case name == OverlayDir, name == SandboxDir, name == CachesDir:
			return fs.SkipDir
		case name == LogFile:
			log = path
		default:
			files = append(files, path)
		}
		return nil
	})
	slices.Reverse(files)
	if log != "" {
		files = append(files, log)
	}
	return files, err
}
