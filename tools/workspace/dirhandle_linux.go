package workspace

import (
	"errors"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// dirHandle is an open directory, from which what is in it is opened. It is
// closed when all have released it: a call that was given up may still be in it.
type dirHandle struct {
	users atomic.Int32
	// tree is the one that fd is in: the Reader's, or its lower layer's.
	tree *tree
	fd   int
	// upper and lower are the same directory in the layers of an overlay, -1
	// where it is not in both. What is not in upper comes from lower.
	upper, lower int
}

func newDirHandle() *dirHandle {
	h := &dirHandle{fd: -1, upper: -1, lower: -1}
	h.users.Store(1)
	return h
}

// acquire reports whether the handle is still open; then it stays open until it
// is released once more.
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

// openDir opens the directory name in above, which must not be a link; or, where
// above is nil, the one that rel leads to.
func (h *dirHandle) openDir(t *tree, above *dirHandle, rel, name string) (err error) {
	if above == nil {
		h.tree = t
		h.fd, err = t.openDir(rel, true)
		if err != nil || t.layers == nil {
			return err
		}
		return t.layers.with(func(upper, lower int) error { return h.openLayers(t.layers, upper, lower, rel) })
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
	h.fd, err = readable(fd)
	return err
}

// openLayers opens a directory of an overlay in its layers. Where the upper one
// doesn't have it, it is the lower one's alone, whole, and is read there, which
// costs half; that holds because the overlay follows no redirects.
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
	fd, err := readable(lower)
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	if h.fd >= 0 {
		_ = unix.Close(h.fd)
	}
	h.tree, h.fd = l.lower, fd
	return nil
}

// readNames returns the names in the directory, in order, with their types.
func (h *dirHandle) readNames(_ *tree, _ string, most int64) ([]dirName, bool, error) {
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

// openFile opens the regular file name in the directory, which must not be a link.
func (h *dirHandle) openFile(_ *tree, _, name string) (node, Info, error) {
	return regular(h.tree.openAt(h.fd, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_NOFOLLOW))
}

// layers are those of an overlay.
type layers struct{ upper, lower *tree }

// with lends the descriptors of both.
func (l *layers) with(f func(upper, lower int) error) error {
	return l.upper.with(func(upper int) error {
		return l.lower.with(func(lower int) error { return f(upper, lower) })
	})
}
