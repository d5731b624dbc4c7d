package host

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/caisson-run/caisson/images"
)

type node struct {
	path   string
	mode   uint32
	dir    bool
	target string // a symlink's
	data   []byte
}

// listNodes lists the skeleton, parents first: directories, symlinks, files,
// and an empty file for each bind of a file. Mount points below a bind belong
// to the bind.
func listNodes(r *images.RootFS) []node {
	var list []node
	for _, d := range r.Dirs {
		list = append(list, node{path: d.Path, mode: d.Mode, dir: true})
	}
	for _, l := range r.Symlinks {
		list = append(list, node{path: l.Path, mode: 0o777, target: l.Target})
	}
	for _, f := range r.Files {
		list = append(list, node{path: f.Path, mode: 0o644, data: f.Content})
	}
	for _, b := range r.Binds {
		if !b.IsDir && !isCovered(r.Binds, b.Path) {
			list = append(list, node{path: b.Path, mode: 0o644})
		}
	}
	slices.SortFunc(list, func(a, b node) int {
		return strings.Compare(strings.ReplaceAll(a.path, "/", "\x00"), strings.ReplaceAll(b.path, "/", "\x00"))
	})
	return list
}

// WriteSkeleton creates r's skeleton in the empty directory dir: every mount
// point, symlink and synthetic file, with exact modes whatever the umask. The
// caller removes dir, even after an error. No other user may be able to write
// to dir.
func WriteSkeleton(r *images.RootFS, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("write image skeleton: %w", err)
	}
	defer func() { _ = root.Close() }() // a directory descriptor: no write can fail
	for _, n := range listNodes(r) {
		if err := n.writeTo(root); err != nil {
			return fmt.Errorf("write image skeleton: %w", err)
		}
	}
	return nil
}

func (n node) writeTo(root *os.Root) error {
	name := strings.TrimPrefix(n.path, "/")
	switch {
	case n.target != "":
		return root.Symlink(n.target, name)
	case n.dir:
		if err := root.Mkdir(name, 0o700); err != nil {
			return err
		}
	default:
		if err := root.WriteFile(name, n.data, 0o600); err != nil {
			return err
		}
	}
	return root.Chmod(name, fileMode(n.mode))
}

func fileMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	if mode&0o1000 != 0 {
		m |= fs.ModeSticky
	}
	return m
}

// WriteSkeletonTar writes r's skeleton as a tar archive, for an engine's
// import. Equal skeletons have equal bytes: root owns everything and the times
// are zero. To cancel it, close w.
func WriteSkeletonTar(r *images.RootFS, w io.Writer) error {
	tw := tar.NewWriter(w)
	for _, n := range listNodes(r) {
		h := &tar.Header{
			Name: strings.TrimPrefix(n.path, "/"), Mode: int64(n.mode), Size: int64(len(n.data)),
			Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
		}
		switch {
		case n.target != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, n.target
		case n.dir:
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		}
		if err := tw.WriteHeader(h); err != nil {
			return fmt.Errorf("write image skeleton: %w", err)
		}
		if _, err := tw.Write(n.data); err != nil {
			return fmt.Errorf("write image skeleton: %w", err)
		}
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("write image skeleton: %w", err)
	}
	return nil
}
