package lifecycle

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/images"
)

// ImageFiles are an image's files, by absolute path. Symlinks are not followed:
// a path through one counts as a symlink itself. The error for a missing file
// is fs.ErrNotExist.
type ImageFiles interface {
	Lstat(name string) (fs.FileMode, error)
	// ReadFile reads a regular file of at most limit bytes.
	ReadFile(name string, limit int64) ([]byte, error)
}

type rootFiles struct{ root *images.RootFS }

func (r rootFiles) Lstat(name string) (fs.FileMode, error) {
	if slices.ContainsFunc(r.root.Files, func(f images.File) bool { return f.Path == name }) {
		return 0, nil
	}
	if slices.ContainsFunc(r.root.Symlinks, func(l images.Symlink) bool { return name == l.Path || isBelow(name, l.Path) }) {
		return fs.ModeSymlink, nil
	}
	var mode fs.FileMode
	err := r.inBind(name, func(dir *os.Root, rel string) (err error) {
		mode, err = lstatIn(dir, rel)
		return err
	})
	return mode, err
}

func (r rootFiles) ReadFile(name string, limit int64) (text []byte, err error) {
	err = r.inBind(name, func(dir *os.Root, rel string) error {
		f, err := dir.Open(rel)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // it was only read
		info, err := f.Stat()
		if err != nil || !info.Mode().IsRegular() || info.Size() > limit {
			return errors.Join(err, fmt.Errorf("%s is no file of at most %d bytes", name, limit))
		}
		text, err = io.ReadAll(io.LimitReader(f, limit))
		return err
	})
	return text, err
}

// inBind calls f with the directory of the bind that contains a file, and the
// file's path in it.
func (r rootFiles) inBind(name string, f func(dir *os.Root, rel string) error) error {
	best := images.Bind{}
	for _, b := range r.root.Binds {
		if (b.Path == name || b.IsDir && isBelow(name, b.Path)) && len(b.Path) > len(best.Path) {
			best = b
		}
	}
	if best.Path == "" {
		return fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	dir, rel := best.Source, strings.TrimPrefix(strings.TrimPrefix(name, best.Path), "/")
	if !best.IsDir {
		dir, rel = path.Split(best.Source)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // a directory
	return f(root, rel)
}

// lstatIn returns the mode of a file, or of the first symlink in its path.
func lstatIn(dir *os.Root, rel string) (fs.FileMode, error) {
	for i := range len(rel) + 1 {
		if i < len(rel) && rel[i] != '/' {
			continue
		}
		info, err := dir.Lstat(rel[:i])
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return 0, fs.ErrNotExist
		case err != nil:
			return 0, err
		case i == len(rel) || info.Mode().Type() == fs.ModeSymlink:
			return info.Mode(), nil
		case !info.IsDir():
			return 0, fs.ErrNotExist
		}
	}
	return 0, fs.ErrNotExist
}
