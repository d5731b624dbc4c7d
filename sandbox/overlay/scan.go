package overlay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// maxUnread is the number of unreadable directories that are named.
	maxUnread = 20
	// compareBytes is the size up to which the content of files is compared.
	// Larger files of equal size count as changed even if they were only
	// touched.
	compareBytes = 1 << 30
)

// Changes returns the changes of the session: the difference between the upper
// layers and the original directory. What changed in the original since the
// start of the session is marked as a conflict. Changes returns [ErrOther] for
// another directory and [ErrGone] if the layers have ended.
//
// Changes that an earlier apply has made are not included, so that a new apply
// continues one that was killed.
func (l *Layers) Changes(ctx context.Context, original *os.File, o ReadOptions) (*Changes, error) {
	if err := checkKept(l, original); err != nil {
		return nil, err
	}
	upper, err := l.openStack()
	if err != nil {
		return nil, err
	}
	defer upper.close()
	s := scan{ctx: ctx, upper: upper, lower: tree{int(original.Fd())}, limits: o.withDefaults()}
	if err := s.scanTree(); err != nil {
		return nil, fmt.Errorf("read changes: %w", err)
	}
	done, err := readApplied(l)
	if err != nil {
		return nil, err
	}
	begun, err := readApplyLog(l)
	if err != nil {
		return nil, err
	}
	s.List = slices.DeleteFunc(s.List, func(c Change) bool { return done.paths[c.Path] || begun.isTemporary(base(c.Path)) })
	slices.SortFunc(s.List, func(a, b Change) int { return workspace.TreeOrder(a.Path, b.Path) })
	if len(s.List) > 0 { // the state of a large directory takes time to read
		if err := markConflicts(l, s.List, s.lower); err != nil {
			return nil, fmt.Errorf("read changes: %w", err)
		}
	}
	s.markLeftOut(s.lookUp, s.readLink)
	return &s.Changes, nil
}

// lookUp reports whether a path exists in the upper layer, and in the original.
func (s *scan) lookUp(path string) (upper, lower bool) {
	up, err := s.upper.lstat(path)
	upper = err == nil && up != nil && !up.whiteout
	low, err := s.lower.lstat(path)
	return upper, err == nil && low != nil
}

// readLink returns the target of the symlink at a path once the changes are
// applied, and false if there is none.
func (s *scan) readLink(path string) (target string, ok bool) {
	n, err := s.upper.lstat(path)
	if err == nil && n == nil {
		n, err = s.lower.lstat(path)
	}
	if err != nil || n == nil || n.typ != workspace.TypeSymlink {
		return "", false
	}
	return n.target, true
}

// checkKept returns an error if the layers have ended or belong to another
// directory.
func checkKept(l *Layers, original *os.File) error {
	if l.info.State != Kept {
		return fmt.Errorf("%w: session %s is %s", ErrGone, l.info.Session, l.info.State)
	}
	return l.Same(original)
}

// maxScanDepth bounds how deep a scan goes. It holds the directories of one path
// open.
const maxScanDepth = 256

// scan is one scan of the upper layers.
type scan struct {
	Changes
	ctx    context.Context
	upper  stack
	lower  tree
	limits ReadOptions
	// textBytes is the number of bytes of paths and symlink targets in List.
	// firstCount and firstTextBytes count the changes with priority and their
	// bytes.
	textBytes, firstCount, firstTextBytes int
	depth, descriptors                    int
}

// scanTree begins with the workspace's own directory, whose mode may have
// changed.
func (s *scan) scanTree() error {
	now, err := statAt(s.upper[0].fd, "")
	if err != nil {
		return err
	}
	was, err := s.lower.lstat(".")
	if err != nil {
		return err
	}
	if now.perm() != was.perm() {
		s.addChange(".", Mode, was, now)
	}
	low, err := s.lower.openDir(".")
	if err != nil {
		s.addUnread(".")
		return nil
	}
	defer unix.Close(low)
	for _, d := range s.upper {
		if _, err := unix.Seek(d.fd, 0, io.SeekStart); err != nil {
			return err
		}
	}
	return s.scanDirectory(".", s.upper, low, false)
}

