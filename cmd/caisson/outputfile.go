package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/caisson-run/caisson/tools/workspace"
)

// outputFile is an open file for results: an answer, a patch, an export. It is opened
// before the agent runs, so that changes to its name don't redirect the result. A nil
// outputFile discards what is written.
type outputFile struct{ file *os.File }

// openOutputFile creates or empties a file. It refuses symlinks, also to its directory,
// pipes, and files with other names: a session may have made them in a workspace to
// misdirect the result.
func openOutputFile(path string) (*outputFile, error) {
	f, err := workspace.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errors.New("it is no regular file")
	case manyNames(info):
		err = errors.New("the file has other names, which would change too")
	default:
		err = f.Truncate(0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &outputFile{f}, nil
}

func (f *outputFile) Write(p []byte) (int, error) {
	if f == nil {
		return len(p), nil
	}
	return f.file.Write(p)
}

// Empty removes what was written. Nothing may be written after it.
func (f *outputFile) Empty() error {
	if f == nil {
		return nil
	}
	return f.file.Truncate(0)
}

// Close closes the file. It fails if the name no longer leads to it: the result is not
// where the user wants it.
func (f *outputFile) Close() error {
	if f == nil {
		return nil
	}
	return errors.Join(f.checkName(), f.file.Close())
}

func (f *outputFile) checkName() error {
	written, err := f.file.Stat()
	if err != nil {
		return fmt.Errorf("examine %s: %w", f.file.Name(), err)
	}
	named, err := os.Lstat(f.file.Name())
	if err != nil || !os.SameFile(written, named) {
		return fmt.Errorf("%s was removed or replaced while the run went on", f.file.Name())
	}
	return nil
}

func manyNames(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink > 1
}
