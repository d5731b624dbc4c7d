// Package programs finds the programs that sandboxes need: caisson-guest, which
// is process 1 of every container, and the runtimes.
package programs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Finder finds programs: beside this process's executable, then at the
// configured path, then among the programs embedded in a release build, then on
// PATH. It never returns a program in a directory that commands can write to,
// such as the workspace, and ignores relative elements of PATH, which could
// name one.
type Finder struct {
	// Executable is os.Executable, or replaces it.
	Executable func() (string, error)
	// Path is the value of PATH.
	Path string
	// Writable returns the directories that commands can write to; no program
	// in them may be started. It may return empty strings, and is called for
	// each program. Nil means none.
	Writable func() []string
	// Cache is the directory to which embedded programs are unpacked, once per
	// version. If it is "", they can't be used.
	Cache string
}

// Find returns the absolute path, with symlinks resolved, of the first of names
// that is found. configured is a path from the configuration or nil. The error
// is a [*NotFoundError] or an [*UnpackError].
func (f *Finder) Find(configured *string, names ...string) (string, error) {
	missing := &NotFoundError{Name: names[0]}
	try := func(candidate string) string {
		path, err := f.resolve(candidate)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing.Tried = append(missing.Tried, candidate)
		case err != nil:
			err = fmt.Errorf("%s (%w)", candidate, err)
			missing.Tried, missing.Err = append(missing.Tried, err.Error()), cmp.Or(missing.Err, err)
		}
		return path
	}
	var preferred []string
	if dir := f.OwnDir(); dir != "" {
		preferred = joinAll([]string{dir}, names...)
	}
	if configured != nil {
		preferred = append(preferred, *configured)
	}
	for _, candidate := range preferred {
		if path := try(candidate); path != "" {
			return path, nil
		}
	}
	for _, name := range names {
		switch path, err := f.unpackProgram(name); {
		case err != nil:
			return "", &UnpackError{Name: name, Err: err}
		case path == "":
		default:
			if path = try(path); path != "" {
				return path, nil
			}
		}
	}
	for _, candidate := range joinAll(filepath.SplitList(CleanPath(f.Path, nil)), names...) {
		if path := try(candidate); path != "" {
			return path, nil
		}
	}
	return "", missing
}

// OwnDir returns the directory of this process's program, or "" if unknown.
func (f *Finder) OwnDir() string {
	self, err := f.Executable()
	if err != nil {
		return ""
	}
	path, err := filepath.EvalSymlinks(self)
	if err != nil {
		return ""
	}
	return filepath.Dir(path)
}

// resolve returns a program's path with symlinks resolved, or why it must not
// be started.
func (f *Finder) resolve(candidate string) (string, error) {
	path, err := filepath.EvalSymlinks(candidate)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case !filepath.IsAbs(path):
		return "", errors.New("not an absolute path")
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return "", errors.New("not an executable file")
	case info.Mode().Perm()&0o002 != 0:
		return "", errors.New("every user can write it")
	}
	if f.Writable == nil {
		return path, nil
	}
	if dir := FindWritable(f.Writable(), path); dir != "" {
		return "", fmt.Errorf("commands in the sandbox can write to %s", dir)
	}
	return path, nil
}

// FindWritable returns the directory in writable that path is or lies in, or
// "".
func FindWritable(writable []string, path string) string {
	tops := make([]fs.FileInfo, len(writable))
	for i, dir := range writable {
		tops[i], _ = os.Stat(dir) // nil: nothing lies in it
	}
	for ; ; path = filepath.Dir(path) {
		info, err := os.Stat(path)
		for i, top := range tops {
			if err == nil && top != nil && os.SameFile(info, top) {
				return writable[i]
			}
		}
		if path == filepath.Dir(path) {
			return ""
		}
	}
}

// NotFoundError reports a program that was not found.
type NotFoundError struct {
	Name  string
	Tried []string // paths, some with the reason why they don't count
	// Err is the first path with its reason, or nil.
	Err error
}

// Error names the program and the first places searched.
func (e *NotFoundError) Error() string {
	text := "find " + e.Name + ": it is not there"
	if len(e.Tried) > 0 {
		text += "; tried " + strings.Join(e.Tried[:min(len(e.Tried), 6)], ", ")
	}
	return text
}
