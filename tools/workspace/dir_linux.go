package workspace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// direntBytes is the buffer of one getdents64(2); the C library uses 32 KiB.
const direntBytes = 32 << 10

// direntBuffers hold such buffers, of which a search would need thousands.
var direntBuffers = sync.Pool{New: func() any { return new([direntBytes]byte) }}

// readDir gives the first entries of the folder rel in the order of their
// names, as many as there is room for, and whether there are more. The folder
// itself must not be a link unless follow says so.
func (t *tree) readDir(rel string, follow bool, room Room) ([]Entry, bool, error) {
	fd, err := t.openDir(rel, follow)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = unix.Close(fd) }()
	names, more, err := readNames(fd, room.Bytes)
	if err != nil {
		return nil, false, err
	}
	names, cut := firstNames(names, room.Entries)
	entries := make([]Entry, 0, len(names))
	for _, d := range names {
		e := Entry{Path: below(rel, d.name), Type: d.typ}
		switch err := t.describe(fd, d.name, &e); {
		case err == nil && !room.Fits(e):
			return entries, true, nil
		case err == nil:
			room.Take(e)
			entries = append(entries, e)
		case !errors.Is(err, unix.ENOENT): // removed meanwhile otherwise
			return nil, false, err
		}
	}
	return entries, more || cut, nil
}

// describe fills in what the folder's own listing does not say: the size of
// files and the text of links. Folders are not looked at: one that is the
// mount point of a stuck file system would not answer.
func (t *tree) describe(dir int, name string, e *Entry) error {
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
	case TypeLink:
		// Not a link any more by now: then it has no target to tell.
		e.Target, _ = readLink(dir, name)
	}
	return nil
}

// readNames reads a folder to its end, or to [maxDirNames] or that many bytes.
func readNames(fd int, most int64) (names []dirName, more bool, err error) {
	array := direntBuffers.Get().(*[direntBytes]byte)
	defer direntBuffers.Put(array)
	buf := array[:]
	for {
		n := 0
		err := retry(func() (err error) {
			n, err = unix.Getdents(fd, buf)
			return err
		})
		if err != nil || n <= 0 {
			return names, false, err
		}
		for rest := buf[:n]; len(rest) > 0; {
			var d dirName
			d, rest = nextDirent(rest)
			if d.name == "" || d.name == "." || d.name == ".." {
				continue
			}
			most -= int64(len(d.name))
			if len(names) == maxDirNames || most < 0 {
				return names, true, nil
			}
			names = append(names, d)
		}
	}
}

const direntHeader = 19

// nextDirent takes one record of getdents64(2) off buf: struct linux_dirent64
// is d_ino u64, d_off s64, d_reclen u16, d_type u8, d_name[]
// (include/linux/dirent.h). A record that makes no sense ends the buffer.
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
	// d_type is the file type's bits of st_mode, shifted (DTTOIF).
	return dirName{typ: typeOf(uint32(buf[18]) << 12), name: string(name)}, buf[size:]
}