// addChange adds a change, or counts it if there is no room. Changes with
// priority have their own room.
func (s *scan) addChange(path string, kind Kind, was, now *node) {
	c := Change{Path: path, Kind: kind, was: was, now: now}
	if was != nil {
		c.Was = was.typ
		c.WasMode = was.perm()
		c.Size = was.size
	}
	if now != nil {
		c.Now = now.typ
		c.Mode = now.perm()
		c.Size = now.size
		c.Target = now.target
	}
	entries, text := s.limits.MaxEntries, s.limits.MaxTextBytes
	size := countText(path, was, now)
	if s.limits.First != nil {
		entries, text = entries/2, text/2
		if s.firstCount < entries && s.firstTextBytes+size <= text && s.limits.First(path) {
			s.firstCount++
			s.firstTextBytes += size
			s.List = append(s.List, c)
			return
		}
	}
	if len(s.List)-s.firstCount >= entries || s.textBytes+size > text {
		s.Truncated = true
		if c.File() || kind == Mode {
			s.Omitted++
		}
		return
	}
	s.textBytes += size
	s.List = append(s.List, c)
}

// countText returns the number of bytes of a path and of the targets of nodes.
func countText(path string, nodes ...*node) int {
	text := len(path)
	for _, n := range nodes {
		if n != nil {
			text += len(n.target)
		}
	}
	return text
}

// addUnread records a directory that can't be read.
func (s *scan) addUnread(rel string) {
	if len(s.Unread) < maxUnread {
		s.Unread = append(s.Unread, rel)
	}
}

// scanSubdirectory opens the directory name in the upper layers up and in the
// open directory low, and calls visit. up may be nil and low may be -1. hides
// reports whether the upper layers hide the original's directory.
func (s *scan) scanSubdirectory(rel, name string, up stack, low int, visit func(up stack, low int, hides bool) error) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	if s.depth >= maxScanDepth || s.descriptors > maxStackDescriptors || len(rel) > maxPathBytes {
		s.addUnread(rel)
		return nil
	}
	var upper stack
	var hides bool
	var err error
	if up != nil {
		if upper, hides, err = up.openDir(name); err != nil {
			s.addUnread(rel) // its content can't be compared
			return nil
		}
		defer upper.close()
	}
	if low >= 0 {
		if low, err = (tree{low}).openDir(name); err != nil {
			if !isMissing(err) {
				s.addUnread(rel)
			}
			return nil
		}
		defer unix.Close(low)
	}
	s.depth++
	s.descriptors += len(upper)
	defer func() { s.depth, s.descriptors = s.depth-1, s.descriptors-len(upper) }()
	return visit(upper, low, hides)
}

// scanDirectory scans the open upper directory rel. The original's directory,
// which shows through unless it is hidden, is low; -1 means none.
func (s *scan) scanDirectory(rel string, up stack, low int, hidden bool) error {
	err := up.eachName(func(name string) error { return s.scanEntry(rel, name, up, low) })
	if err == nil && low >= 0 && hidden {
		err = s.addHidden(rel, up, low)
	}
	return s.handleReadError(rel, err)
}

// handleReadError records a directory that can't be read, and returns other
// errors.
func (s *scan) handleReadError(rel string, err error) error {
	if errors.Is(err, errNames) {
		s.addUnread(rel)
		return nil
	}
	return err
}

// scanEntry compares one name.
func (s *scan) scanEntry(rel, name string, up stack, low int) error {
	path := join(rel, name)
	now, err := up.stat(name)
	if err != nil {
		s.addUnread(path)
		return nil
	}
	var was *node
	if low >= 0 {
		was, err = statAt(low, name)
		if err != nil && !isMissing(err) {
			s.addUnread(path)
			return nil
		}
	}
	switch {
	case now.whiteout:
		if was == nil {
			return nil
		}
		return s.addDeleted(path, name, low, was)
	case now.typ == workspace.TypeDir:
		return s.compareDirectory(path, name, up, low, was, now)
	case was == nil:
		s.addChange(path, Added, nil, now)
	case was.typ == workspace.TypeDir:
		s.addChange(path, Typed, was, now)
		return s.addDeletedBelow(path, name, low)
	case was.typ != now.typ:
		s.addChange(path, Typed, was, now)
	default:
		s.compareEntry(path, name, up, low, was, now)
	}
	return nil
}

