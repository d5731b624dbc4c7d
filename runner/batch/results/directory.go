package results

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// partPrefix begins the names of files that are being written.
const partPrefix = ".part-"

// directory is a store in a directory, which may be on a file system that machines share.
type directory struct{ dir string }

func openDirectory(dir string) (Store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	return directory{dir}, nil
}

// Put implements [Store]. The object appears by a hard link, which is atomic on network
// file systems too, and fails if the name exists.
func (d directory) Put(ctx context.Context, name string, content io.ReadSeeker, size int64) (err error) {
	if err := errors.Join(checkName(name), ctx.Err()); err != nil {
		return err
	}
	path := filepath.Join(d.dir, filepath.FromSlash(name))
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s: %w", name, ErrExists)
	}
	if err := d.makeParent(path); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), partPrefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	n, err := io.Copy(f, content)
	if err == nil && n != size {
		err = fmt.Errorf("%s: %d bytes: want %d", name, n, size)
	}
	if err := errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	err = os.Link(f.Name(), path)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: %w", name, ErrExists)
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// makeParent makes the directory of a file, which lasts.
func (d directory) makeParent(path string) error {
	err := os.Mkdir(filepath.Dir(path), 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(d.dir)
}

// Get implements [Store].
func (d directory) Get(_ context.Context, name string) (io.ReadCloser, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	return os.Open(filepath.Join(d.dir, filepath.FromSlash(name)))
}

// Has implements [Store].
func (d directory) Has(_ context.Context, name string) (bool, error) {
	if err := checkName(name); err != nil {
		return false, err
	}
	_, err := os.Lstat(filepath.Join(d.dir, filepath.FromSlash(name)))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// List implements [Store].
func (d directory) List(_ context.Context, dir string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(d.dir, dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// String returns the path.
func (d directory) String() string { return d.dir }

// syncDir makes new names in a directory last.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
