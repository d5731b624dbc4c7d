package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/layer"
	"github.com/caisson-run/caisson/images/store/internal/reader"
)

// Exported describes what [Store.Export] copied.
type Exported struct {
	Path    string
	Entries int
	Bytes   int64
}

// Export copies the image's directory name, by default its WORKDIR, into the
// directory dir, which must be empty or missing. The caller owns the copies.
// Permissions are kept, except set-user-ID bits. Each hard link becomes a file.
// Symlinks are copied and never followed. After an error dir may contain a
// part. Errors are of package images' classes.
func (s *Store) Export(ctx context.Context, ref images.Reference, name, dir string) (Exported, error) {
	root, release, err := s.RootFS(ctx, ref)
	if err != nil {
		return Exported{}, err
	}
	defer release()
	if name == "" {
		name = root.Config.WorkingDir
		if name == "" {
			return Exported{}, fmt.Errorf("image %s: %w: it has no WORKDIR: name a directory", ref, images.ErrNotFound)
		}
	}
	out := Exported{Path: path.Clean(name)}
	if !path.IsAbs(name) || strings.Contains(name+"/", "/../") || out.Path == "/" {
		return out, fmt.Errorf("image %s: %w: can't copy %q: want the absolute path of a directory other than /", ref, images.ErrInvalid, name)
	}
	from, err := openTreeDir(root.Dir, out.Path)
	if err != nil {
		return out, fmt.Errorf("image %s: copy %s: %w", ref, out.Path, err)
	}
	defer func() { _ = from.Close() }()
	to, err := openEmptyDir(dir)
	if err != nil {
		return out, fmt.Errorf("copy to %s: %w", dir, err)
	}
	defer func() { _ = to.Close() }()
	c := treeCopy{from: from, to: to, limits: s.o.Limits, done: &out}
	if err := c.copyTree(ctx); err != nil {
		return out, fmt.Errorf("image %s: copy %s: %w", ref, out.Path, err)
	}
	return out, nil
}

func openTreeDir(tree, name string) (*os.Root, error) {
	root, err := os.OpenRoot(tree)
	if err != nil {
		return nil, err
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(name, "/"), "/") {
		info, err := root.Lstat(part)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, errors.Join(fmt.Errorf("%w: the image has no such directory", images.ErrNotFound), root.Close())
		case err != nil:
			return nil, errors.Join(err, root.Close())
		case !info.IsDir():
			return nil, errors.Join(fmt.Errorf("%w: %s is not a directory, or a symlink to one", images.ErrInvalid, part), root.Close())
		}
		next, err := root.OpenRoot(part)
		_ = root.Close() // only read
		if err != nil {
			return nil, err
		}
		root = next
	}
	return root, nil
}

// openEmptyDir opens an empty directory, making it if it is missing.
func openEmptyDir(dir string) (*os.Root, error) {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	f, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	_, err = f.Readdirnames(1)
	_ = f.Close() // only read
	if err == nil {
		err = fmt.Errorf("%w: it is not empty", images.ErrInvalid)
	}
	if !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

type treeCopy struct {
	from, to *os.Root
	limits   layer.Limits
	done     *Exported
}

// copyTree copies everything. Directories are writable until they are complete.
func (c treeCopy) copyTree(ctx context.Context) error {
	return fs.WalkDir(c.from.FS(), ".", func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if c.done.Entries++; c.done.Entries > c.limits.Entries {
			return fmt.Errorf("%w: more than %d entries", images.ErrRefused, c.limits.Entries)
		}
		switch e.Type() {
		case fs.ModeDir:
			return c.to.Mkdir(p, 0o755)
		case fs.ModeSymlink:
			target, err := c.from.Readlink(p)
			if err != nil {
				return err
			}
			return c.to.Symlink(target, p)
		case 0:
			return c.copyFile(ctx, p)
		}
		return nil // the store unpacks no devices
	})
}

func (c treeCopy) copyFile(ctx context.Context, name string) (err error) {
	in, err := c.from.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if c.done.Bytes += info.Size(); !info.Mode().IsRegular() || c.done.Bytes > c.limits.Bytes {
		return fmt.Errorf("%w: more than %d bytes with each hard link a file", images.ErrRefused, c.limits.Bytes)
	}
	out, err := c.to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(reader.NewContextReader(ctx, in), info.Size()))
	return errors.Join(err, out.Chmod(info.Mode().Perm()|0o600), out.Close(), c.to.Chtimes(name, info.ModTime(), info.ModTime()))
}
