package layer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/caisson-run/caisson/images"
)

// maxFollowed are the links that one name may go through (Linux: 40).
const maxFollowed = 40

// tree is a folder that a root filesystem is unpacked into, held open. Names
// are resolved as if it were the root folder: a link's absolute target and
// its .. end in the tree. Each step is made from a held descriptor through
// os.Root, which refuses to leave the tree even if the steps were wrong.
// Nobody else writes to the folder meanwhile. It is not for concurrent use.
type tree struct {
	limits Limits
	// at are the folders from the root to the one that is held, all real
	// folders; a name that begins as the last one did reuses them.
	at []place
	// made counts the entries that were made, parents included.
	made int
}

type place struct {
	name string
	dir  *os.Root
}

// openTree holds dir, which must exist. Whoever opens it closes it.
func openTree(dir string, limits Limits) (*tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open tree: %w", err)
	}
	return &tree{limits: limits, at: []place{{dir: root}}}, nil
}

func (t *tree) close() {
	t.forget(0)
	t.at[0].dir.Close() //nolint:errcheck // nothing was written through it that a close could lose
}

// forget closes the held folders deeper than depth.
func (t *tree) forget(depth int) {
	for _, p := range t.at[depth+1:] {
		p.dir.Close() //nolint:errcheck // as above
	}
	t.at = t.at[:depth+1]
}

// spot is where an entry goes: a real folder and a name in it.
type spot struct {
	dir  *os.Root
	path string // of the folder, real, without a slash at its start; "" is the root
	base string
	held int // index of dir in tree.at
}

// full is the entry's real path.
func (s spot) full() string { return strings.TrimPrefix(s.path+"/"+s.base, "/") }

// refusal is a reason to refuse an entry, which has a name elsewhere.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) Unwrap() error   { return images.ErrRefused }

// find resolves all of parts but the last, which is not followed. Folders that
// are missing are made if create is set, and reported to touch.
// It fails with fs.ErrNotExist, or a refusal.
func (t *tree) find(parts []string, create bool, touch func(path string)) (spot, error) {
	depth, followed := 0, 0
	todo := parts[:len(parts)-1]
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			depth = max(depth-1, 0)
			continue
		}
		if depth+1 < len(t.at) && t.at[depth+1].name == name {
			depth++
			continue
		}
		t.forget(depth)
		target, err := t.descend(name, create, touch)
		if err != nil {
			return spot{}, err
		}
		if target == "" {
			depth++
			continue
		}
		if followed++; followed > maxFollowed {
			return spot{}, refusal(fmt.Sprintf("a name that goes through more than %d links", maxFollowed))
		}
		if strings.HasPrefix(target, "/") {
			depth = 0
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return spot{dir: t.at[depth].dir, path: t.path(depth), base: parts[len(parts)-1], held: depth}, nil
}

// descend holds the folder name in the last one held, or gives the target of
// the link that is there instead.
func (t *tree) descend(name string, create bool, touch func(path string)) (target string, err error) {
	dir := t.at[len(t.at)-1].dir
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && create:
		if err = t.mkdir(spot{dir: dir, path: t.path(len(t.at) - 1), base: name}); err != nil {
			return "", err
		}
		if touch != nil {
			touch(strings.TrimPrefix(t.path(len(t.at)-1)+"/"+name, "/"))
		}
	case err != nil:
		return "", err
	case info.Mode()&fs.ModeSymlink != 0:
		return dir.Readlink(name)
	case !info.IsDir():
		return "", refusal("a name below what is no folder")
	}
	// Links can lead deeper than names may be long.
	if path := t.path(len(t.at) - 1); len(t.at) > t.limits.Depth || len(path)+len(name)+1 > t.limits.PathBytes {
		return "", refusal("a name that links lead too deep")
	}
	next, err := dir.OpenRoot(name)
	if err != nil {
		return "", err
	}
	t.at = append(t.at, place{name, next})
	return "", nil
}

// path is the real path of a held folder.
func (t *tree) path(depth int) string {
	names := make([]string, depth)
	for i := range names {
		names[i] = t.at[i+1].name
	}
	return strings.Join(names, "/")
}

// count notes that an entry is made.
func (t *tree) count() error {
	if t.made++; t.made > t.limits.Entries {
		return refusal(fmt.Sprintf("more than %d entries", t.limits.Entries))
	}
	return nil
}

// mkdir makes a folder. Every folder has mode 0755, whatever the image says:
// see docs/decisions/0081.
func (t *tree) mkdir(s spot) error {
	if err := t.count(); err != nil {
		return err
	}
	if err := s.dir.Mkdir(s.base, 0o755); err != nil {
		return err
	}
	return s.dir.Chmod(s.base, 0o755)
}

// clear removes what is at s, if anything is.
func (t *tree) clear(s spot) error {
	info, err := s.dir.Lstat(s.base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if !info.IsDir() {
		return s.dir.Remove(s.base)
	}
	t.forget(s.held) // it may be held
	return s.dir.RemoveAll(s.base)
}

// create makes a file in place of whatever is there. The caller closes it.
func (t *tree) create(s spot) (*os.File, error) {
	if err := t.clear(s); err != nil {
		return nil, err
	}
	if err := t.count(); err != nil {
		return nil, err
	}
	return s.dir.OpenFile(s.base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// hide removes what is in the folder at s and not kept, also in folders that
// are kept.
func (t *tree) hide(s spot, kept func(path string) bool) error {
	t.forget(s.held)
	return hideIn(s.dir, s.base, s.full(), kept)
}

func hideIn(dir *os.Root, name, path string, kept func(path string) bool) error {
	inner, err := dir.OpenRoot(name)
	if err != nil {
		return err
	}
	defer inner.Close() //nolint:errcheck // nothing was written through it that a close could lose
	for again := true; again; {
		if again, err = hideOnce(inner, path, kept); err != nil {
			return err
		}
	}
	return nil
}

// hideOnce goes through a folder once. It must be done again if it removed
// something, since that may move what a listing has not shown yet.
func hideOnce(dir *os.Root, path string, kept func(path string) bool) (removed bool, err error) {
	list, err := dir.Open(".")
	if err != nil {
		return false, err
	}
	defer list.Close() //nolint:errcheck // only read
	for {
		entries, err := list.ReadDir(512)
		for _, e := range entries {
			full := strings.TrimPrefix(path+"/"+e.Name(), "/")
			if !kept(full) {
				removed = true
				if err := dir.RemoveAll(e.Name()); err != nil {
					return false, err
				}
			} else if e.IsDir() {
				if err := hideIn(dir, e.Name(), full, kept); err != nil {
					return false, err
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return removed, nil
		} else if err != nil {
			return false, err
		}
	}
}
