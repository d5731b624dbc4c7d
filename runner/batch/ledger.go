package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/runner/batch/task"
	"github.com/caisson-run/caisson/tools/workspace"
)

// A batch's files, below its directory.
const (
	SpecFile    = "batch.json"
	ResultsFile = "results.jsonl"
	SummaryFile = "summary.json"
	// TrialsDir has a directory for each finished trial, which contains ResultFile.
	TrialsDir  = "trials"
	ResultFile = "result.json"

	runningDir = "running" // trials without a result yet
	lockFile   = "lock"
)

// Spec describes a batch, as in batch.json.
type Spec struct {
	SchemaVersion int       `json:"schema_version"` // 1
	Created       time.Time `json:"created_at"`
	// Version is the program's. Backend is the sandboxes' backend.
	Version string `json:"version"`
	Backend string `json:"backend"`
	// Settings are what else results depend on, for people. They can't change, but agents
	// that are added have new ones.
	Settings map[string]string `json:"settings,omitempty"`
	Tasks    []SpecTask        `json:"tasks"`
	Agents   []string          `json:"agents"`
	Attempts int               `json:"attempts"`
	Shard    Shard             `json:"shard,omitzero"`
	// DroppedMicroUSD is the cost of attempts without a result, in millionths of a
	// dollar.
	DroppedMicroUSD int64 `json:"dropped_cost_micro_usd,omitempty"`
}

// AgentSetting begins the keys of [Spec.Settings] that say which program an agent is.
const AgentSetting = "agent "

// SpecTask is a task in a [Spec].
type SpecTask struct {
	ID          string   `json:"id"`
	Source      string   `json:"source"`
	Checksum    string   `json:"checksum"`
	Unsupported []string `json:"unsupported,omitempty"`
}

// supportTried returns s without the reasons against tasks that have results of its agents:
// another machine could run them, or this one with other settings.
func (s Spec) supportTried(results []Result) Spec {
	tried := map[string]bool{}
	for _, r := range results {
		tried[r.Task] = tried[r.Task] || slices.Contains(s.Agents, r.Agent)
	}
	s.Tasks = slices.Clone(s.Tasks)
	for i := range s.Tasks {
		if tried[s.Tasks[i].ID] {
			s.Tasks[i].Unsupported = nil
		}
	}
	return s
}

// NewSpecTasks converts tasks for a [Spec].
func NewSpecTasks(tasks []task.Task) []SpecTask {
	list := []SpecTask{}
	for _, t := range tasks {
		list = append(list, SpecTask{ID: t.ID, Source: t.Source, Checksum: t.Checksum, Unsupported: t.Unsupported})
	}
	return list
}

// CheckSpec returns a [MismatchError] if a batch with results under old can't continue
// as s.
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
		was, known := old.Settings[key]
		if isNew := !known && strings.HasPrefix(key, AgentSetting); was != value && !isNew {
			return &MismatchError{What: key, Old: was, New: value}
		}
	}
	return nil
}

// keepSettings adds another spec's settings, so that agents that are left out once can't
// change meanwhile.
func (s *Spec) keepSettings(o Spec) {
	settings := map[string]string{}
	maps.Copy(settings, o.Settings)
	maps.Copy(settings, s.Settings)
	s.Settings = settings
}

// MismatchError reports that a directory's results belong to another batch.
type MismatchError struct {
	// What is the difference, such as "task hello" or "backend".
	What, Old, New string
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("the results there are of another batch: %s was %q and is %q", e.What, e.Old, e.New)
}

// ErrInUse is the error if another process runs a batch in the directory.
var ErrInUse = errors.New("another process runs a batch in this directory")

// ErrForeign is the error for a directory with files that was never a batch's.
var ErrForeign = errors.New("the directory has files that are not a batch's")

// ErrNoBatch is the error for a directory without a batch.
var ErrNoBatch = errors.New("no batch in this directory")

// ErrDamagedSpec is the error for an unreadable batch.json.
var ErrDamagedSpec = errors.New(SpecFile + " is damaged")

// TrialError reports a finished trial's directory without a readable result.
type TrialError struct {
	Dir string
	Err error
}

func (e *TrialError) Error() string { return fmt.Sprintf("%s has no result: %v", e.Dir, e.Err) }

func (e *TrialError) Unwrap() error { return e.Err }

// Ending is the part of a result that a [Ledger] keeps in memory.
type Ending struct {
	Outcome Outcome
	// CostMicroUSD is in millionths of a dollar, 0 if unknown.
	CostMicroUSD int64
}

// Ending returns the part of the result that a ledger keeps.
func (r Result) Ending() Ending {
	micro, _ := r.costMicroUSD()
	return Ending{r.Outcome, micro}
}

// Ledger is a batch's state on disk. It is safe for concurrent use. The caller of
// [OpenLedger] closes it.
//
// Each trial works in a directory below running. Its result is first written there, to
// result.json. Then the directory is moved to trials, and the result is appended to
// results.jsonl. Each step is on disk before the next. The trials' directories are the
// truth: opening the ledger removes those below running, appends results that
// results.jsonl lacks, and drops results of trials without a directory.
type Ledger struct {
	dir  string
	lock *state.Lock

	mu      sync.Mutex
	spec    Spec
	file    *os.File // results.jsonl
	failed  error    // the first failure to append
	endings map[Key]Ending
	repairs Repairs
}

