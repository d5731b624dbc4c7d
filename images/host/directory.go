package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/caisson-run/caisson/images"
)

// maxEntries bounds a rootfs tree, so that a mistyped directory does not walk a
// disk.
const maxEntries = 2_000_000

// reserved are the top-level entries that the skeleton makes even if the image
// has them: the sandbox's mount points, and entries that must not come from an
// image.
var reserved = map[string]bool{
	".caisson": true, "dev": true, "home": true, "proc": true, "root": true,
	"run": true, "sys": true, "tmp": true, "workspace": true, "lost+found": true,
}

// Directory describes the root filesystem unpacked in dir, an absolute path.
// Each top-level entry is bound read-only over a skeleton with the mount
// points, so dir is never written to. It fails with [images.ErrNotFound] if dir
// does not exist and with [images.ErrInvalid] if it is not a directory or has
// no /bin/sh.
func Directory(ctx context.Context, dir string) (*images.RootFS, error) {
	root, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: rootfs:%s: no such directory", images.ErrNotFound, dir)
	} else if err != nil {
		return nil, fmt.Errorf("open rootfs:%s: %w", dir, err)
	}
	r, err := describeTree(root)
	if err != nil {
		return nil, fmt.Errorf("%w: rootfs:%s: %w", images.ErrInvalid, dir, err)
	}
	r.Reference = images.Reference{Scheme: images.SchemeRootFS, Value: filepath.Clean(dir)}
	if !hasShell(r) {
		return nil, fmt.Errorf("%w: rootfs:%s has no /bin/sh: is it an unpacked root filesystem?", images.ErrInvalid, dir)
	}
	tree, err := listTree(ctx, root)
	if err != nil {
		return nil, err
	}
	if err := sealLayout(r, tree); err != nil {
		return nil, fmt.Errorf("digest rootfs:%s: %w", dir, err)
	}
	return r, nil
}

// Tree describes the root filesystem that a store unpacked in dir for ref. The
// caller sets its Digest.
func Tree(ref images.Reference, dir string) (*images.RootFS, error) {
	r, err := describeTree(dir)
	if err != nil {
		return nil, err
	}
	r.Reference = ref
	return r, sealLayout(r, nil)
}

// IsReserved reports whether the skeleton makes the top-level entry name,
// whatever an image has there.
func IsReserved(name string) bool { return reserved[name] }

func describeTree(root string) (*images.RootFS, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, err
	}
	r := &images.RootFS{Dir: root, Dirs: mountPoints(), Files: mountFiles()}
	for _, e := range entries {
		if reserved[e.Name()] {
			continue
		}
		if err := addTop(r, root, e); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// addTop adds a top-level entry, except devices, sockets and the like.
func addTop(r *images.RootFS, root string, e fs.DirEntry) error {
	source, p := filepath.Join(root, e.Name()), "/"+e.Name()
	switch {
	case e.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(source)
		if err != nil {
			return fmt.Errorf("read rootfs: %w", err)
		}
		r.Symlinks = append(r.Symlinks, images.Symlink{Path: p, Target: target})
		// A symlink /etc or /var replaces the mount point.
		r.Dirs = slices.DeleteFunc(r.Dirs, func(d images.Dir) bool { return d.Path == p })
	case e.IsDir(), e.Type().IsRegular():
		r.Binds = append(r.Binds, images.Bind{Source: source, Path: p, IsDir: e.IsDir()})
	}
	return nil
}

// hasShell reports whether /bin is a symlink, which only the container follows,
// or has a shell.
func hasShell(r *images.RootFS) bool {
	for _, l := range r.Symlinks {
		if l.Path == "/bin" {
			return true
		}
	}
	_, err := os.Lstat(filepath.Join(r.Dir, "bin", "sh"))
	return err == nil
}

// listTree lists the name, mode, size, time and symlink target of every entry.
func listTree(ctx context.Context, root string) ([]string, error) {
	var facts []string
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrPermission) {
				return nil // its own entry is in the list
			}
			return err
		}
		if len(facts)%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if len(facts) == maxEntries {
			return fmt.Errorf("%w: more than %d entries", images.ErrInvalid, maxEntries)
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		target := ""
		if e.Type()&fs.ModeSymlink != 0 {
			if target, err = os.Readlink(p); err != nil {
				return err
			}
		}
		facts = append(facts, fmt.Sprintf("%s %o %d %d %s", p[len(root):], info.Mode(), info.Size(), info.ModTime().UnixNano(), target))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("walk rootfs:%s: %w", root, err)
	}
	return facts, nil
}
