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

// maxFollowed is how many symlinks a name may go through, like Linux's limit.
const maxFollowed = 40

// tree is an open directory into which a root filesystem is unpacked. Names
// resolve as if it were the root directory: a symlink's absolute target and ..
// stay in it. Each step starts from a held descriptor and goes through os.Root,
// which refuses to leave the tree even if the steps were wrong. No other
// process may write to the directory. A tree is not safe for concurrent use.
type tree struct {
	limits Limits
	// held are the open directories from the root to the current one, without
	// symlinks. A name that begins like the previous one reuses them.
	held    []heldDir
	entries int
}

type heldDir struct {
	name string
	dir  *os.Root
}

// openTree opens dir, which must exist. The caller must call closeDirs.
func openTree(dir string, limits Limits) (*tree, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open tree: %w", err)
	}
	return &tree{limits: limits, held: []heldDir{{dir: root}}}, nil
}

func (t *tree) closeDirs() {
	t.closeBelow(0)
	_ = t.held[0].dir.Close() // only a directory descriptor
}

func (t *tree) closeBelow(depth int) {
	for _, p := range t.held[depth+1:] {
		_ = p.dir.Close() // only a directory descriptor
	}
	t.held = t.held[:depth+1]
}

// location is where an entry is: a real directory and a name in it.
type location struct {
	dir     *os.Root
	dirPath string // dir's real path without a leading slash; "" is the root
	base    string
	depth   int // index of dir in tree.held
}

func (s location) fullPath() string { return strings.TrimPrefix(s.dirPath+"/"+s.base, "/") }

// refusal is why an entry is refused. The caller knows its name.
type refusal string

func (r refusal) Error() string { return string(r) }
func (refusal) Unwrap() error   { return images.ErrRefused }

// resolvePath resolves all of parts except the last. If create is set, it
// creates missing directories and reports them to touch. It fails with
// fs.ErrNotExist or a refusal.
func (t *tree) resolvePath(parts []string, create bool, touch func(path string)) (location, error) {
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
		if depth+1 < len(t.held) && t.held[depth+1].name == name {
			depth++
			continue
		}
		t.closeBelow(depth)
		target, err := t.enterDir(name, create, touch)
		if err != nil {
			return location{}, err
		}
		if target == "" {
			depth++
			continue
		}
		if followed++; followed > maxFollowed {
			return location{}, refusal(fmt.Sprintf("a name that follows more than %d symlinks", maxFollowed))
		}
		if strings.HasPrefix(target, "/") {
			depth = 0
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return location{dir: t.held[depth].dir, dirPath: t.dirPath(depth), base: parts[len(parts)-1], depth: depth}, nil
}

// enterDir opens the directory name in the last held one and holds it. If name
// is a symlink, it returns the target instead.
func (t *tree) enterDir(name string, create bool, touch func(path string)) (target string, err error) {
	dir := t.held[len(t.held)-1].dir
	info, err := dir.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && create:
		if err = t.makeDir(location{dir: dir, dirPath: t.dirPath(len(t.held) - 1), base: name}); err != nil {
			return "", err
		}
		if touch != nil {
			touch(strings.TrimPrefix(t.dirPath(len(t.held)-1)+"/"+name, "/"))
		}
	case err != nil:
		return "", err
	case info.Mode()&fs.ModeSymlink != 0:
		return dir.Readlink(name)
	case !info.IsDir():
		return "", refusal("a name below something other than a directory")
	}
	// Symlinks can make a path deeper than a name may be long.
	if path := t.dirPath(len(t.held) - 1); len(t.held) > t.limits.Depth || len(path)+len(name)+1 > t.limits.PathBytes {
		return "", refusal("a name that symlinks resolve too deep")
	}
	next, err := dir.OpenRoot(name)
	if err != nil {
		return "", err
	}
	t.held = append(t.held, heldDir{name, next})
	return "", nil
}

func (t *tree) dirPath(depth int) string {
	names := make([]string, depth)
	for i := range names {
		names[i] = t.held[i+1].name
	}
	return strings.Join(names, "/")
}

func (t *tree) countEntry() error {
	if t.entries++; t.entries > t.limits.Entries {
		return refusal(fmt.Sprintf("more than %d entries", t.limits.Entries))
	}
	return nil
}

