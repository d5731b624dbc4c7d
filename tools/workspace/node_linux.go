package workspace

import (
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

// stat describes what rel leads to, lstat what rel names, without opening it.
func (t *tree) stat(rel string) (Info, error)  { return t.look(rel, unix.O_PATH) }
func (t *tree) lstat(rel string) (Info, error) { return t.look(rel, unix.O_PATH|unix.O_NOFOLLOW) }

func (t *tree) look(rel string, flags int) (Info, error) {
	fd, err := t.open(rel, flags)
	if err != nil {
		return Info{}, err
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return Info{}, err
	}
	return infoOf(&st), nil
}

// openFile opens a regular file for reading. Nothing else is waited for:
// O_NONBLOCK lets a FIFO open at once, and what was opened is then looked at.
func (t *tree) openFile(rel string) (node, Info, error) {
	return regular(t.open(rel, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY))
}

// regular takes what was opened if it is a regular file, and closes it otherwise.
func regular(fd int, err error) (node, Info, error) {
	if err != nil {
		return node{}, Info{}, err
	}
	n := node{fd: fd}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		n.close()
		return node{}, Info{}, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return n, infoOf(&st), nil
	case unix.S_IFDIR:
		err = unix.EISDIR
	default:
		err = errNotRegular
	}
	n.close()
	return node{}, Info{}, err
}

// node is an open file or folder.
type node struct{ fd int }

func (n node) close() { _ = unix.Close(n.fd) }

// readAt reads once; 0 and nil mean the end.
func (n node) readAt(p []byte, off int64) (got int, err error) {
	err = retry(func() error {
		got, err = unix.Pread(n.fd, p, off)
		return err
	})
	return max(got, 0), err
}

func infoOf(st *unix.Stat_t) Info {
	return Info{
		Type:    typeOf(st.Mode),
		Size:    st.Size,
		Mode:    modeOf(st.Mode),
		ModTime: time.Unix(st.Mtim.Unix()),
		Inode:   st.Ino,
	}
}

func typeOf(mode uint32) Type {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return TypeFile
	case unix.S_IFDIR:
		return TypeDir
	case unix.S_IFLNK:
		return TypeLink
	case unix.S_IFIFO:
		return TypeFIFO
	case unix.S_IFSOCK:
		return TypeSocket
	case unix.S_IFCHR, unix.S_IFBLK:
		return TypeDevice
	}
	return TypeOther
}

func modeOf(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	for _, b := range []struct {
		bits uint32
		mode fs.FileMode
	}{
		{unix.S_ISUID, fs.ModeSetuid}, {unix.S_ISGID, fs.ModeSetgid}, {unix.S_ISVTX, fs.ModeSticky},
	} {
		if mode&b.bits != 0 {
			m |= b.mode
		}
	}
	switch typeOf(mode) {
	case TypeDir:
		m |= fs.ModeDir
	case TypeLink:
		m |= fs.ModeSymlink
	case TypeFIFO:
		m |= fs.ModeNamedPipe
	case TypeSocket:
		m |= fs.ModeSocket
	case TypeDevice:
		m |= fs.ModeDevice
		if mode&unix.S_IFMT == unix.S_IFCHR {
			m |= fs.ModeCharDevice
		}
	}
	return m
}
