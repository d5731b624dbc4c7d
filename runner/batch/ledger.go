package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/tools/workspace"
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
	// DroppedMicroUSD is the cost of tries that have no result, in millionths of a dollar.
	DroppedMicroUSD int64 `json:"dropped_cost_micro_usd,omitempty"`
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

// ErrForeign is the error for a directory that has files and never was one of a batch.
var ErrForeign = errors.New("the directory has files that are not a batch's")

// ErrNoBatch is the error for a directory without a batch.
var ErrNoBatch = errors.New("no batch in this directory")

// ErrDamagedSpec is the error for a batch.json that can't be read.
var ErrDamagedSpec = errors.New(SpecFile + " is damaged")

// TrialError reports the directory of a finished trial whose result can't be read.
type TrialError struct {
	Dir string
	Err error
}

// Error names the directory.
func (e *TrialError) Error() string { return fmt.Sprintf("%s has no result: %v", e.Dir, e.Err) }

// Unwrap returns the cause.
func (e *TrialError) Unwrap() error { return e.Err }

// Ending is the part of a result that a [Ledger] keeps in memory.
type Ending struct {
	Outcome Outcome
	// CostMicroUSD is the cost in millionths of a dollar, 0 if it is unknown.
	CostMicroUSD int64
}

// Ending returns what a ledger keeps of the result.
func (r Result) Ending() Ending {
	micro, _ := r.costMicroUSD()
	return Ending{r.Outcome, micro}
}

// Ledger is the state of a batch on disk. It is safe for concurrent use. The caller of
// [OpenLedger] closes it.
//
// A trial works in a directory of its own below running. When it has a result, that is
// written to result.json there, the directory is moved to trials, and the result is
// appended to results.jsonl; each step is on disk before the next. The directories of
// trials count: opening the ledger removes those below running, appends results that
// results.jsonl lacks, and drops those of trials that have no directory.
type Ledger struct {
	dir  string
	lock *state.Lock

	mu      sync.Mutex
	spec    Spec
	file    *os.File // results.jsonl
	failed  error    // of the first result that could not be appended
	endings map[Key]Ending
	repairs Repairs
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
// made if it is missing. Its error wraps [ErrInUse], or [ErrForeign]: what a batch removes in
// its directory must not be another's. Only Load and Close may be called then.
func LockLedger(dir string) (*Ledger, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if err := checkNames(dir); err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "lost+found" }) // of a file system that is mounted there
	if len(entries) > 0 && !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == lockFile || e.Name() == SpecFile }) {
		return nil, fmt.Errorf("%s: %w", dir, ErrForeign)
	}
	lock, err := state.Acquire(context.Background(), filepath.Join(dir, lockFile), state.ReleaseTime)
	if errors.Is(err, state.ErrHeld) {
		return nil, fmt.Errorf("%s: %w", dir, ErrInUse)
	}
	if err != nil {
		return nil, err
	}
	return &Ledger{dir: dir, lock: lock}, nil
}

