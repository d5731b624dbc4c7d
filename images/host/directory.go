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

// maxEntries bounds the tree that a rootfs reference may name, so that a
// mistyped folder does not walk a disk.
const maxEntries = 2_000_000

// made are the entries of / that the skeleton makes itself even if the folder
// has them: mount points of the sandbox, and what must not come from an image.
var reserved = map[string]bool{
	".caisson": true, "dev": true, "home": true, "proc": true, "root": true,
	"run": true, "sys": true, "tmp": true, "workspace": true, "lost+found": true,
}

// Directory describes the root filesystem unpacked in dir, an absolute folder.
// Every entry at its top is bound read-only over a skeleton that holds the
// mount points, so that the folder itself is never written, not even to add a
// mount point. It fails with [images.ErrNotFound] if there is no such folder and
// [images.ErrInvalid] if it is none, or has no /bin/sh.
func Directory(ctx context.Context, dir string) (*images.RootFS, error) {
	root, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: rootfs:%s: there is no such folder", images.ErrNotFound, dir)
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

// Tree describes the root filesystem in dir, which a store has unpacked for ref.
// Its Digest is the caller's to set.
func Tree(ref images.Reference, dir string) (*images.RootFS, error) {
	r, err := describeTree(dir)
	if err != nil {
		return nil, err
	}
	r.Reference = ref
	return r, sealLayout(r, nil)
}

// IsReserved reports whether the skeleton makes the top-level entry name itself,
// whatever an image has there.
func IsReserved(name string) bool { return reserved[name] }

// describe lists what the root filesystem in root is mounted by.
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

// addTop adds one entry of the folder's top. Devices, sockets and the like
// have no business there and are left out.
func addTop(r *images.RootFS, root string, e fs.DirEntry) error {
	source, p := filepath.Join(root, e.Name()), "/"+e.Name()
	switch {
	case e.Type()&fs.ModeSymlink != 0:
		target, err := os.Readlink(source)
		if err != nil {
			return fmt.Errorf("read rootfs: %w", err)
		}
		r.Symlinks = append(r.Symlinks, images.Symlink{Path: p, Target: target})
		// A link to /etc or /var stands in for the mount point of that name.
		r.Dirs = slices.DeleteFunc(r.Dirs, func(d images.Dir) bool { return d.Path == p })
	case e.IsDir(), e.Type().IsRegular():
		r.Binds = append(r.Binds, images.Bind{Source: source, Path: p, IsDir: e.IsDir()})
	}
	return nil
}

// hasShell says whether /bin is there at all and, if it is a folder, holds a
// shell; a link is followed inside the container only.
func hasShell(r *images.RootFS) bool {
	for _, l := range r.Symlinks {
		if l.Path == "/bin" {
			return true
		}
	}
	_, err := os.Lstat(filepath.Join(r.Dir, "bin", "sh"))
	return err == nil
}

// treeFacts lists every entry's name, mode, size and time, and link target.
func listTree(ctx context.Context, root string) ([]string, error) {
	var facts []string
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrPermission) {
				return nil // unreadable for us, named by its own entry
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
