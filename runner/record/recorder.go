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

// RecorderOptions configures a [Recorder].
type RecorderOptions struct {
	// Dir is the session's directory. It must exist, and hold no trace unless After is set.
	Dir string
	// After is the end of the trace that is continued, as [Reader.Position] returned it
	// there; nil begins one. What follows it in the file, a torn line, is cut off.
	After *Position
	// Session is the id in every record.
	Session string
	// Secrets never reach a record.
	Secrets []redact.Secret
	// Mirror gets every record and its line, without the newline, in order,
	// once it is in the file. It must not call the Recorder. Nil does nothing.
	Mirror func(r Record, line []byte)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Write and Sync replace the methods of [os.File], for tests. Nil uses the
	// file's own.
	Write func(f *os.File, line []byte) (int, error)
	Sync  func(f *os.File) error
}

// Recorder writes one session's records: numbered without gaps, each chained
// to the line before, also across the processes of a session. The caller of [NewRecorder] closes it. It is safe for concurrent
// use: a Write waits for no sync, and calls of Sync that come while one is
// under way share the next. After one failed write or sync every other call
// fails: nothing is recorded after a gap. Its errors wrap tools.ErrRecord.
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
	// synced is the last record that is on the disk; syncing reports that a
	// goroutine puts more there, and flushed wakes those who wait for it.
	synced  int64
	syncing bool
	flushed *sync.Cond
	// placed reports that the names of the trace and its directory are on the disk.
	placed bool
}

// FirstHash stands before the first record.
var FirstHash = strings.Repeat("0", 64)

// NewRecorder creates the trace, or opens the one that is continued, and the directory
// for spilled values.
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

// cutTorn cuts a trace off behind its last whole line.
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

// Entry is the caller's part of a record; the Recorder adds the rest.
type Entry struct {
	Turn    string
	Parent  string
	Actor   Actor
	Payload Payload
}

// Write appends one record and returns its id. It is in the file when Write
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
	// One write a line: what a crash leaves is whole lines and at most one torn one.
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

// Sync puts what was written before it was called on the disk. It is called
// before an effect that can't be undone. One that comes while another is under
// way waits for that one, whose sync may have begun too early, and then shares
// the next with all others that wait.
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

// flushLocked puts all that is written on the disk. It lets go of mu meanwhile,
// so that others go on writing; the caller holds mu, and no sync is under way.
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

// syncFiles syncs the values first: a record on the disk refers to nothing that is
// not. The first time it syncs the directories too, which hold the names.
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

// Synced returns the number of the last record that is on the disk.
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

// Close syncs and closes the trace. A second call does nothing.
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

// failLocked keeps the first failure: what comes after it is its consequence.
func (r *Recorder) failLocked(err error) error {
	if r.err != nil {
		return r.err
	}
	r.err = fmt.Errorf("%w: %w", tools.ErrRecord, err)
	return r.err
}
