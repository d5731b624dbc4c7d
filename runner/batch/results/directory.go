package results

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
)

// partPrefix starts the names of files that are being written.
const partPrefix = ".part-"

// partAge is the age from which such a file must be left from a machine that died. It
// allows for long writes and different clocks.
const partAge = 7 * 24 * time.Hour

// directory is a store in a directory, possibly on a shared file system. Others may be
// able to write there, so nothing is read or written outside it, even through symlinks.
type directory struct {
	dir  string
	root *os.Root
}

func openDirectory(dir string) (Store, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	d := directory{dir, root}
	return d, d.removeParts()
}

// removeParts removes what died machines left unfinished.
func (d directory) removeParts() error {
	return fs.WalkDir(d.root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasPrefix(e.Name(), partPrefix) {
			return err
		}
		info, err := e.Info()
		if err == nil && time.Since(info.ModTime()) > partAge {
			err = d.root.Remove(name)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) { // another machine removed it, or another user owns it
			return nil
		}
		return err
	})
}

// Put makes the object appear with a hard link. That is atomic on network file systems
// too, and fails if the name exists.
func (d directory) Put(ctx context.Context, name string, content io.ReadSeeker, size int64) (err error) {
	if err := errors.Join(checkName(name), ctx.Err()); err != nil {
		return err
	}
	if _, err := d.root.Lstat(name); err == nil {
		return fmt.Errorf("%s: %w", name, ErrExists)
	}
	dir := path.Dir(name)
	if err := d.makeParent(dir); err != nil {
		return err
	}
	part := path.Join(dir, partPrefix+rand.Text())
	f, err := d.root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.root.Remove(part)) }()
	n, err := io.Copy(f, content)
	if err == nil && n != size {
		err = fmt.Errorf("%s: %d bytes: want %d", name, n, size)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	err = d.root.Link(part, name)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: %w", name, ErrExists)
	}
	if err != nil {
		return err
	}
	return d.syncDir(dir)
}

// makeParent makes a directory durably.
func (d directory) makeParent(dir string) error {
	err := d.root.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.syncDir(".")
}

func (d directory) Get(_ context.Context, name string) (io.ReadCloser, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	f, err := d.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // opening a pipe would block
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (d directory) Has(_ context.Context, name string) (bool, error) {
	if err := checkName(name); err != nil {
		return false, err
	}
	_, err := d.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (d directory) List(_ context.Context, dir string) ([]string, error) {
	entries, err := fs.ReadDir(d.root.FS(), dir)
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

func (d directory) String() string { return d.dir }

// syncDir makes a directory's new names durable.
func (d directory) syncDir(dir string) error {
	f, err := d.root.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
