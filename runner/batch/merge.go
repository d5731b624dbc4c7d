package batch

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// Merge makes a ledger in dir from the batches in other directories, with hard links to
// their trials' files if possible. If several have the same trial, it keeps the first
// result and returns the trial in twice. If batches differ in their tasks, backend or
// settings, the error is a [MismatchError].
func Merge(dir string, from []string) (twice []Key, err error) {
	var all Spec
	for i, d := range from {
		s, err := ReadSpec(d)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			all = s
			all.Shard = Shard{}
			continue
		}
		if err := errors.Join(s.CheckSpec(all), all.CheckSpec(s)); err != nil {
			return nil, fmt.Errorf("%s: %w", d, err)
		}
		all.addSpec(s)
	}
	l, err := OpenLedger(dir, all)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	seen := map[Key]bool{}
	for _, d := range from {
		results, err := ReadResults(d)
		if err != nil {
			return nil, err
		}
		for _, r := range results {
			if seen[r.Key] {
				twice = append(twice, r.Key)
			}
			seen[r.Key] = true
			if _, known := l.Ending(r.Key); known { // or from a merge that was killed
				continue
			}
			if err := l.adoptTrial(r, filepath.Join(d, TrialsDir, r.Key.Name())); err != nil {
				return nil, fmt.Errorf("trial %s: %w", r.Name, err)
			}
		}
	}
	return twice, nil
}

func (s *Spec) addSpec(o Spec) {
	s.keepSettings(o)
	known := map[string]int{}
	for i, t := range s.Tasks {
		known[t.ID] = i
	}
	for _, t := range o.Tasks {
		i, ok := known[t.ID]
		if !ok {
			s.Tasks = append(s.Tasks, t)
			continue
		}
		// A shard knows only of its own tasks what can't be run.
		for _, reason := range t.Unsupported {
			if !slices.Contains(s.Tasks[i].Unsupported, reason) {
				s.Tasks[i].Unsupported = append(slices.Clip(s.Tasks[i].Unsupported), reason)
			}
		}
	}
	for _, a := range o.Agents {
		if !slices.Contains(s.Agents, a) {
			s.Agents = append(s.Agents, a)
		}
	}
	s.Attempts = max(s.Attempts, o.Attempts)
	s.DroppedMicroUSD += o.DroppedMicroUSD
}

func (l *Ledger) adoptTrial(r Result, from string) error {
	if err := CheckNames(from); err != nil {
		return err
	}
	to, err := l.Begin(r.Key)
	if err != nil {
		return err
	}
	if err := linkTree(from, to); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(to, ResultFile)); err != nil { // writing to it would change the other batch's
		return err
	}
	return l.Finish(r)
}

// linkTree makes the files below a directory appear in another one, without those whose
// paths are too long. It copies symlinks and never follows them.
func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) (end error) {
		defer func() {
			if errors.Is(end, syscall.ENAMETOOLONG) {
				end = nil
				if d != nil && d.IsDir() {
					end = fs.SkipDir
				}
			}
		}()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil || name == "." {
			return err
		}
		target := filepath.Join(to, name)
		switch {
		case d.IsDir():
			return os.Mkdir(target, 0o755)
		case d.Type() == fs.ModeSymlink:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		}
		if os.Link(path, target) == nil {
			return nil
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
