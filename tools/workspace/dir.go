package workspace

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// maxDirNames bounds the names read from one directory. Up to it, listings are
// sorted by name; beyond it, the file system chooses which names are seen.
const maxDirNames = 1 << 18

const maxIncomplete = 20

// dirName is a name in a directory, with its type if the directory tells it.
type dirName struct {
	name string
	typ  Type
}

const dirNameBytes = 32

func hasName(names []dirName, name string) bool {
	_, ok := slices.BinarySearchFunc(names, name, func(d dirName, name string) int { return cmp.Compare(d.name, name) })
	return ok
}

func firstNames(names []dirName, keep int) (first []dirName, cut bool) {
	slices.SortFunc(names, func(a, b dirName) int { return cmp.Compare(a.name, b.name) })
	if len(names) > keep {
		return names[:keep], true
	}
	return names, false
}

// TreeOrder compares paths name by name, so that a directory is followed by its
// content ("a", "a/b", "a.b"), unlike with plain string comparison.
func TreeOrder(a, b string) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	switch {
	case i == len(a) || i == len(b):
		return cmp.Compare(len(a), len(b))
	case a[i] == '/':
		return -1
	case b[i] == '/':
		return 1
	}
	return cmp.Compare(a[i], b[i])
}

func addIncomplete(list []string, directory string) []string {
	if len(list) < maxIncomplete {
		list = append(list, directory)
	}
	return list
}

// direntBytes is the buffer size of one getdents64(2), as in the C library.
const direntBytes = 32 << 10

// direntBuffers reuses these buffers, because a search would need thousands.
var direntBuffers = sync.Pool{New: func() any { return new([direntBytes]byte) }}

// readDir returns the first entries of the directory rel by name, as many as
// capacity allows, and whether there are more. Without follow, a symlink is an
// error.
func (t *tree) readDir(rel string, follow bool, capacity Capacity) ([]Entry, bool, error) {
	fd, err := t.openDir(rel, follow)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = unix.Close(fd) }()
	names, more, err := readNames(fd, capacity.Bytes)
	if err != nil {
		return nil, false, err
	}
	names, cut := firstNames(names, capacity.Entries)
	entries := make([]Entry, 0, len(names))
	for _, d := range names {
		e := Entry{Path: joinPath(rel, d.name), Type: d.typ}
		switch err := t.describeEntry(fd, d.name, &e); {
		case err == nil && !capacity.Fits(e):
			return entries, true, nil
		case err == nil:
			capacity.Take(e)
			entries = append(entries, e)
		case !errors.Is(err, unix.ENOENT): // removed meanwhile otherwise
			return nil, false, err
		}
	}
	return entries, more || cut, nil
}

// describeEntry fills in what reading a directory doesn't tell. It does not stat
// directories, because the mount point of a stuck file system would not answer.
func (t *tree) describeEntry(dir int, name string, e *Entry) error {
	if e.Type == TypeDir {
		e.Mode = fs.ModeDir
		return nil
	}
	f, err := statx(dir, name, 0)
	if err != nil {
		return err
	}
	if f.mount != t.mount {
		e.Type, e.Mode = TypeMount, modeOf(f.Mode).Type()
		return nil
	}
	e.Type, e.Mode, e.Inode = typeOf(f.Mode), modeOf(f.Mode), f.Ino
	e.ModTime, e.ChangeTime = time.Unix(f.Mtim.Unix()), time.Unix(f.Ctim.Unix())
	switch e.Type {
	case TypeFile:
		e.Size = f.Size
	case TypeSymlink:
		// It may no longer be a symlink; then it has no target.
		e.Target, _ = readLink(dir, name)
	}
	return nil
}

// readNames reads a directory, up to [maxDirNames] names or most bytes of names.
func readNames(fd int, most int64) (names []dirName, more bool, err error) {
	buf := direntBuffers.Get().(*[direntBytes]byte)
	defer direntBuffers.Put(buf)
	var batch []dirName
	for {
		batch, err = nextNames(context.Background(), fd, buf[:], batch[:0])
		if err != nil || len(batch) == 0 {
			return names, false, err
		}
		for _, d := range batch {
			most -= int64(len(d.name))
			if len(names) == maxDirNames || most < 0 {
				return names, true, nil
			}
			names = append(names, d)
		}
	}
}

const direntHeader = 19

