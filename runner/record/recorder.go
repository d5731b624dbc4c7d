package record

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/tools"
)

// TraceFile is the name of the trace in a session's directory.
const TraceFile = "trace.jsonl"

// PatchFile is the name of the patch of a session's changes, in its directory.
const PatchFile = "workspace.patch"

// RecorderOptions are the options of a [Recorder].
type RecorderOptions struct {
	// Dir is the session's directory. It must exist, and have no trace unless
	// After is set.
	Dir string
	// After is the end of the existing trace to continue, from
	// [Reader.Position]; nil begins a new one. A torn line after it is cut off.
	After   *Position
	Session string
	// Secrets never reach a record.
	Secrets []redact.Secret
	// Mirror, if not nil, is called with every record and its line, without the
	// newline, in order, once it is in the file. It must not call the Recorder.
	Mirror func(r Record, line []byte)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Write and Sync replace the methods of [os.File], for tests. Nil uses the
	// file's.
	Write func(f *os.File, line []byte) (int, error)
	Sync  func(f *os.File) error
}

// Recorder writes one session's records, also across the processes of a
// session. They are numbered without gaps, and each is chained to the line
// before. The caller must close it. It is safe for concurrent use: Write does
// not wait for Sync, and concurrent calls of Sync share the next sync. After a
// failed write or sync all other calls fail, so that nothing is recorded after
// a gap. Errors wrap tools.ErrRecord.
type Recorder struct {
	opts   RecorderOptions
	redact *redact.Redactor

	mu   sync.Mutex
	file *os.File
	seq  int64
	prev string
	err  error
	// spilled are the files of values that are not on the disk yet.
	spilled []string
	// synced is the last record on the disk. syncing reports that a goroutine
	// is syncing, and flushed wakes the ones that wait for it.
	synced  int64
	syncing bool
	flushed *sync.Cond
	// placed reports that the trace's and its directory's names are on the
	// disk.
	placed bool
}

// FirstHash is the first record's Prev.
var FirstHash = strings.Repeat("0", 64)

// NewRecorder creates the trace, or opens the one to continue, and creates the
// directory for spilled values.
func NewRecorder(opts RecorderOptions) (*Recorder, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if err := os.MkdirAll(filepath.Join(opts.Dir, SpillDir), 0o700); err != nil {
		return nil, fmt.Errorf("create spill directory: %w", err)
	}
	if opts.Write == nil {
		opts.Write = (*os.File).Write
	}
	if opts.Sync == nil {
		opts.Sync = (*os.File).Sync
	}
	at := StartPosition()
	flags := os.O_CREATE | os.O_EXCL
	if opts.After != nil {
		at, flags = *opts.After, 0
	}
	file, err := os.OpenFile(filepath.Join(opts.Dir, TraceFile), os.O_WRONLY|os.O_APPEND|flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	if err := cutTorn(file, at.Offset); err != nil {
		return nil, errors.Join(fmt.Errorf("continue trace: %w", err), file.Close())
	}
	r := &Recorder{opts: opts, redact: redact.New(opts.Secrets), file: file, seq: at.Seq, prev: at.Hash}
	r.flushed = sync.NewCond(&r.mu)
	return r, nil
}

// cutTorn cuts a trace off after its last whole line.
func cutTorn(file *os.File, end int64) error {
	info, err := file.Stat()
	switch {
	case err != nil:
		return err
	case info.Size() < end:
		return fmt.Errorf("%d bytes of %d are gone", end-info.Size(), end)
	case info.Size() == end:
		return nil
	}
	return file.Truncate(end)
}

// Entry is the caller's part of a record. The Recorder adds the rest.
type Entry struct {
	Turn    string
	Parent  string
	Actor   Actor
	Payload Payload
}

// Write appends a record and returns its ID. It is in the file when Write
// returns, and on the disk after the next [Recorder.Sync].
func (r *Recorder) Write(e Entry) (string, error) {
	raw, err := marshalUnescaped(e.Payload)
	if err != nil {
		return "", r.fail(fmt.Errorf("encode %s: %w", e.Payload.Kind(), err))
	}
	raw = r.redact.JSON(raw)

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return "", r.err
	}
	id := NewID("rec")
	raw, spilled, err := spillPayload(r.opts.Dir, id, raw)
	if err != nil {
		return "", r.failLocked(err)
	}
	r.spilled = append(r.spilled, spilled...)
	rec := Record{
		SchemaVersion: SchemaVersion, Seq: r.seq + 1, ID: id, Time: r.opts.Now().UTC().Truncate(time.Microsecond),
		Session: r.opts.Session, Turn: e.Turn, Parent: e.Parent,
		Actor: e.Actor, Kind: e.Payload.Kind(), Payload: raw, Prev: r.prev,
	}
	text, err := Encode(rec)
	if err != nil {
		return "", r.failLocked(err)
	}
	// One write per line: a crash leaves whole lines and at most one torn one.
	if _, err := r.opts.Write(r.file, append(text, '\n')); err != nil {
		return "", r.failLocked(err)
	}
	sum := sha256.Sum256(text)
	r.seq, r.prev = rec.Seq, hex.EncodeToString(sum[:])
	if r.opts.Mirror != nil {
		r.opts.Mirror(rec, text)
	}
	return id, nil
}

