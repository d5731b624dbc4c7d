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

// nonBlock keeps a FIFO from blocking if the system has such a flag.
const nonBlock = syscall.O_NONBLOCK

// tree resolves paths below one directory by os.Root. There is no system call
// here that refuses mounts; macOS and Windows have no bind mounts, and what is
// mounted in the workspace is recognised by its device (see sameDevice).
type tree struct {
	root  *os.Root
	self  fs.FileInfo
	local bool // unknown here
}

// newTree makes a Root of the directory's name and verifies that it is the
// directory that is open.
func newTree(dir *os.File) (*tree, error) {
	held, err := dir.Stat()
	if err != nil {
		return nil, fmt.Errorf("hold directory: %w", err)
	}
	root, err := os.OpenRoot(dir.Name())
	if err != nil {
		return nil, fmt.Errorf("hold directory: %w", err)
	}
	now, err := root.Stat(".")
	if err == nil && !os.SameFile(held, now) {
		err = errors.New("was replaced since it was opened")
	}
	if err != nil {
		_ = root.Close()
		return nil, fmt.Errorf("hold directory: %w", err)
	}
	return &tree{root: root, self: now}, nil
}

// newTreeOf is newTree: there are no overlays here.
func newTreeOf(dir *os.File, _ Layers) (*tree, error) { return newTree(dir) }

// isEscape knows os.Root's refusal, for which it exports no value (Go 1.26).
func isEscape(err error) bool {
	return errors.Is(err, errEscape) || strings.HasSuffix(err.Error(), "path escapes from parent")
}

func (t *tree) stat(rel string) (Info, error) {
	return t.statPath(t.root.Stat(filepath.FromSlash(rel)))
}

func (t *tree) lstat(rel string) (Info, error) {
	info, err := t.statPath(t.root.Lstat(filepath.FromSlash(rel)))
	if err == nil && info.Type == TypeSymlink {
		info.Target, err = t.root.Readlink(filepath.FromSlash(rel))
		info.Target = filepath.ToSlash(info.Target)
	}
	return info, err
}

func (t *tree) statPath(fi fs.FileInfo, err error) (Info, error) {
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

// readDir returns the first entries of a directory by name; see the Linux one.
func (t *tree) readDir(rel string, follow bool, capacity Capacity) ([]Entry, bool, error) {
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
	names, cut := firstNames(names, capacity.Entries)
	entries := make([]Entry, 0, len(names))
	for _, d := range names {
		e := Entry{Path: joinPath(rel, d.name), Type: d.typ}
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
		case d.typ == TypeSymlink:
			target, _ := t.root.Readlink(filepath.FromSlash(e.Path))
			e.Target = filepath.ToSlash(target)
		}
		if !capacity.Fits(e) {
			return entries, true, nil
		}
		capacity.Take(e)
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
		return TypeSymlink
	case fs.ModeNamedPipe:
		return TypeFIFO
	case fs.ModeSocket:
		return TypeSocket
	case fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		return TypeDevice
	}
	return TypeOther
}

// dirHandle stands for a directory, whose path is resolved anew for each call:
// os.Root confines that.
type dirHandle struct{ follow bool }

func newDirHandle() *dirHandle { return &dirHandle{} }

func (h *dirHandle) acquire() bool { return true }

func (h *dirHandle) release() {}

func (h *dirHandle) openDir(_ *tree, above *dirHandle, _, _ string) error {
	h.follow = above == nil
	return nil
}

func (h *dirHandle) readNames(t *tree, rel string, most int64) ([]dirName, bool, error) {
	entries, more, err := t.readDir(rel, h.follow, Capacity{Entries: maxDirNames, Bytes: most})
	return namesOf(entries), more, err
}

func (h *dirHandle) openFile(t *tree, rel, name string) (node, Info, error) {
	return t.openFile(joinPath(rel, name))
}

// OpenDir opens the directory that is to be a workspace, once, for a Reader and
// for mounts. The caller closes it. It refuses a file that is not a directory,
// and a symlink, which an earlier session could have put there. Errors are an
// [*Error].
func OpenDir(path string) (*os.File, error) {
	before, err := os.Lstat(path)
	if err != nil {
		return nil, newError(path, err)
	}
	switch {
	case before.Mode()&os.ModeSymlink != 0:
		return nil, &Error{Kind: KindEscape, Path: path, Detail: "is a symlink; name the directory that it leads to"}
	case !before.IsDir():
		return nil, &Error{Kind: KindNotDir, Path: path, Detail: "is not a directory"}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, newError(path, err)
	}
	after, err := f.Stat()
	if err == nil && os.SameFile(before, after) {
		return f, nil
	}
	_ = f.Close()
	if err != nil {
		return nil, newError(path, err)
	}
	return nil, &Error{Kind: KindEscape, Path: path, Detail: "was replaced while it was being opened"}
}