// compareDirectory compares a directory of the upper layer.
func (s *scan) compareDirectory(path, name string, up stack, low int, was, now *node) error {
	if was == nil || was.typ != workspace.TypeDir {
		kind := Added
		if was != nil {
			kind = Typed
		}
		s.addChange(path, kind, was, now)
		return s.scanSubdirectory(path, name, up, -1, func(up stack, _ int, _ bool) error { return s.scanDirectory(path, up, -1, false) })
	}
	return s.scanSubdirectory(path, name, up, low, func(up stack, low int, hides bool) error {
		if was.perm() != now.perm() {
			s.addChange(path, Mode, was, now)
		}
		return s.scanDirectory(path, up, low, hides)
	})
}

// compareEntry adds a change if an entry that exists on both sides differs.
func (s *scan) compareEntry(path, name string, up stack, low int, was, now *node) {
	same := false
	switch now.typ {
	case workspace.TypeSymlink:
		same = was.target == now.target
		if same {
			return // symlinks have no mode of their own
		}
	case workspace.TypeFile:
		same = was.size == now.size && now.size <= compareBytes && s.equalContent(name, up.layer(now.layer), low)
		if !same && isIndex(path) {
			hash := s.upper.layer(now.layer).hashIndexAt(path)
			same = hash != "" && hash == s.lower.hashIndexAt(path)
		}
	default: // pipes, sockets and devices have no content
		same = true
	}
	switch {
	case !same:
		s.addChange(path, Modified, was, now)
	case was.perm() != now.perm():
		s.addChange(path, Mode, was, now)
	case now.nlink > 1 && now.typ == workspace.TypeFile:
		if s.twins == nil {
			s.twins = map[uint64]twin{}
		}
		if _, ok := s.twins[now.ino]; !ok {
			s.textBytes += len(path)
			if s.textBytes > s.limits.MaxTextBytes {
				s.Truncated = true
				return
			}
			s.twins[now.ino] = twin{path, was}
		}
	}
}

// equalContent reports whether the content of a file is the same on both sides.
// Unreadable content is not.
func (s *scan) equalContent(name string, up tree, low int) bool {
	now, _, err := up.openFile(name)
	if err != nil {
		return false
	}
	defer func() { _ = now.Close() }()
	was, _, err := (tree{low}).openFile(name)
	if err != nil {
		return false
	}
	defer func() { _ = was.Close() }()
	const chunk = 128 << 10
	a, b := make([]byte, chunk), make([]byte, chunk)
	for s.ctx.Err() == nil {
		n, errA := io.ReadFull(now, a)
		m, errB := io.ReadFull(was, b)
		if n != m || !bytes.Equal(a[:n], b[:m]) {
			return false
		}
		if errA != nil || errB != nil {
			return isEOF(errA) && isEOF(errB)
		}
	}
	return false
}

// isEOF reports whether an error is the end of a file.
func isEOF(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// addHidden adds the deletions that an opaque directory makes: names of the
// original that it lacks.
func (s *scan) addHidden(rel string, up stack, low int) error {
	return eachName(low, func(name string) error {
		path := join(rel, name)
		if _, err := up.stat(name); !isMissing(err) {
			if err != nil {
				s.addUnread(path)
			}
			return nil
		}
		was, err := statAt(low, name)
		switch {
		case isMissing(err):
			return nil
		case err != nil:
			s.addUnread(path)
			return nil
		}
		return s.addDeleted(path, name, low, was)
	})
}

// addDeleted adds the deletion of name in the original's open directory low,
// and of its content.
func (s *scan) addDeleted(path, name string, low int, was *node) error {
	s.addChange(path, Deleted, was, nil)
	if was.typ != workspace.TypeDir {
		return nil
	}
	return s.addDeletedBelow(path, name, low)
}

// addDeletedBelow adds the deletions of everything in a directory of the
// original.
func (s *scan) addDeletedBelow(path, name string, low int) error {
	return s.scanSubdirectory(path, name, nil, low, func(_ stack, low int, _ bool) error {
		return s.handleReadError(path, eachName(low, func(name string) error {
			was, err := statAt(low, name)
			switch {
			case isMissing(err):
				return nil
			case err != nil:
				s.addUnread(path)
				return nil
			}
			return s.addDeleted(join(path, name), name, low, was)
		}))
	})
}
