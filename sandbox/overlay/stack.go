package overlay

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// stack is one directory in the upper layers of a session that have it, the top
// one first: the layer that is written to, then the frozen ones. An entry hides
// entries of the same name in later layers, except that directories are merged
// up to the first opaque one.
type stack []layerDir

// layerDir is the directory in one layer; index counts from the top layer.
type layerDir struct{ fd, index int }

// maxStackDescriptors bounds the directories that one scan holds open. Commands
// choose how deep they are.
const maxStackDescriptors = 2048

// stat returns the node of name in the first layer that has it.
func (s stack) stat(name string) (*node, error) {
	for _, d := range s {
		n, err := statLayer(d.fd, name)
		if isMissing(err) {
			continue
		}
		if n != nil {
			n.layer = d.index
		}
		return n, err
	}
	return nil, unix.ENOENT
}

// eachName calls visit once for every name that a layer has, whiteouts
// included.
func (s stack) eachName(visit func(name string) error) error {
	for i, d := range s {
		err := eachName(d.fd, func(name string) error {
			for _, above := range s[:i] {
				if _, err := statAt(above.fd, name); !isMissing(err) {
					return nil
				}
			}
			return visit(name)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// openDir opens the directory name in the layers that show in it. hides reports
// whether it hides the original's. The caller must close it.
func (s stack) openDir(name string) (below stack, hides bool, err error) {
	defer func() {
		if err != nil {
			below.close()
			below = nil
		}
	}()
	for _, d := range s {
		fd, err := (tree{d.fd}).openDir(name)
		switch {
		case errors.Is(err, unix.ENOENT):
			continue
		case isMissing(err) && below != nil: // a file or a whiteout
			return below, true, nil
		case err != nil:
			return below, false, err
		}
		below = append(below, layerDir{fd, d.index})
		if hides, err = isOpaque(fd); hides || err != nil {
			return below, hides, err
		}
	}
	if below == nil {
		return nil, false, unix.ENOENT
	}
	return below, false, nil
}

// close closes the descriptors.
func (s stack) close() {
	for _, d := range s {
		unix.Close(d.fd)
	}
}

// layer returns the tree of the layer with an index, which must be in s.
func (s stack) layer(index int) tree {
	return tree{s[slices.IndexFunc(s, func(d layerDir) bool { return d.index == index })].fd}
}

// lstat returns the node at path, or nil if no layer has it or it is hidden.
func (s stack) lstat(path string) (*node, error) {
	if len(s) == 1 {
		return (tree{s[0].fd}).lstatWith(path, statLayer)
	}
	at := s
	names := strings.Split(path, "/")
	for _, name := range names[:len(names)-1] {
		below, _, err := at.openDir(name)
		if isMissing(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		defer below.close()
		at = below
	}
	n, err := at.stat(names[len(names)-1])
	if isMissing(err) {
		return nil, nil
	}
	return n, err
}

// openStack opens the upper layers of the session. The caller must close it.
func (l *Layers) openStack() (stack, error) {
	paths := l.Lowers()
	upper := filepath.Join(l.dir, UpperDir)
	if _, err := os.Lstat(upper); len(paths) == 0 || !isMissing(err) { // a freeze may have been killed before it made a new one
		paths = slices.Insert(paths, 0, upper)
	}
	return openLayers(paths)
}

// openLayers opens layers, the top one first. The caller must close them.
func openLayers(paths []string) (s stack, err error) {
	for i, path := range paths {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("open layer: %w", &os.PathError{Op: "open", Path: path, Err: err})
		}
		s = append(s, layerDir{fd, i})
	}
	return s, nil
}
