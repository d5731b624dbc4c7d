//go:build !linux

package workspace

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const pathSeparator = os.PathSeparator

// maxLinks is the bound that the errors name; os.Root follows 8 at most.
const maxLinks = 40

// nonBlock keeps a FIFO from blocking where the system has such a flag.
const nonBlock = syscall.O_NONBLOCK

// tree resolves paths below one folder by os.Root. There is no system call
// here that refuses mounts; macOS and Windows have no bind mounts, and what is
// mounted in the workspace is told by its device (see sameDevice).
type tree struct {
	root  *os.Root
	self  fs.FileInfo
	local bool // can't be told here
}

// newTree makes a Root of the folder's name and verifies that it is the folder
// that is open.
func newTree(dir *os.File) (*tree, error) {
	held, err := dir.Stat()
	if err != nil {
		return nil, fmt.Errorf("hold folder: %w", err)
	}
	root, err := os.OpenRoot(dir.Name())
	if err != nil {
		return nil, fmt.Errorf("hold folder: %w", err)
	}
	now, err := root.Stat(".")
	if err == nil && !os.SameFile(held, now) {
		err = errors.New("was replaced since it was opened")
	}
	if err != nil {
		_ = root.Close()
		return nil, fmt.Errorf("hold folder: %w", err)
	}
	return &tree{root: root, self: now}, nil
}

// newTreeOf is newTree: there are no overlays here.
func newTreeOf(dir *os.File, _ Layers) (*tree, error) { return newTree(dir) }

// isEscape knows os.Root's refusal, for which it exports no value (Go 1.26).
func isEscape(err error) bool {
	return errors.Is(err, errEscape) || strings.HasSuffix(err.Error(), "path escapes from parent")
}

func (t *tree) stat(rel string) (Info, error)  { return t.look(t.root.Stat(filepath.FromSlash(rel))) }
func (t *tree) lstat(rel string) (Info, error) { return t.look(t.root.Lstat(filepath.FromSlash(rel))) }

func (t *tree) look(fi fs.FileInfo, err error) (Info, error) {
	if err != nil {
		return Info{}, err
	}
	if !sameDevice(t.self, fi) {
		return Info{}, ErrMount
	}
	return infoOf(fi), nil
}

func (t *tree) openFile(rel string) (node, Info, error) {
	f, err := t.root.OpenFile(filepath.FromSlash(rel), os.O_RDONLY|nonBlock, 0)
	if err != nil {
		return node{}, Info{}, err
	}
	fi, err := f.Stat()
	switch {
	case err != nil:
	case fi.IsDir():
		err = syscall.EISDIR
	case !fi.Mode().IsRegular():
		err = errNotRegular
	case !sameDevice(t.self, fi):
		err = ErrMount
	default:
		return node{f}, infoOf(fi), nil
	}
	_ = f.Close()
	return node{}, Info{}, err
}

// node is an open file.
type node struct{ f *os.File }

func (n node) close() { _ = n.f.Close() }

func (n node) readAt(p []byte, off int64) (int, error) {
	got, err := n.f.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return got, err
}

// readDir gives the first entries of a folder by name; see the Linux one.
func (t *tree) readDir(rel string, follow bool, room Room) ([]Entry, bool, error) {
	name := filepath.FromSlash(rel)
	if fi, err := t.root.Lstat(name); !follow && (err != nil || !fi.IsDir()) {
		return nil, false, errors.Join(syscall.ENOTDIR, err)
	}
	f, err := t.root.Open(name)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = f.Close() }()
	if fi, err := f.Stat(); err != nil || !sameDevice(t.self, fi) {
		return nil, false, errors.Join(ErrMount, err)
	}
	list, err := f.ReadDir(maxDirNames)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	byName := make(map[string]fs.DirEntry, len(list))
	names := make([]dirName, 0, len(list))
	for _, d := range list {
		byName[d.Name()] = d
		names = append(names, dirName{name: d.Name(), typ: typeOf(d.Type())})
	}
	names, cut := firstNames(names, room.Entries)
	entries := make([]Entry, 0, len(names))
	for _, d := range names {
		e := Entry{Path: below(rel, d.name), Type: d.typ}
		fi, err := byName[d.name].Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && d.typ != TypeDir {
			e.Mode, e.ModTime = fi.Mode(), fi.ModTime()
		} else {
			e.Mode = byName[d.name].Type()
		}
		switch {
		case err != nil:
			e.Type = TypeOther
		case !sameDevice(t.self, fi):
			e.Type = TypeMount
		case d.typ == TypeFile:
			e.Size = fi.Size()
		case d.typ == TypeLink:
			target, _ := t.root.Readlink(filepath.FromSlash(e.Path))
			e.Target = filepath.ToSlash(target)
		}
		if !room.Fits(e) {
			return entries, true, nil
		}
		room.Take(e)
		entries = append(entries, e)
	}
	return entries, cut || len(list) == maxDirNames, nil
}

func infoOf(fi fs.FileInfo) Info {
	return Info{Type: typeOf(fi.Mode()), Size: fi.Size(), Mode: fi.Mode(), ModTime: fi.ModTime()}
}

func typeOf(mode fs.FileMode) Type {
	switch mode.Type() {
	case 0:
		return TypeFile
	case fs.ModeDir:
		return TypeDir
	case fs.ModeSymlink:
		return TypeLink
	case fs.ModeNamedPipe:
		return TypeFIFO
	case fs.ModeSocket:
		return TypeSocket
	case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		return TypeDevice
	}
	return TypeOther
}