// Load reads what the directory has of a batch, and repairs it: [Ledger.Repairs] returns
// what was wrong. Its error wraps a [MismatchError] if that is another batch, and a
// [TrialError] if a trial has neither a line nor a file with its result. Agents, attempts and
// tasks may be other ones than before: what was finished stays.
func (l *Ledger) Load(s Spec) error {
	if err := l.removeUnfinished(); err != nil {
		return fmt.Errorf("remove what a killed batch left: %w", err)
	}
	if err := l.checkTrialsDir(); err != nil {
		return err
	}
	if err := l.writeSpec(s); err != nil {
		return err
	}
	for _, name := range []string{runningDir, TrialsDir} {
		if err := os.Mkdir(filepath.Join(l.dir, name), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return l.recoverResults(s)
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
		s.Created, s.DroppedMicroUSD = old.Created, max(s.DroppedMicroUSD, old.DroppedMicroUSD)
	}
	if s.Created.IsZero() {
		s.Created = time.Now().UTC()
	}
	s.SchemaVersion = 1
	l.spec = s
	return writeJSON(filepath.Join(l.dir, SpecFile), s)
}

// trialMode is the mode of the directories of trials. Files that agents and verifiers wrote
// can contain secrets of the user who runs the batch.
const trialMode = 0o700

// Begin makes the empty directory of a trial that starts, or starts again.
func (l *Ledger) Begin(k Key) (dir string, err error) {
	dir = filepath.Join(l.dir, runningDir, k.Name())
	if err := workspace.RemoveTree(dir); err != nil {
		return "", err
	}
	return dir, os.Mkdir(dir, trialMode)
}

// Finish keeps the result of a trial whose files are in the directory of Begin. A
// second result of the trial is dropped with its files.
func (l *Ledger) Finish(r Result) error {
	r.SchemaVersion, r.Name = 1, r.Key.Name()
	from, to := filepath.Join(l.dir, runningDir, r.Name), filepath.Join(l.dir, TrialsDir, r.Name)
	if _, known := l.Ending(r.Key); known {
		return workspace.RemoveTree(from)
	}
	if err := errors.Join(os.Chmod(from, trialMode), writeJSON(filepath.Join(from, ResultFile), r)); err != nil { // files of a worker can have changed the mode
		return err
	}
	if err := errors.Join(os.Rename(from, to), state.SyncDir(filepath.Join(l.dir, TrialsDir))); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appendResult(r)
}

// Drop removes the directory of a trial that ended without a result. Its cost, in
// millionths of a dollar, stays in the cost of the batch.
func (l *Ledger) Drop(k Key, microUSD int64) error {
	return errors.Join(workspace.RemoveTree(filepath.Join(l.dir, runningDir, k.Name())), l.AddCost(microUSD))
}

// AddCost adds the cost of a try that has no result.
func (l *Ledger) AddCost(microUSD int64) error {
	if microUSD == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spec.DroppedMicroUSD += microUSD
	return writeJSON(filepath.Join(l.dir, SpecFile), l.spec)
}

// appendResult appends a line. The caller holds mu, or is alone. Once it has failed, no line
// is appended, since a part of one may be there.
func (l *Ledger) appendResult(r Result) error {
	if l.failed != nil {
		return l.failed
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = l.file.Write(append(line, '\n'))
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		l.failed = fmt.Errorf("write result: %w", err)
		return l.failed
	}
	if _, known := l.endings[r.Key]; !known {
		l.endings[r.Key] = r.Ending()
	}
	return nil
}

// Ending returns how a trial ended, if it has a result.
func (l *Ledger) Ending(k Key) (Ending, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.endings[k]
	return e, ok
}

// Endings returns how those of some trials ended that have a result.
func (l *Ledger) Endings(trials []Trial) []Ending {
	var list []Ending
	for _, t := range trials {
		if e, ok := l.Ending(t.Key); ok {
			list = append(list, e)
		}
	}
	return list
}

// CostMicroUSD returns what all trials have cost, in millionths of a dollar. The part that is
// unknown counts as nothing.
func (l *Ledger) CostMicroUSD() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := l.spec.DroppedMicroUSD
	for _, e := range l.endings {
		sum += e.CostMicroUSD
	}
	return sum
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
	return errors.Join(err, l.lock.Release())
}

// ReadSpec returns the spec of the batch in a directory. Its error wraps [ErrNoBatch] if
// there is none.
func ReadSpec(dir string) (Spec, error) {
	var s Spec
	err := checkNames(dir)
	var text []byte
	if err == nil {
		text, err = os.ReadFile(filepath.Join(dir, SpecFile))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return s, fmt.Errorf("%s: %w", dir, ErrNoBatch)
	}
	if err != nil {
		return s, fmt.Errorf("read batch: %w", err)
	}
	err = json.Unmarshal(text, &s)
	if err == nil && s.SchemaVersion != 1 {
		err = fmt.Errorf("schema version %d: want 1", s.SchemaVersion)
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w: %w", dir, ErrDamagedSpec, err)
	}
	return s, nil
}

// NameError reports a symlink or a special file where a batch has only files and directories.
// Results may come from somebody else, so nothing is read or written through one.
type NameError struct{ Path string }

// Error names it.
func (e *NameError) Error() string {
	return e.Path + " is a symlink or a special file, and a batch has none there"
}

// checkNames returns a [NameError] for a name in a directory that only the harness writes to.
func checkNames(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !e.IsDir() && !e.Type().IsRegular() {
			return &NameError{filepath.Join(dir, e.Name())}
		}
	}
	return err
}

// writeJSON replaces a file by an indented document, which is on disk afterwards.
func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(path, func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
}

// partPrefix begins the names of files that are not written whole.
const partPrefix = ".part-"

// WriteFile replaces a file of a batch by what write writes, which is on disk afterwards.
// Others see the old file or the new one, whole.
func WriteFile(path string, write func(w io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), partPrefix+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	err = errors.Join(write(f), f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return state.SyncDir(filepath.Dir(path))
}
