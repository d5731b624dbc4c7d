package overlay

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	units "github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/archive"
	"github.com/caisson-run/caisson/tools/workspace"
)

// WriteTree writes the merged directory of the layers in dir and the frozen ones
// below them, over the original, to w as an archive whose top is the directory
// itself. It leaves out .caisson at the top, special files and what this process
// can't read. It returns a [*SizeError] before it writes anything if a bound is
// exceeded.
func WriteTree(ctx context.Context, w io.Writer, dir string, lowers []string, original *os.File, bounds CopyBounds) error {
	layers, err := openLayers(slices.Concat([]string{filepath.Join(dir, UpperDir)}, lowers))
	if err != nil {
		return err
	}
	defer layers.close()
	all := append(slices.Clone(layers), layerDir{int(original.Fd()), len(layers)})
	s := sender{ctx: ctx, original: len(layers), linked: map[inode]string{}, totals: map[string]*total{}}
	if err := s.walkTop(all); err != nil {
		return fmt.Errorf("measure workspace: %w", err)
	}
	if err := s.checkSize(bounds); err != nil {
		return err
	}
	// It may have grown since it was measured.
	s.most, s.all = bounds, total{}
	s.tar = archive.NewWriter(w)
	if err := s.walkTop(all); err != nil {
		return fmt.Errorf("send workspace: %w", err)
	}
	if err := s.tar.Close(); err != nil {
		return fmt.Errorf("send workspace: %w", err)
	}
	return nil
}

// inode identifies a file.
type inode struct{ device, number uint64 }

// total is the size of a part of a directory.
type total struct{ entries, bytes int64 }

// sender is one call of WriteTree.
type sender struct {
	ctx context.Context
	tar *archive.Writer // nil while the directory is measured
	// original is the index of the directory that is no layer.
	original int
	most     CopyBounds
	all      total
	totals   map[string]*total // by the name at the top
	linked   map[inode]string
	depth    int
	open     int // descriptors of directories
}

// walkTop sends everything. It opens the layers anew, because a descriptor
// remembers how far it was read.
func (s *sender) walkTop(layers stack) error {
	clear(s.linked)
	var top stack
	defer func() { top.close() }()
	for _, d := range layers {
		fd, err := (tree{d.fd}).openDir(".")
		if err != nil {
			return err
		}
		top = append(top, layerDir{fd, d.index})
	}
	n, err := statAt(top[0].fd, "")
	if err != nil {
		return err
	}
	if err := s.addHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./"}, n); err != nil {
		return err
	}
	return s.walkDirectory(".", top)
}

// walkDirectory sends the content of a directory.
func (s *sender) walkDirectory(rel string, dirs stack) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	from := map[string]int{}
	for i, d := range slices.Backward(dirs) {
		err := eachName(d.fd, func(name string) error {
			from[name] = i
			return nil
		})
		if err != nil && !errors.Is(err, errNames) {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(from)) {
		if rel == "." && name == ownConfig {
			continue
		}
		if err := s.walkEntry(join(rel, name), name, dirs[from[name]:]); err != nil {
			return err
		}
	}
	return nil
}

// ownConfig is the directory of Caisson's own configuration in a workspace.
const ownConfig = ".caisson"

// walkEntry sends name of the first of the directories; the others are below it.
func (s *sender) walkEntry(path, name string, dirs stack) error {
	stat := statLayer
	if dirs[0].index == s.original {
		stat = statAt
	}
	n, err := stat(dirs[0].fd, name)
	if err != nil || len(path) > maxPathBytes {
		return nil // gone, or closed to this process
	}
	h := &tar.Header{Name: path}
	switch n.typ {
	case workspace.TypeDir:
		h.Typeflag, h.Name = tar.TypeDir, path+"/"
		if err := s.addHeader(h, n); err != nil || s.depth >= maxScanDepth {
			return err
		}
		return s.enterDirectory(path, name, dirs)
	case workspace.TypeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, n.target
		return s.addHeader(h, n)
	case workspace.TypeFile:
		return s.addFile(h, name, dirs[0].fd, n)
	}
	return nil
}

func (s *sender) enterDirectory(path, name string, dirs stack) error {
	below, err := s.openShown(name, dirs)
	if err != nil {
		return nil // gone, closed, or another file system
	}
	defer s.closeDirectory(below)
	if s.open > maxStackDescriptors {
		return fmt.Errorf("%q is in too many directories for %d layers", path, len(below))
	}
	s.depth++
	defer func() { s.depth-- }()
	return s.walkDirectory(path, below)
}