// Sync puts all earlier writes on the disk. Call it before an effect that can't
// be undone. A call during another one's sync, which may have begun too early,
// waits for it and then shares the next with all others that wait.
func (r *Recorder) Sync() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for target := r.seq; r.err == nil && r.synced < target; {
		if r.syncing {
			r.flushed.Wait()
			continue
		}
		r.flushLocked()
	}
	return r.err
}

// flushLocked syncs all that is written. It releases mu meanwhile, so that
// others can write. The caller holds mu, and no sync is under way.
func (r *Recorder) flushLocked() {
	upTo, spilled, placed := r.seq, r.spilled, r.placed
	r.syncing, r.spilled = true, nil
	r.mu.Unlock()
	err := r.syncFiles(spilled, placed)
	r.mu.Lock()
	r.syncing = false
	if err != nil {
		_ = r.failLocked(fmt.Errorf("sync trace: %w", err))
	} else {
		r.synced, r.placed = upTo, true
	}
	r.flushed.Broadcast()
}

// syncFiles syncs the values first, so that no record on the disk refers to a
// value that is not. The first time it also syncs the directories, which have
// the names.
func (r *Recorder) syncFiles(spilled []string, placed bool) error {
	for _, path := range spilled {
		if err := r.fsyncPath(filepath.Join(r.opts.Dir, path)); err != nil {
			return err
		}
	}
	if len(spilled) > 0 {
		if err := r.fsyncPath(filepath.Join(r.opts.Dir, SpillDir)); err != nil {
			return err
		}
	}
	if err := r.opts.Sync(r.file); err != nil {
		return err
	}
	if placed {
		return nil
	}
	return errors.Join(r.fsyncPath(r.opts.Dir), r.fsyncPath(filepath.Dir(r.opts.Dir)))
}

func (r *Recorder) fsyncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // nothing was written through it
	if err := r.opts.Sync(f); err != nil && !state.IsUnsyncable(err) {
		return err
	}
	return nil
}

// Synced returns the number of the last record on the disk.
func (r *Recorder) Synced() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.synced
}

// Head returns the number of the last record and the hash of its line.
func (r *Recorder) Head() (seq int64, sha256 string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seq, r.prev
}

// Path returns the path of the trace.
func (r *Recorder) Path() string { return filepath.Join(r.opts.Dir, TraceFile) }

// Close syncs and closes the trace. Further calls do nothing.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.syncing {
		r.flushed.Wait()
	}
	if errors.Is(r.err, os.ErrClosed) {
		return nil
	}
	var err error
	if r.err == nil {
		if r.flushLocked(); r.err != nil {
			err = r.err
		}
	}
	err = errors.Join(err, r.file.Close())
	r.err = fmt.Errorf("%w: %w", tools.ErrRecord, os.ErrClosed)
	return err
}

func (r *Recorder) fail(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failLocked(err)
}

// failLocked keeps the first failure, which causes the later ones.
func (r *Recorder) failLocked(err error) error {
	if r.err != nil {
		return r.err
	}
	r.err = fmt.Errorf("%w: %w", tools.ErrRecord, err)
	return r.err
}
