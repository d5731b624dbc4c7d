package task

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Options configures [Load].
type Options struct {
	// Lookup returns host variables that tasks refer to as ${NAME}. Tasks are not
	// trusted: they can send these anywhere. Nil means no variables.
	Lookup func(name string) (value string, found bool)
}

// ErrNoTask is the error for a path without tasks.
var ErrNoTask = errors.New("no tasks: want a directory with task.toml, a .jsonl file, or a directory of these")

// Load reads tasks from paths: Harbor task directories, files of JSON lines, or
// directories of these. Tasks are in the order of paths, and within a directory by
// name, Harbor's first. Two tasks with the same ID are an error. An invalid Harbor task
// is unsupported, with the reason; an invalid line is an error of type [*Error].
func Load(paths []string, o Options) ([]Task, error) {
	if o.Lookup == nil {
		o.Lookup = func(string) (string, bool) { return "", false }
	}
	var all []Task
	seen := map[string]string{}
	for _, path := range paths {
		list, err := loadPath(path, o)
		if err != nil {
			return nil, err
		}
		for _, t := range list {
			if other, ok := seen[t.ID]; ok {
				return nil, &Error{t.Source, fmt.Errorf("another task is also called %q: %s", t.ID, other)}
			}
			seen[t.ID] = t.Source
		}
		all = append(all, list...)
	}
	return all, nil
}

func loadPath(path string, o Options) ([]Task, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, &Error{path, failed.Err}
	}
	if err != nil {
		return nil, &Error{path, err}
	}
	if !info.IsDir() {
		if filepath.Ext(path) != ".jsonl" {
			return nil, &Error{path, ErrNoTask}
		}
		return loadLines(path)
	}
	if isTask(path) {
		return []Task{loadHarbor(path, o)}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, &Error{path, err}
	}
	var list []Task
	for _, e := range entries {
		if dir := filepath.Join(path, e.Name()); isTask(dir) {
			list = append(list, loadHarbor(dir, o))
		}
	}
	isMixed := len(list) > 0
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".jsonl" || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if isMixed { // whoever reads only the directories would miss it
			return nil, &Error{path, fmt.Errorf("%s is beside directories of tasks, and its tasks may use any directory of this machine: name the file and the directories", e.Name())}
		}
		tasks, err := loadLines(filepath.Join(path, e.Name()))
		if err != nil {
			return nil, err
		}
		list = append(list, tasks...)
	}
	if len(list) == 0 {
		return nil, &Error{path, ErrNoTask}
	}
	return list, nil
}

func isTask(dir string) bool {
	return isFile(filepath.Join(dir, "task.toml")) || isFile(filepath.Join(dir, "task.yaml"))
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// HashTree hashes the names, kinds, executable bits and contents below a directory.
func HashTree(dir string) (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return hashEntry(sum, path, name, d)
	})
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), err
}

func hashEntry(sum hash.Hash, path, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		fmt.Fprintf(sum, "d %q\n", name)
	case fs.ModeSymlink:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "l %q %q\n", name, target)
	case 0:
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // only read
		content := sha256.New()
		if _, err := io.Copy(content, f); err != nil {
			return err
		}
		fmt.Fprintf(sum, "f %q %v %x\n", name, info.Mode()&0o111 != 0, content.Sum(nil))
	default:
		return fmt.Errorf("%s is a special file", name)
	}
	return nil
}

// variableError reports a variable that a task refers to but isn't given.
type variableError struct{ name string }

func (e *variableError) Error() string {
	return fmt.Sprintf("the variable %s is not set, or not given to tasks", e.name)
}

// expandValue replaces ${NAME} and ${NAME:-default}. Other $ stay. The error names the
// first variable that is not set and has no default.
func (o Options) expandValue(value string) (string, error) {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(value, "${")
		b.WriteString(before)
		if !found {
			return b.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			b.WriteString("${" + rest)
			return b.String(), nil
		}
		name, def, hasDefault := strings.Cut(name, ":-")
		v, set := o.Lookup(name)
		switch {
		case hasDefault && v == "":
			v = def
		case !set && !hasDefault:
			return "", &variableError{name}
		}
		b.WriteString(v)
		value = after
	}
}

// expandVariables returns variables as NAME=value, sorted by name.
func (o Options) expandVariables(table map[string]string) ([]string, error) {
	var list []string
	for name, value := range table {
		value, err := o.expandValue(value)
		if err != nil {
			return nil, fmt.Errorf("env %s: %w", name, err)
		}
		list = append(list, name+"="+value)
	}
	slices.Sort(list)
	return list, nil
}