// makeDir creates a directory with mode 0755, whatever the image declares: see
// docs/design/mounts.md#unpacking-layers.
func (t *tree) makeDir(s location) error {
	if err := t.countEntry(); err != nil {
		return err
	}
	if err := s.dir.Mkdir(s.base, 0o755); err != nil {
		return err
	}
	return s.dir.Chmod(s.base, 0o755)
}

func (t *tree) removeEntry(s location) error {
	info, err := s.dir.Lstat(s.base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if !info.IsDir() {
		return s.dir.Remove(s.base)
	}
	t.closeBelow(s.depth) // it may be held
	return s.dir.RemoveAll(s.base)
}

func (t *tree) createFile(s location) (*os.File, error) {
	if err := t.removeEntry(s); err != nil {
		return nil, err
	}
	if err := t.countEntry(); err != nil {
		return nil, err
	}
	return s.dir.OpenFile(s.base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// hideContents removes, at any depth below the directory at s, the entries for
// which kept returns false.
func (t *tree) hideContents(s location, kept func(path string) bool) error {
	t.closeBelow(s.depth)
	return removeHidden(s.dir, s.base, s.fullPath(), kept)
}

func removeHidden(dir *os.Root, name, path string, kept func(path string) bool) error {
	inner, err := dir.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { _ = inner.Close() }() // only a directory descriptor
	for again := true; again; {
		if again, err = removeHiddenOnce(inner, path, kept); err != nil {
			return err
		}
	}
	return nil
}

// removeHiddenOnce walks a directory once. If it removes an entry, it must run
// again, since that may move entries not yet listed.
func removeHiddenOnce(dir *os.Root, path string, kept func(path string) bool) (removed bool, err error) {
	list, err := dir.Open(".")
	if err != nil {
		return false, err
	}
	defer func() { _ = list.Close() }() // only read
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
				if err := removeHidden(dir, e.Name(), full, kept); err != nil {
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

// maxComponent is Linux's NAME_MAX.
const maxComponent = 255

// Whiteouts (OCI image-spec v1.1, layer.md), and the prefix of AUFS's own
// metadata, which every unpacker skips.
const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
	aufsPrefix     = ".wh..wh."
)

// splitName splits a name in an archive into components. An absolute name
// starts at the image's root; an empty list is the root itself. The reason is
// empty if the name is valid.
func splitName(name string, limits Limits) (parts []string, reason string) {
	switch {
	case len(name) > limits.PathBytes:
		return nil, fmt.Sprintf("a name of %d bytes: want at most %d", len(name), limits.PathBytes)
	case strings.ContainsRune(name, 0):
		return nil, "a name containing a NUL"
	}
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			return nil, "a name that goes up"
		case len(part) > maxComponent:
			return nil, fmt.Sprintf("a component of %d bytes: want at most %d", len(part), maxComponent)
		}
		parts = append(parts, part)
	}
	if len(parts) > limits.Depth {
		return nil, fmt.Sprintf("%d components: want at most %d", len(parts), limits.Depth)
	}
	return parts, ""
}

type whiteoutKind int

const (
	noWhiteout      whiteoutKind = iota
	aufsMetadata                 // skipped
	opaqueDirectory              // hides lower layers' entries in the directory
	removedEntry                 // removes the named entry of lower layers
)

// parseWhiteout parses an entry's name. hidden is the name that a removedEntry
// removes.
func parseWhiteout(parts []string) (m whiteoutKind, hidden, reason string) {
	for i, part := range parts {
		last := i == len(parts)-1
		switch {
		case last && part == opaqueMarker:
			return opaqueDirectory, "", ""
		case strings.HasPrefix(part, aufsPrefix):
			return aufsMetadata, "", ""
		case !strings.HasPrefix(part, whiteoutPrefix):
			continue
		case !last:
			return noWhiteout, "", "a directory named like a whiteout"
		}
		hidden = strings.TrimPrefix(part, whiteoutPrefix)
		if hidden == "" || hidden == "." || hidden == ".." {
			return noWhiteout, "", "a whiteout of nothing"
		}
		return removedEntry, hidden, ""
	}
	return noWhiteout, "", ""
}