// nextDirent splits off one record of getdents64(2): struct linux_dirent64 is d_ino
// u64, d_off s64, d_reclen u16, d_type u8, d_name[] (include/linux/dirent.h). A
// malformed record ends the buffer.
func nextDirent(buf []byte) (dirName, []byte) {
	if len(buf) < direntHeader {
		return dirName{}, nil
	}
	size := int(binary.NativeEndian.Uint16(buf[16:18]))
	if size < direntHeader || size > len(buf) {
		return dirName{}, nil
	}
	name := buf[direntHeader:size]
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	// d_type holds the file type bits of st_mode, shifted (DTTOIF).
	return dirName{typ: typeOf(uint32(buf[18]) << 12), name: string(name)}, buf[size:]
}

// dirHandle is an open directory. It is closed when all users have released it: a
// call that was given up may still use it.
type dirHandle struct {
	users atomic.Int32
	// tree is where fd is: the Reader's, or its lower layer.
	tree *tree
	fd   int
	// upper and lower are the same directory in an overlay's layers, or -1 unless
	// it is in both. Names that are not in upper come from lower.
	upper, lower int
}

func newDirHandle() *dirHandle {
	h := &dirHandle{fd: -1, upper: -1, lower: -1}
	h.users.Store(1)
	return h
}

// acquire keeps the handle open until another release. It returns false if the
// handle is closed already.
func (h *dirHandle) acquire() bool {
	for {
		n := h.users.Load()
		if n == 0 {
			return false
		}
		if h.users.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (h *dirHandle) release() {
	if h.users.Add(-1) > 0 {
		return
	}
	for _, fd := range []int{h.fd, h.upper, h.lower} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// openDir opens the directory name in above, which must not be a symlink. If above
// is nil, it opens what rel leads to.
func (h *dirHandle) openDir(t *tree, above *dirHandle, rel, name string) (err error) {
	if above == nil {
		h.tree = t
		h.fd, err = t.openDir(rel, true)
		if err != nil || t.layers == nil {
			return err
		}
		return t.layers.withDescriptors(func(upper, lower int) error { return h.openLayers(t.layers, upper, lower, rel) })
	}
	h.tree = above.tree
	if above.upper >= 0 {
		err = h.openLayers(h.tree.layers, above.upper, above.lower, name)
		if err != nil || h.fd >= 0 {
			return err
		}
	}
	fd, err := h.tree.openAt(above.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	h.fd, err = openForReading(fd)
	return err
}

// openLayers opens a directory in an overlay's layers. If only the lower one has
// it, the directory is read there, which costs half. That is the same content
// because the overlay follows no redirects.
func (h *dirHandle) openLayers(l *layers, upperAt, lowerAt int, rel string) error {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
	lower, err := openat2(lowerAt, rel, flags, resolve|unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return nil //nolint:nilerr // the overlay itself has it
	}
	upper, err := openat2(upperAt, rel, flags, resolve|unix.RESOLVE_NO_SYMLINKS)
	switch {
	case err == nil:
		h.upper, h.lower = upper, lower
		return nil
	case !errors.Is(err, unix.ENOENT):
		_ = unix.Close(lower)
		return nil
	}
	fd, err := openForReading(lower)
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	if h.fd >= 0 {
		_ = unix.Close(h.fd)
	}
	h.tree, h.fd = l.lower, fd
	return nil
}

// readNames returns the directory's names, sorted, with their types.
func (h *dirHandle) readNames(most int64) ([]dirName, bool, error) {
	names, more, err := readNames(h.fd, most)
	if err != nil {
		return nil, false, err
	}
	for i := range names {
		if names[i].typ != TypeOther {
			continue
		}
		// The file system doesn't tell types.
		f, err := statx(h.fd, names[i].name, 0)
		if err == nil {
			names[i].typ = typeOf(f.Mode)
		}
	}
	names, _ = firstNames(names, len(names))
	return names, more, nil
}

// openFile opens the regular file name in the directory, but no symlink.
func (h *dirHandle) openFile(name string) (node, Info, error) {
	return asRegular(h.tree.openAt(h.fd, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW))
}

type layers struct{ upper, lower *tree }

func (l *layers) withDescriptors(f func(upper, lower int) error) error {
	return l.upper.withDescriptor(func(upper int) error {
		return l.lower.withDescriptor(func(lower int) error { return f(upper, lower) })
	})
}