// OpenLedger opens a batch's ledger in a directory: [LockLedger] and [Ledger.Load].
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

// LockLedger reserves a directory, which it makes if necessary, for this process until
// Close. The error wraps [ErrInUse], or [ErrForeign], because a batch removes files in
// its directory. Until Load, only Load and Close may be called.
func LockLedger(dir string) (*Ledger, error) {
	dir = filepath.Clean(dir)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, trialMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	if err := CheckNames(dir); err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "lost+found" }) // a file system may be mounted there
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

// Load reads the directory's batch and repairs it; see [Ledger.Repairs]. The error
// wraps a [MismatchError] if it is another batch, and a [TrialError] if a trial has
// neither a line nor a file with its result. Agents, attempts and tasks may have
// changed: finished trials stay.
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

// writeSpec writes batch.json unless it belongs to another batch.
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
		s.keepSettings(old)
	}
	if s.Created.IsZero() {
		s.Created = time.Now().UTC()
	}
	s.SchemaVersion = 1
	l.spec = s
	return writeJSON(filepath.Join(l.dir, SpecFile), s)
}

// trialMode is the mode of a batch's directory and of its trials'. Files of agents and
// verifiers can contain the user's secrets.
const trialMode = 0o700

// Begin makes an empty directory for a trial that starts, possibly again.
func (l *Ledger) Begin(k Key) (dir string, err error) {
	dir = filepath.Join(l.dir, runningDir, k.Name())
	if err := workspace.RemoveTree(dir); err != nil {
		return "", err
	}
	return dir, os.Mkdir(dir, trialMode)
}

// Finish keeps the result of a trial with its files in Begin's directory. If the trial
// has a result already, the new one and its files are dropped.
func (l *Ledger) Finish(r Result) error {
	r.SchemaVersion, r.Name = 1, r.Key.Name()
	from, to := filepath.Join(l.dir, runningDir, r.Name), filepath.Join(l.dir, TrialsDir, r.Name)
	if _, known := l.Ending(r.Key); known {
		return workspace.RemoveTree(from)
	}
	if err := errors.Join(os.Chmod(from, trialMode), writeJSON(filepath.Join(from, ResultFile), r)); err != nil { // a worker's files can have changed the mode
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
// millionths of a dollar, still counts.
func (l *Ledger) Drop(k Key, microUSD int64) error {
	return errors.Join(workspace.RemoveTree(filepath.Join(l.dir, runningDir, k.Name())), l.AddCost(microUSD))
}

// AddCost adds the cost of an attempt without a result, in millionths of a dollar.
func (l *Ledger) AddCost(microUSD int64) error {
	if microUSD == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spec.DroppedMicroUSD += microUSD
	return writeJSON(filepath.Join(l.dir, SpecFile), l.spec)
}

// appendResult appends a line. The caller holds mu, or is alone. After a failure it
// appends no more, because a partial line may be there.
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

// Ending returns a trial's ending, if it has one.
func (l *Ledger) Ending(k Key) (Ending, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.endings[k]
	return e, ok
}

// Endings returns the endings of those trials that have one.
func (l *Ledger) Endings(trials []Trial) []Ending {
	var list []Ending
	for _, t := range trials {
		if e, ok := l.Ending(t.Key); ok {
			list = append(list, e)
		}
	}
	return list
}

// CostMicroUSD returns the known cost of all trials, in millionths of a dollar.
func (l *Ledger) CostMicroUSD() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	sum := l.spec.DroppedMicroUSD
	for _, e := range l.endings {
		sum += e.CostMicroUSD
	}
	return sum
}

// Dir returns the batch's directory.
func (l *Ledger) Dir() string { return l.dir }

// Close closes the ledger and unlocks its directory.
func (l *Ledger) Close() error {
	var err error
	if l.file != nil {
		err = l.file.Close()
	}
	_ = os.Remove(filepath.Join(l.dir, runningDir)) // it stays if a trial is in it
	return errors.Join(err, l.lock.Release())
}

// ReadSpec returns the spec of the batch in a directory. The error wraps [ErrNoBatch]
// if there is none.
func ReadSpec(dir string) (Spec, error) {
	var s Spec
	text, err := readFile(dir, SpecFile)
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

// IsRunning reports whether a process runs the batch in a directory. It makes no file.
func IsRunning(dir string) (bool, error) {
	if err := CheckNames(dir); err != nil {
		return false, err
	}
	return state.IsHeld(filepath.Join(dir, lockFile))
}

// NameError reports a symlink or a special file where a batch has only files and
// directories. Results may come from others, so nothing is read or written through
// these.
type NameError struct{ Path string }

func (e *NameError) Error() string {
	return e.Path + " is a symlink or a special file, and a batch has none there"
}

// CheckNames returns a [NameError] for a name in a directory that only the harness
// writes to.
func CheckNames(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if !e.IsDir() && !e.Type().IsRegular() {
			return &NameError{filepath.Join(dir, e.Name())}
		}
	}
	return err
}

// readFile reads a file of a directory that only the harness writes to.
func readFile(dir, name string) ([]byte, error) {
	if err := CheckNames(dir); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(dir, name))
}

// writeJSON replaces a file durably by indented JSON.
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

// partPrefix starts the names of unfinished files.
const partPrefix = ".part-"

// WriteFile replaces a batch's file durably. Others see the old or the new content,
// never a mixture.
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
