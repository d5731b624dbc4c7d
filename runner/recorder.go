package runner

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

	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/tools"
)

// TraceFile is the name of the trace in a session's folder.
const TraceFile = "trace.jsonl"

// RecorderOptions says what a [Recorder] writes, and where.
type RecorderOptions struct {
	// Dir is the session's folder. It must exist and hold no trace yet.
	Dir string
	// Session is the id in every record.
	Session string
	// Secrets never reach a record.
	Secrets []Secret
	// Mirror gets every record and its line, without the newline, in order,
	// once it is in the file. It must not call the Recorder. Nil is nobody.
	Mirror func(r Record, line []byte)
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Recorder writes one session's records: numbered without gaps, each chained
// to the line before. Whoever made it closes it. It is safe for concurrent
// use. After one failed write every other call fails: nothing is recorded
// after a gap. Its errors wrap tools.ErrRecord.
type Recorder struct {
	opts   RecorderOptions
	redact *redactor

	mu   sync.Mutex
	file *os.File
	seq  int64
	prev string
	err  error
}

// NewRecorder creates the trace and the folder for spilled values.
func NewRecorder(opts RecorderOptions) (*Recorder, error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if err := os.MkdirAll(filepath.Join(opts.Dir, spillDir), 0o700); err != nil {
		return nil, fmt.Errorf("create spill folder: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(opts.Dir, TraceFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create trace: %w", err)
	}
	return &Recorder{opts: opts, redact: newRedactor(opts.Secrets), file: file, prev: strings.Repeat("0", 64)}, nil
}

// Entry is what a caller says about a record; the Recorder adds the rest.
type Entry struct {
	Turn    string
	Parent  string
	Actor   Actor
	Payload Payload
}

// Write appends one record and returns its id. It is in the file when Write
// returns, and on the disk after the next [Recorder.Sync].
func (r *Recorder) Write(e Entry) (string, error) {
	raw, err := marshal(e.Payload)
	if err != nil {
		return "", r.fail(fmt.Errorf("encode %s: %w", e.Payload.Kind(), err))
	}
	raw = r.redact.bytes(raw)

	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return "", r.err
	}
	id := "rec_" + ulid.Make().String()
	raw, err = spillPayload(r.opts.Dir, id, raw)
	if err != nil {
		return "", r.failLocked(err)
	}
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
	if _, err := r.file.Write(append(text, '\n')); err != nil {
		return "", r.failLocked(err)
	}
	sum := sha256.Sum256(text)
	r.seq, r.prev = rec.Seq, hex.EncodeToString(sum[:])
	if r.opts.Mirror != nil {
		r.opts.Mirror(rec, text)
	}
	return id, nil
}

// Sync puts what was written on the disk. It is called before an effect that
// can't be undone.
func (r *Recorder) Sync() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return r.err
	}
	if err := r.file.Sync(); err != nil {
		return r.failLocked(err)
	}
	return nil
}

// Close syncs and closes the trace. A second call does nothing.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(r.err, os.ErrClosed) {
		return nil
	}
	err := errors.Join(r.file.Sync(), r.file.Close())
	r.err = fmt.Errorf("%w: %w", tools.ErrRecord, os.ErrClosed)
	return err
}

func (r *Recorder) fail(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failLocked(err)
}

func (r *Recorder) failLocked(err error) error {
	r.err = fmt.Errorf("%w: %w", tools.ErrRecord, err)
	return r.err
}
