package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// PackOptions configures [Pack].
type PackOptions struct {
	// Name is the packed file's name in the archive; empty means the last name
	// of its path. With ".", a directory's content is at the top of the
	// archive, and its own entry is called "./".
	Name   string
	Bounds Bounds
	// LeaveOut is called for each entry that can't be packed, with [ErrSpecial]
	// for a special file, otherwise with the error of reading it. If it returns
	// nil, Pack continues without the entry, otherwise Pack returns its error.
	// Without LeaveOut, and for the first entry, every such error ends Pack.
	LeaveOut func(name string, err error) error
	// Skip, if not nil, reports whether [PackChanges] leaves out a path.
	Skip func(path string) bool
	// LayerSince is a time before an overlay's upper layer was made, for
	// [PackChanges]. Zero means the time of the changes.
	LayerSince time.Time
}

// Pack writes the file, directory or symlink at name, and everything below it,
// to w as an archive. It follows no symlink and enters no other file system.
// Entries have permission bits and modification times, but no owners. Files
// with several names become hard links. If a file's size changes meanwhile, the
// content is cut off or filled with zeros.
func Pack(w io.Writer, name string, o PackOptions) error {
	name = filepath.Clean(name)
	if o.Name == "" {
		o.Name = filepath.Base(name)
		if o.Name == string(filepath.Separator) || o.Name == ".." {
			o.Name = "."
		}
	}
	p := packer{tar: NewWriter(w), o: o, budget: budget{Bounds: o.Bounds}, linked: map[fileID]string{}}
	info, err := os.Lstat(name)
	if err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	p.top = identifyFile(info)
	if err := p.addEntry(name, path.Clean(o.Name), info); err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	if err := p.tar.Close(); err != nil {
		return fmt.Errorf("pack: %w", err)
	}
	return nil
}

type packer struct {
	tar    *Writer
	o      PackOptions
	budget budget
	top    fileID // on the file system that is not left
	pruned bool   // nothing has changed below an unchanged directory
	owners bool   // entries have owners, and directories set-group-ID and sticky bits
	linked map[fileID]string
}

// leaveOut decides about an entry that can't be packed.
func (p *packer) leaveOut(name string, err error) error {
	if p.o.LeaveOut == nil || p.budget.entries == 0 {
		return err
	}
	return p.o.LeaveOut(name, err)
}

// addEntry adds the file at a path as name, and everything below it.
func (p *packer) addEntry(file, name string, info fs.FileInfo) error {
	h := p.newHeader(name, info)
	switch info.Mode().Type() {
	case 0:
		return p.addFile(file, h, info)
	case fs.ModeDir:
		return p.addDirectory(file, h, info)
	case fs.ModeSymlink:
		target, err := os.Readlink(file)
		if err != nil {
			return p.leaveOut(name, err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
		return p.addHeader(h)
	}
	return p.leaveOut(name, &fs.PathError{Op: "pack", Path: file, Err: ErrSpecial})
}

// Bits of modes in a [tar.Header]. No archive has the set-user-ID bit.
const (
	setgidBit = 0o2000
	stickyBit = 0o1000
)

// newHeader returns a file's header, with p.owners also its owner and a
// directory's set-group-ID and sticky bits.
func (p *packer) newHeader(name string, info fs.FileInfo) *tar.Header {
	h := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	if !p.owners {
		return h
	}
	owner := ownerOf(info)
	h.Uid, h.Gid = owner.uid, owner.gid
	if info.IsDir() && info.Mode()&fs.ModeSetgid != 0 {
		h.Mode |= setgidBit
	}
	if info.IsDir() && info.Mode()&fs.ModeSticky != 0 {
		h.Mode |= stickyBit
	}
	return h
}

func (p *packer) addHeader(h *tar.Header) error {
	if err := p.budget.takeEntry(h.Size); err != nil {
		return err
	}
	return p.tar.WriteHeader(h)
}

// addDirectory adds a directory and its content.
func (p *packer) addDirectory(file string, h *tar.Header, info fs.FileInfo) error {
	name := h.Name
	h.Typeflag, h.Name = tar.TypeDir, name+"/"
	if err := p.addHeader(h); err != nil {
		return err
	}
	if identifyFile(info).device != p.top.device {
		return nil
	}
	return p.unlessUnreadable(name, readDirectory(file, func(e fs.DirEntry) error {
		below, entry := filepath.Join(file, e.Name()), path.Join(name, e.Name())
		info, err := os.Lstat(below)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed since
			return nil
		case err != nil:
			return p.leaveOut(entry, err)
		}
		return p.addEntry(below, entry, info)
	}))
}

// maxLinked bounds how many files with several names are remembered. Each name
// of any other becomes a file.
const maxLinked = 1 << 17

// batchSize is how many names of a directory are in memory at once.
const batchSize = 4096

// unreadable is the error of a directory that can't be read.
type unreadable struct{ error }

// unlessUnreadable leaves out a directory that can't be read, and returns any
// other error.
func (p *packer) unlessUnreadable(name string, err error) error {
	if e, ok := errors.AsType[unreadable](err); ok {
		return p.leaveOut(name, e.error)
	}
	return err
}

// readDirectory calls f for each entry of a directory of any size, sorted if
// the directory is small. If it can't be read, the error is unreadable.
func readDirectory(dir string, f func(fs.DirEntry) error) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|openFlags|syscall.O_DIRECTORY, 0)
	if err != nil {
		return unreadable{err}
	}
	defer func() { _ = d.Close() }() // only read
	for more := true; more; {
		entries, err := d.ReadDir(batchSize)
		if more = len(entries) == batchSize; !more {
			_ = d.Close() // many may be open below it
		}
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		for _, e := range entries {
			if err := f(e); err != nil {
				return err
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return unreadable{err}
		}
	}
	return nil
}

// addFile adds a regular file, or a hard link if it was added before.
func (p *packer) addFile(file string, h *tar.Header, info fs.FileInfo) error {
	id := identifyFile(info)
	if first, ok := p.linked[id]; ok {
		h.Typeflag, h.Linkname = tar.TypeLink, first
		return p.addHeader(h)
	}
	f, err := openRegular(file)
	if err != nil {
		return p.leaveOut(h.Name, err)
	}
	defer func() { _ = f.Close() }() // only read
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := p.budget.takeEntry(h.Size); err != nil {
		return err
	}
	if id.names > 1 && len(p.linked) < maxLinked {
		p.linked[id] = h.Name
	}
	return p.tar.AddFile(h, f)
}

// openRegular opens a file without waiting for one that has become a pipe.
func openRegular(file string) (*os.File, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|openFlags, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "pack", Path: file, Err: ErrSpecial}
	}
	if err != nil {
		_ = f.Close() // only read
		return nil, err
	}
	return f, nil
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

type fileID struct{ device, inode, names uint64 }

// cleanName returns an entry's name relative to the directory to unpack to, or
// ".".
func cleanName(name string) (string, error) {
	switch {
	case name == "", strings.ContainsRune(name, 0), len(name) > maxName:
		return "", fmt.Errorf("%w: invalid name %.60q", ErrEntry, name)
	case path.IsAbs(name):
		return "", fmt.Errorf("%w: %.60q is an absolute path", ErrEntry, name)
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", fmt.Errorf("%w: %.60q leads out of the directory", ErrEntry, name)
		}
	}
	name = path.Clean(name)
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("%w: %.60q is no name on this system", ErrEntry, name)
	}
	return name, nil
}

// maxName is the length of the longest path of an entry, Linux's PATH_MAX.
const maxName = 4096