// openShown opens the directory name in each of dirs that shows in it. It fails
// if the first one can't be opened; others that can't be read are left out. The
// caller must call closeDirectory.
func (s *sender) openShown(name string, dirs stack) (below stack, err error) {
	for i, d := range dirs {
		fd, err := (tree{d.fd}).openDir(name)
		if i > 0 && errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil && i > 0 { // a file, a whiteout, or closed
			break
		}
		if err != nil {
			return nil, err
		}
		below = append(below, layerDir{fd, d.index})
		s.open++
		if hides, err := isOpaque(fd); hides || err != nil {
			break
		}
	}
	return below, nil
}

func (s *sender) closeDirectory(dirs stack) {
	s.open -= len(dirs)
	dirs.close()
}

func (s *sender) addFile(h *tar.Header, name string, dir int, n *node) error {
	var st unix.Stat_t
	if n.nlink > 1 && unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
		id := inode{st.Dev, st.Ino}
		if first, ok := s.linked[id]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return s.addHeader(h, n)
		}
		defer func() { s.linked[id] = h.Name }()
	}
	h.Typeflag, h.Size = tar.TypeReg, n.size
	if s.tar == nil {
		return s.addHeader(h, n)
	}
	f, opened, err := (tree{dir}).openFile(name)
	if err != nil {
		return nil // gone, or closed to this process
	}
	defer func() { _ = f.Close() }() // only read
	h.Size = opened.size
	if err := s.countEntry(h, opened); err != nil {
		return err
	}
	return s.tar.AddFile(h, f)
}

// addHeader counts an entry, and sends its header.
func (s *sender) addHeader(h *tar.Header, n *node) error {
	if err := s.countEntry(h, n); err != nil || s.tar == nil {
		return err
	}
	return s.tar.WriteHeader(h)
}

// countEntry counts an entry, and completes its header.
func (s *sender) countEntry(h *tar.Header, n *node) error {
	top, _, _ := strings.Cut(h.Name, "/")
	if s.totals[top] == nil {
		s.totals[top] = &total{}
	}
	for _, t := range []*total{&s.all, s.totals[top]} {
		t.entries++
		t.bytes += h.Size
	}
	if s.tar == nil {
		if s.all.entries > MaxEntries {
			return fmt.Errorf("more than %d entries", MaxEntries)
		}
		return nil
	}
	if s.all.entries > s.most.Entries || s.all.bytes > s.most.Bytes {
		return s.checkSize(s.most)
	}
	h.Format, h.Mode, h.ModTime = tar.FormatPAX, int64(n.mode&permissions), time.Unix(0, n.mtime)
	return nil
}

// checkSize returns a [*SizeError] for a directory that exceeds the bounds.
func (s *sender) checkSize(bounds CopyBounds) error {
	if s.all.entries <= bounds.Entries && s.all.bytes <= bounds.Bytes {
		return nil
	}
	delete(s.totals, ".")
	names := slices.Collect(maps.Keys(s.totals))
	share := func(name string) float64 {
		t := s.totals[name]
		return max(float64(t.bytes)/float64(bounds.Bytes), float64(t.entries)/float64(bounds.Entries))
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(share(b), share(a)), strings.Compare(a, b)) })
	e := &SizeError{Bounds: bounds, Entries: s.all.entries, Bytes: s.all.bytes}
	for _, name := range names[:min(len(names), largestNamed)] {
		t := s.totals[name]
		e.Largest = append(e.Largest, fmt.Sprintf("%q (%s, %d entries)", name, units.BytesSize(float64(t.bytes)), t.entries))
	}
	return e
}

// largestNamed is the number of names that a [SizeError] contains.
const largestNamed = 5

// newUpper is the directory in which the next upper layer is made.
func newUpper(dir string) string { return filepath.Join(dir, UpperDir+".new") }

// CopyBounds bounds the copy of a workspace.
type CopyBounds struct {
	// Bytes is the largest size of all files together, Entries the largest
	// number of files and directories.
	Bytes, Entries int64
}

// DefaultCopyBounds are the usual bounds of a copy that is sent.
var DefaultCopyBounds = CopyBounds{Bytes: 256 << 20, Entries: 100_000}

// SizeError is the error for a workspace that is too large to be copied.
type SizeError struct {
	Bounds         CopyBounds
	Entries, Bytes int64
	// Largest describes the largest files and directories at the top.
	Largest []string
}

func (e *SizeError) Error() string {
	return fmt.Sprintf("%s in %d entries is too large to be copied (at most %s in %d): the largest are %s",
		units.BytesSize(float64(e.Bytes)), e.Entries, units.BytesSize(float64(e.Bounds.Bytes)), e.Bounds.Entries, strings.Join(e.Largest, ", "))
}

// IncompleteError is the error of [Copy.Collect] if some files or directories
// could not be read, or exceed the bounds. All others were collected.
type IncompleteError struct {
	// Unread are up to 20 of them, and Count is their number.
	Unread []string
	Count  int
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("%d files or directories of the copy can't be read, or are too large: %q", e.Count, e.Unread)
}
