package batch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gofrs/flock"

	"github.com/caisson-run/caisson/runner/batch/task"
)

// The files of a batch, below its directory.
const (
	SpecFile    = "batch.json"
	ResultsFile = "results.jsonl"
	SummaryFile = "summary.json"
	// TrialsDir has a directory for each finished trial, with ResultFile in it.
	TrialsDir  = "trials"
	ResultFile = "result.json"

	runningDir = "running" // trials that have no result yet
	lockFile   = "lock"
)

// Spec describes a batch, as batch.json has it.
type Spec struct {
	SchemaVersion int       `json:"schema_version"` // 1
	Created       time.Time `json:"created_at"`
	// Version is that of the program, Backend the name of the sandboxes' backend.
	Version string `json:"version"`
	Backend string `json:"backend"`
	// Settings have what else results depend on, for people; those of a batch can't
	// change.
	Settings map[string]string `json:"settings,omitempty"`
	Tasks    []SpecTask        `json:"tasks"`
	Agents   []string          `json:"agents"`
	Attempts int               `json:"attempts"`
	Shard    Shard             `json:"shard,omitzero"`
}

// SpecTask is one task of a batch.
type SpecTask struct {
	ID       string `json:"id"`
	Source   string `json:"source"`
	Checksum string `json:"checksum"`
	// Unsupported are the reasons why it has no trials.
	Unsupported []string `json:"unsupported,omitempty"`
}

// NewSpecTasks returns tasks as a spec has them.
func NewSpecTasks(tasks []task.Task) []SpecTask {
	list := []SpecTask{}
	for _, t := range tasks {
		list = append(list, SpecTask{ID: t.ID, Source: t.Source, Checksum: t.Checksum, Unsupported: t.Unsupported})
	}
	return list
}

// CheckSpec returns an error if a batch with results by old can't go on as s.
func (s Spec) CheckSpec(old Spec) error {
	sums := map[string]string{}
	for _, t := range old.Tasks {
		sums[t.ID] = t.Checksum
	}
	for _, t := range s.Tasks {
		if sum, known := sums[t.ID]; known && sum != t.Checksum {
			return &MismatchError{What: "task " + t.ID, Old: sum, New: t.Checksum}
		}
	}
	if s.Backend != old.Backend {
		return &MismatchError{What: "backend", Old: old.Backend, New: s.Backend}
	}
	for key, value := range s.Settings {
		if old.Settings[key] != value {
			return &MismatchError{What: key, Old: old.Settings[key], New: value}
		}
	}
	return nil
}

// MismatchError reports that the results of a directory are of another batch.
type MismatchError struct {
	// What differs, such as "task hello" or "backend".
	What, Old, New string
}

// Error names what differs.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("the results there are of another batch: %s was %q and is %q", e.What, e.Old, e.New)
}

// ErrInUse is the error for a directory in which another process runs a batch.
var ErrInUse = errors.New("another process runs a batch in this directory")

// ErrNoBatch is the error for a directory without a batch.
var ErrNoBatch = errors.New("no batch in this directory")

// Ledger is the state of a batch on disk. It is safe for concurrent use. The caller of
// [OpenLedger] closes it.
//
// A trial works in a directory of its own below running. When it has a result, that is
// written to result.json there, the directory is moved to trials, and the result is
// appended to results.jsonl; each step is on disk before the next. The directories of
// trials count: opening the ledger removes those below running, and
// appends results that results.jsonl lacks.
type Ledger struct {
	dir  string
	lock *flock.Flock

	mu      sync.Mutex
	file    *os.File // results.jsonl
	results map[Key]Result
	order   []Key
}

