package batch

import (
	"bufio"
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

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Repairs lists faults that [Ledger.Load] repaired.
type Repairs struct {
	// Damaged counts the unreadable lines of results.jsonl. They were removed; results
	// of finished trials among them were appended again.
	Damaged int
	// Missing are trials without a directory. Their results were dropped, so they run
	// again.
	Missing []Key
}

// Repairs returns what Load repaired.
func (l *Ledger) Repairs() Repairs { return l.repairs }

// checkTrialsDir returns an error if there are results but no trials directory. It must
// have been moved or removed as a whole, and all trials would run again.
func (l *Ledger) checkTrialsDir() error {
	trials := filepath.Join(l.dir, TrialsDir)
	if _, err := os.Stat(trials); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if info, err := os.Stat(filepath.Join(l.dir, ResultsFile)); err == nil && info.Size() > 0 {
		return &TrialError{trials, fmt.Errorf("%s has results, and this directory is missing", ResultsFile)}
	}
	return nil
}

func (l *Ledger) removeUnfinished() error {
	parts, err := filepath.Glob(filepath.Join(l.dir, partPrefix+"*"))
	for _, path := range append(parts, filepath.Join(l.dir, runningDir)) {
		err = errors.Join(err, workspace.RemoveTree(path))
	}
	return err
}

// recoverResults reads results.jsonl and makes it agree with the trials' directories.
func (l *Ledger) recoverResults(s Spec) error {
	path := filepath.Join(l.dir, ResultsFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	l.file = f
	dirs, err := trialDirs(l.dir)
	if err != nil {
		return err
	}
	sums := map[string]string{}
	for _, t := range s.Tasks {
		sums[t.ID] = t.Checksum
	}
	l.endings = map[Key]Ending{}
	whole, damaged, err := scanResults(f, func(r Result, _ []byte) error {
		if sum, known := sums[r.Task]; known && r.Checksum != "" && r.Checksum != sum {
			return &MismatchError{What: "task " + r.Task, Old: r.Checksum, New: sum}
		}
		name := r.Key.Name()
		if _, known := l.endings[r.Key]; !known && !dirs[name] {
			l.repairs.Missing = append(l.repairs.Missing, r.Key)
			return nil
		}
		l.endings[r.Key] = r.Ending()
		delete(dirs, name)
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	l.repairs.Damaged = len(damaged)
	if len(damaged) > 0 || len(l.repairs.Missing) > 0 {
		err = l.rewriteResults(path)
	} else if err = f.Truncate(whole); err == nil {
		_, err = f.Seek(whole, io.SeekStart)
	}
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(dirs)) {
		r, err := readTrial(l.dir, name)
		if err != nil {
			return err
		}
		if err := l.appendResult(r); err != nil {
			return err
		}
	}
	return state.SyncDir(l.dir)
}

// rewriteResults keeps only the lines of finished trials in results.jsonl.
func (l *Ledger) rewriteResults(path string) error {
	if _, err := l.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	err := WriteFile(path, func(w io.Writer) error {
		_, _, err := scanResults(l.file, func(r Result, line []byte) error {
			if _, known := l.endings[r.Key]; !known {
				return nil
			}
			_, err := w.Write(line)
			return err
		})
		return err
	})
	if err = errors.Join(err, l.file.Close()); err != nil {
		return err
	}
	l.file, err = os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	return err
}

func trialDirs(dir string) (map[string]bool, error) {
	entries, err := os.ReadDir(filepath.Join(dir, TrialsDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names := map[string]bool{}
	for _, e := range entries {
		if e.IsDir() {
			names[e.Name()] = true
		} else if e.Type() == fs.ModeSymlink {
			return nil, &NameError{filepath.Join(dir, TrialsDir, e.Name())}
		}
	}
	return names, nil
}

func readTrial(dir, name string) (Result, error) {
	path := filepath.Join(dir, TrialsDir, name)
	r, err := ReadResult(path)
	if err == nil && r.Key.Name() != name {
		err = fmt.Errorf("%s is that of another trial", ResultFile)
	}
	if err != nil {
		return r, &TrialError{path, err}
	}
	return r, nil
}

// scanResults calls f for each readable line of results.jsonl. It returns the total
// length of the terminated lines, and the offsets of damaged ones.
func scanResults(r io.Reader, f func(r Result, line []byte) error) (whole int64, damaged []int64, err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return whole, damaged, nil // the rest was cut off
		}
		if err != nil {
			return whole, damaged, err
		}
		var r Result
		if json.Unmarshal(line, &r) != nil || !r.isSound() {
			damaged = append(damaged, whole)
		} else if err := f(r, line); err != nil {
			return whole, damaged, err
		}
		whole += int64(len(line))
	}
}

// isSound reports whether a decoded result can be a trial's: its name, if any, fits its
// key, and its reward is valid.
func (r Result) isSound() bool {
	known := r.Outcome.Judged() || r.Outcome == Infrastructure || r.Outcome == Suspect
	finite := r.Reward == nil || isReward(*r.Reward/2) // a mean may be rounded up
	words := isWord(string(r.Class)) && isWord(r.Limit) && !slices.ContainsFunc(r.Faults, func(f Fault) bool { return !isWord(string(f.Class)) })
	return known && finite && words && r.Task != "" && r.Agent != "" && (r.Name == "" || r.Name == r.Key.Name())
}

// isWord reports whether a text can be a class or the kind of a limit, which are shown as they are.
func isWord(text string) bool {
	return strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789_-") == ""
}

// ReadResults returns the results of the batch in a directory in the order in which
// trials ended, even while it runs. Results that results.jsonl lacks come from the
// trials' directories.
func ReadResults(dir string) ([]Result, error) {
	f, err := os.Open(filepath.Join(dir, ResultsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	var list []Result
	names := map[string]bool{}
	_, damaged, err := scanResults(f, func(r Result, _ []byte) error {
		if name := r.Key.Name(); !names[name] {
			names[name] = true
			list = append(list, r)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	dirs, err := trialDirs(dir)
	if err != nil {
		return nil, err
	}
	found := 0
	for _, name := range slices.Sorted(maps.Keys(dirs)) {
		if names[name] {
			continue
		}
		r, err := readTrial(dir, name)
		if err != nil {
			return nil, err
		}
		found++
		list = append(list, r)
	}
	if found < len(damaged) {
		return nil, fmt.Errorf("%s: the line after byte %d is damaged, and no directory of a trial has its result", f.Name(), damaged[0])
	}
	return list, nil
}

// ReadResult returns the result in a finished trial's directory.
func ReadResult(dir string) (Result, error) {
	var r Result
	text, err := readFile(dir, ResultFile)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && !r.isSound() {
		err = fmt.Errorf("%s is not that of a trial", ResultFile)
	}
	return r, err
}
