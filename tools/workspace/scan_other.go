//go:build !linux

package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// scanDir is an open directory of a scan.
type scanDir struct {
	tree *tree
	file *os.File
	rel  string

	state dirState // unknown: Go has no change time
}

// openScan opens name in parent, or, if that is nil, the path name of the
// workspace. It enters another mount only where cross says so.
func (t *tree) openScan(parent *scanDir, name string, cross bool) (*scanDir, error) {
	rel := name
	if parent != nil {
		rel = joinPath(parent.rel, name)
	}
	f, err := t.openScanFile(rel, cross)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %w", errGone, err)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: %w", errClosedDir, err)
	case err != nil:
		return nil, err
	}
	return &scanDir{tree: t, file: f, rel: rel}, nil
}

func (t *tree) openScanFile(rel string, cross bool) (*os.File, error) {
	name := filepath.FromSlash(rel)
	fi, err := t.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		return nil, errGone
	}
	if !cross && !sameDevice(t.self, fi) {
		return nil, ErrMount
	}
	return t.root.Open(name)
}

// stateOf returns an unknown state.
func (d *scanDir) stateOf(string) (dirState, error) { return d.state, nil }

func (d *scanDir) close() { _ = d.file.Close() }

// nextNames returns the next entries; none are the end.
func (d *scanDir) nextNames(context.Context) ([]dirName, error) {
	entries, err := d.file.ReadDir(scanBatch / 64)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	var names []dirName
	for _, e := range entries {
		names = append(names, dirName{typ: typeOf(e.Type()), name: e.Name()})
	}
	return names, err
}

// stat describes one entry of the directory.
func (d *scanDir) stat(name string) (ScanStat, error) {
	path := filepath.FromSlash(joinPath(d.rel, name))
	fi, err := d.tree.root.Lstat(path)
	if err != nil {
		return ScanStat{}, err
	}
	info := infoOf(fi)
	out := ScanStat{Type: info.Type, Mode: uint32(fi.Mode().Perm()), Links: 1, Size: fi.Size(), Blocks: (fi.Size() + 511) / 512, ModTime: fi.ModTime(), ChangeTime: fi.ModTime()}
	if out.Type == TypeSymlink {
		out.Target, err = d.tree.root.Readlink(path)
	}
	return out, err
}

// statEntry describes rel, a symlink itself if it is one.
func (t *tree) statEntry(rel string) (ScanStat, error) {
	dir, name := splitPath(rel)
	if name == "" {
		name = "."
	}
	return (&scanDir{tree: t, rel: dir}).stat(name)
}