// OpenLedger opens the ledger in a directory for a batch: [LockLedger] and
// [Ledger.Load].
func OpenLedger(dir string, s Spec) (*Ledger, error) {
	l, err := LockLedger(dir)
	if err != nil {
		return nil, err
	}
	if err := l.Load(s); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// LockLedger makes a directory the one of this process alone until Close. The directory is
// made if it is missing. Its error wraps [ErrInUse]. Only Load and Close may be called then.
func LockLedger(dir string) (*Ledger, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	l := &Ledger{dir: dir, lock: flock.New(filepath.Join(dir, lockFile))}
	held, err := l.lock.TryLock()
	if err == nil && !held {
		err = fmt.Errorf("%s: %w", dir, ErrInUse)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Load reads what the directory has of a batch. Its error wraps a [MismatchError] if that
// is another batch. Agents, attempts and tasks may be other ones than before: what was
// finished stays.
func (l *Ledger) Load(s Spec) error {
	if err := l.writeSpec(s); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(l.dir, runningDir)); err != nil {
		return fmt.Errorf("remove what a killed batch left: %w", err)
	}
	for _, name := range []string{runningDir, TrialsDir} {
		if err := os.Mkdir(filepath.Join(l.dir, name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return l.recoverResults()
}

// writeSpec writes batch.json, unless it is of another batch.
func (l *Ledger) writeSpec(s Spec) error {
	old, err := ReadSpec(l.dir)
	switch {
	case errors.Is(err, ErrNoBatch):
	case err != nil:
		return err
	default:
		if err := s.CheckSpec(old); err != nil {
			return fmt.Errorf("%s: %w", l.dir, err)
		}
		s.Created = old.Created
	}
	if s.Created.IsZero() {
		s.Created = time.Now().UTC()
	}
	s.SchemaVersion = 1
	return writeJSON(filepath.Join(l.dir, SpecFile), s)
}

// recoverResults reads results.jsonl, cuts off a line that was not written whole, and appends
// results of finished trials that it lacks.
func (l *Ledger) recoverResults() error {
	path := filepath.Join(l.dir, ResultsFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	l.file = f
	whole, err := l.readResults(f)
	if err != nil {
		return err
	}
	if err := f.Truncate(whole); err != nil {
		return err
	}
	if _, err := f.Seek(whole, io.SeekStart); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(l.dir, TrialsDir))
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for k := range l.results {
		known[k.Name()] = true
	}
	for _, e := range entries {
		if known[e.Name()] {
			continue
		}
		r, err := ReadResult(filepath.Join(l.dir, TrialsDir, e.Name()))
		if err != nil {
			return fmt.Errorf("trial %s: %w", e.Name(), err)
		}
		if err := l.appendResult(r); err != nil {
			return err
		}
	}
	return syncDir(l.dir)
}

// readResults reads the lines of results.jsonl and returns the length of those that are
// whole. A line that is not the last must be.
func (l *Ledger) readResults(f *os.File) (whole int64, err error) {
	l.results = map[Key]Result{}
	in := bufio.NewReaderSize(f, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return whole, nil // what is without an end was cut off
		}
		if err != nil {
			return whole, err
		}
		var r Result
		if err := json.Unmarshal(line, &r); err != nil {
			if _, err := in.Peek(1); errors.Is(err, io.EOF) {
				return whole, nil
			}
			return whole, fmt.Errorf("%s: a line after byte %d is damaged: %w", f.Name(), whole, err)
		}
		l.keepResult(r)
		whole += int64(len(line))
	}
}

// keepResult keeps the first result of a trial.
func (l *Ledger) keepResult(r Result) {
	if _, known := l.results[r.Key]; !known {
		l.results[r.Key] = r
		l.order = append(l.order, r.Key)
	}
}

// Begin makes the empty directory of a trial that starts, or starts again.
func (l *Ledger) Begin(k Key) (dir string, err error) {
	dir = filepath.Join(l.dir, runningDir, k.Name())
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	return dir, os.Mkdir(dir, 0o755)
}

// Finish keeps the result of a trial whose files are in the directory of Begin. A
// second result of the trial is dropped with its files.
func (l *Ledger) Finish(r Result) error {
	r.SchemaVersion, r.Name = 1, r.Key.Name()
	from, to := filepath.Join(l.dir, runningDir, r.Name), filepath.Join(l.dir, TrialsDir, r.Name)
	if _, known := l.Result(r.Key); known {
		return os.RemoveAll(from)
	}
	if err := writeJSON(filepath.Join(from, ResultFile), r); err != nil {
		return err
	}
	if err := errors.Join(os.Rename(from, to), syncDir(filepath.Join(l.dir, TrialsDir))); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendResult(r)
}

// Drop removes the directory of a trial that ended without a result.
func (l *Ledger) Drop(k Key) error {
	return os.RemoveAll(filepath.Join(l.dir, runningDir, k.Name()))
}

// appendResult appends a line. The caller holds mu, or is alone.
func (l *Ledger) appendResult(r Result) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	l.keepResult(r)
	return nil
}

// Result returns the result of a trial, if it has one.
func (l *Ledger) Result(k Key) (Result, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r, ok := l.results[k]
	return r, ok
}

// Results returns all results in the order in which the trials ended.
func (l *Ledger) Results() []Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]Result, 0, len(l.order))
	for _, k := range l.order {
		list = append(list, l.results[k])
	}
	return list
}

// Dir returns the directory of the batch.
func (l *Ledger) Dir() string { return l.dir }

// Close ends the use of the directory.
func (l *Ledger) Close() error {
	var err error
	if l.file != nil {
		err = l.file.Close()
	}
	_ = os.Remove(filepath.Join(l.dir, runningDir)) // it stays if a trial is in it
	return errors.Join(err, l.lock.Unlock())
}

// ReadSpec returns the spec of the batch in a directory. Its error wraps [ErrNoBatch] if
// there is none.
func ReadSpec(dir string) (Spec, error) {
	var s Spec
	text, err := os.ReadFile(filepath.Join(dir, SpecFile))
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("%s: %w", dir, ErrNoBatch)
	}
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil && s.SchemaVersion != 1 {
		err = fmt.Errorf("schema version %d: want 1", s.SchemaVersion)
	}
	if err != nil {
		return s, fmt.Errorf("read batch: %w", err)
	}
	return s, nil
}

// ReadResults returns the results of the batch in a directory, also while it runs.
func ReadResults(dir string) ([]Result, error) {
	f, err := os.Open(filepath.Join(dir, ResultsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	var l Ledger
	if _, err := l.readResults(f); err != nil {
		return nil, err
	}
	return l.Results(), nil
}

// ReadResult returns the result in the directory of a finished trial.
func ReadResult(dir string) (Result, error) {
	var r Result
	text, err := os.ReadFile(filepath.Join(dir, ResultFile))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// writeJSON replaces a file by an indented document, which is on disk afterwards.
func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeWhole(path, append(text, '\n'))
}

// writeWhole replaces a file, which is on disk afterwards.
func writeWhole(path string, text []byte) error {
	part := path + ".part"
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, bytes.NewReader(text))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes renames in a directory last.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
