package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/caisson-run/caisson/tools/workspace"
)

// outputFile is an open file for results: an answer, a patch, an export. It is opened before
// the agent runs, and held, so that nothing that happens to its name meanwhile changes where
// the result goes. A nil outputFile discards what is written.
type outputFile struct{ file *os.File }

// openOutputFile creates or empties a file. A directory reached through a link that an earlier
// session could have made, and a name that is a link, a pipe, or one of several names
// of a file, is refused: what lies in a workspace may have been put there for this.
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

// Write implements io.Writer.
func (f *outputFile) Write(p []byte) (int, error) {
	if f == nil {
		return len(p), nil
	}
	return f.file.Write(p)
}

// Empty removes what was written. Nothing is written after it.
func (f *outputFile) Empty() error {
	if f == nil {
		return nil
	}
	return f.file.Truncate(0)
}

// Close closes the file. It fails where the file's name leads to another file by now:
// what was written is not where it was asked for.
func (f *outputFile) Close() error {
	if f == nil {
		return nil
	}
	return errors.Join(f.checkName(), f.file.Close())
}

// checkName reports a file that was removed or replaced since it was opened.
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

// manyNames reports whether a file has more than one hard link.
func manyNames(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Nlink > 1
}
