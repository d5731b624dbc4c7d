package overlay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// maxUnread is how many folders that can't be looked into are named.
	maxUnread = 20
	// compareBytes bounds the content that is compared to tell a file that was
	// changed from one that was only touched: larger ones of one size are taken
	// for changed.
	compareBytes = 1 << 30
)

// Changes reads what the session changed: the upper layer against the original
// folder as it is now, with what changed in that since the session began
// marked as a conflict. It fails with [ErrOther] for another folder and with
// [ErrGone] where nothing is kept.
//
// What an earlier apply has brought in is no change any more, so that an apply
// that was killed is gone on with by another one.
func (l *Layers) Changes(ctx context.Context, original *os.File, o ReadOptions) (*Changes, error) {
	if err := l.checkKept(original); err != nil {
		return nil, err
	}
	upper, err := l.openUpper()
	if err != nil {
		return nil, err
	}
	defer upper.Close()
	s := scan{ctx: ctx, upper: tree{int(upper.Fd())}, lower: tree{int(original.Fd())}, limits: o.withDefaults()}
	if err := s.scanTree(); err != nil {
		return nil, fmt.Errorf("read changes: %w", err)
	}
	done, err := l.readApplied()
	if err != nil {
		return nil, err
	}
	begun, err := l.readApplyLog()
	if err != nil {
		return nil, err
	}
	s.List = slices.DeleteFunc(s.List, func(c Change) bool { return done.paths[c.Path] || begun.isTemporary(base(c.Path)) })
	slices.SortFunc(s.List, func(a, b Change) int { return treeOrder(a.Path, b.Path) })
	if err := l.markConflicts(&s); err != nil {
		return nil, fmt.Errorf("read changes: %w", err)
	}
	s.markLeftOut(s.lookUp, s.readLink)
	return &s.Changes, nil
}

// lookUp looks for a path in both.
func (s *scan) lookUp(path string) (upper, lower bool) {
	up, err := s.upper.lstat(path)
	upper = err == nil && up != nil && !up.whiteout
	low, err := s.lower.lstat(path)
	return upper, err == nil && low != nil
}

// readLink returns the target of the symlink that is at a path once the changes are
// applied, and false where there is none.
func (s *scan) readLink(path string) (target string, ok bool) {
	n, err := s.upper.lstat(path)
	if err == nil && n == nil {
		n, err = s.lower.lstat(path)
	}
	if err != nil || n == nil || n.typ != workspace.TypeLink {
		return "", false
	}
	return n.target, true
}

func (l *Layers) checkKept(original *os.File) error {
	if l.info.State != Kept {
		return fmt.Errorf("%w: session %s is %s", ErrGone, l.info.Session, l.info.State)
	}
	return l.Same(original)
}

// openUpper opens the upper layer.
func (l *Layers) openUpper() (*os.File, error) {
	path := filepath.Join(l.dir, UpperDir)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open upper layer: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	return os.NewFile(uintptr(fd), path), nil
}

// maxScanDepth bounds the directories that a scan holds open, two for each level.
const maxScanDepth = 256

// scan is one reading of an upper layer.
type scan struct {
	Changes
	ctx          context.Context
	upper, lower tree
	limits       ReadOptions
	// textBytes are the bytes of the paths and link targets that are held; firstCount
	// and firstText are those of the changes that come first.
	textBytes, firstCount, firstTextBytes int
	depth                                 int
}

// scanTree begins with the workspace's own folder, whose mode may have changed.
func (s *scan) scanTree() error {
	now, err := s.upper.lstat(".")
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
	up, err := s.upper.openDir(".")
	if err != nil {
		return err
	}
	defer unix.Close(up)
	low, err := s.lower.openDir(".")
	if err != nil {
		s.addUnread(".")
		return nil
	}
	defer unix.Close(low)
	return s.scanDirectory(".", up, low, false)
}

// addChange holds a change, or counts it where there is no room. What comes first has
// room that others don't take.
func (s *scan) addChange(path string, kind Kind, was, now *node) {
	c := Change{Path: path, Kind: kind, was: was, now: now}
	if was != nil {
		c.Was, c.WasMode, c.Size = was.typ, was.perm(), was.size
	}
	if now != nil {
		c.Now, c.Mode, c.Size, c.Target = now.typ, now.perm(), now.size, now.target
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

// countText is how many bytes are held of a path and of what was found there.
func countText(path string, nodes ...*node) int {
	text := len(path)
	for _, n := range nodes {
		if n != nil {
			text += len(n.target)
		}
	}
	return text
}

func (s *scan) addUnread(rel string) {
	if len(s.Unread) < maxUnread {
		s.Unread = append(s.Unread, rel)
	}
}

// scanSubdirectory scans the directory name of the open directories up and low, either of
// which may be -1, by calling visit with it open.
func (s *scan) scanSubdirectory(rel, name string, up, low int, visit func(up, low int) error) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	if s.depth >= maxScanDepth || len(rel) > maxPathBytes {
		s.addUnread(rel)
		return nil
	}
	s.depth++
	defer func() { s.depth-- }()
	for _, dir := range []*int{&up, &low} {
		if *dir < 0 {
			continue
		}
		fd, err := (tree{*dir}).openDir(name)
		if err != nil {
			if dir == &up || !isMissing(err) {
				s.addUnread(rel) // what is below can't be compared
			}
			return nil
		}
		defer unix.Close(fd)
		*dir = fd
	}
	return visit(up, low)
}

// scanDirectory reads the open upper folder rel. The original's folder there, which
// shows through unless it is hidden, is low; -1 is none.
func (s *scan) scanDirectory(rel string, up, low int, hidden bool) error {
	err := eachName(up, func(name string) error { return s.scanEntry(rel, name, up, low) })
	if err == nil && low >= 0 && hidden {
		err = s.addHidden(rel, up, low)
	}
	return s.handleReadError(rel, err)
}

// handleReadError notes a folder that can't be read.
func (s *scan) handleReadError(rel string, err error) error {
	if errors.Is(err, errNames) {
		s.addUnread(rel)
		return nil
	}
	return err
}

// scanEntry compares one name.
func (s *scan) scanEntry(rel, name string, up, low int) error {
	path := join(rel, name)
	now, err := statAt(up, name)
	if err != nil {
		s.addUnread(path)
		return nil
	}
	var was *node
	if low >= 0 {
		if was, err = statAt(low, name); err != nil && !isMissing(err) {
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

// compareDirectory compares a folder of the upper layer.
func (s *scan) compareDirectory(path, name string, up, low int, was, now *node) error {
	if was == nil || was.typ != workspace.TypeDir {
		kind := Added
		if was != nil {
			kind = Typed
		}
		s.addChange(path, kind, was, now)
		return s.scanSubdirectory(path, name, up, -1, func(up, _ int) error { return s.scanDirectory(path, up, -1, false) })
	}
	return s.scanSubdirectory(path, name, up, low, func(up, low int) error {
		hides, err := isOpaque(up)
		if err != nil {
			s.addUnread(path)
			return nil
		}
		if was.perm() != now.perm() {
			s.addChange(path, Mode, was, now)
		}
		return s.scanDirectory(path, up, low, hides)
	})
}

// compareEntry tells a change of what both have from a mere touch.
func (s *scan) compareEntry(path, name string, up, low int, was, now *node) {
	same := false
	switch now.typ {
	case workspace.TypeLink:
		same = was.target == now.target
		if same {
			return // links have no mode of their own
		}
	case workspace.TypeFile:
		same = was.size == now.size && now.size <= compareBytes && s.equalContent(name, up, low)
		if !same && isIndex(path) {
			says := s.upper.hashIndexAt(path)
			same = says != "" && says == s.lower.hashIndexAt(path)
		}
	default: // a pipe is a pipe
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
			if s.textBytes += len(path); s.textBytes > s.limits.MaxTextBytes {
				s.Truncated = true
				return
			}
			s.twins[now.ino] = twin{path, was}
		}
	}
}

// equalContent compares the content of a file in both. What can't be read is not equal.
func (s *scan) equalContent(name string, up, low int) bool {
	now, _, err := (tree{up}).openFile(name)
	if err != nil {
		return false
	}
	defer now.Close()
	was, _, err := (tree{low}).openFile(name)
	if err != nil {
		return false
	}
	defer was.Close()
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

func isEOF(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// addHidden adds what an opaque folder hides: names of the original that it lacks.
func (s *scan) addHidden(rel string, up, low int) error {
	return eachName(low, func(name string) error {
		path := join(rel, name)
		if _, err := statAt(up, name); !isMissing(err) {
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

// addDeleted adds the deletion of name in the original's open folder low, and of what
// is in it.
func (s *scan) addDeleted(path, name string, low int, was *node) error {
	s.addChange(path, Deleted, was, nil)
	if was.typ != workspace.TypeDir {
		return nil
	}
	return s.addDeletedBelow(path, name, low)
}

// addDeletedBelow adds the deletion of all that a folder of the original holds.
func (s *scan) addDeletedBelow(path, name string, low int) error {
	return s.scanSubdirectory(path, name, -1, low, func(_, low int) error {
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

// Reasons of conflicts, as people read them.
const (
	conflictAppeared = "it appeared in the workspace since the session began"
	conflictVanished = "it was deleted in the workspace since the session began"
	conflictDiffers  = "it was changed in the workspace since the session began"
	conflictUnknown  = "it is not known whether it changed in the workspace: there was too much to look at when the session began"
	conflictParent   = "its folder was changed in the workspace since the session began"
	conflictContent  = "something in it was changed in the workspace since the session began"
)

// markConflicts finds the changes whose originals are not what they were.
func (l *Layers) markConflicts(s *scan) error {
	at := make(map[string]*Change, len(s.List))
	for i := range s.List {
		at[s.List[i].Path] = &s.List[i]
	}
	end, err := l.readStamps(func(st stamp) {
		if c := at[st.Path]; c != nil {
			c.base = &st
		}
	})
	if err != nil {
		return err
	}
	known := func(path string) bool {
		if !end.End || !end.Whole {
			return false
		}
		for dir := parent(path); dir != "."; dir = parent(dir) {
			if slices.ContainsFunc(end.Unread, func(u []byte) bool { return string(u) == dir }) {
				return false
			}
		}
		return true
	}
	touched, err := l.readApplyLog()
	if err != nil {
		return err
	}
	for i := range s.List {
		c := &s.List[i]
		c.Conflict = findConflict(c, touched.paths[c.Path], known, l.info.Began.UnixNano())
		if c.Conflict == conflictDiffers && c.base.Index != "" && c.base.Index == s.lower.hashIndexAt(c.Path) {
			c.Conflict = "" // git refreshed what it remembers of the files
		}
		if c.Conflict != "" {
			continue
		}
		// In the order of a tree, so that the folder was judged before.
		if up := at[parent(c.Path)]; up != nil && up.Conflict != "" && up.Path != c.Path && up.Kind != Deleted {
			c.Conflict = conflictParent
		}
	}
	// A folder goes only with all that is in it.
	for i := len(s.List) - 1; i >= 0; i-- {
		c := &s.List[i]
		up := at[parent(c.Path)]
		if c.Conflict != "" && up != nil && up.Conflict == "" && up.was != nil && up.was.typ == workspace.TypeDir &&
			(up.Kind == Deleted || up.Kind == Typed) {
			up.Conflict = conflictContent
		}
	}
	return nil
}

// findConflict says how a change's original differs from what it was, or "".
// touched says that an apply that was killed had begun with it.
func findConflict(c *Change, touched bool, known func(string) bool, began int64) string {
	folder := c.was != nil && c.was.typ == workspace.TypeDir
	switch {
	case c.Path == ".":
		return "" // its mode is no file's content
	case c.base != nil && c.was == nil:
		if touched {
			return "" // we took it away
		}
		return conflictVanished
	case c.base != nil:
		if c.base.matches(c.was, touched) || touched && folder {
			return ""
		}
		return conflictDiffers
	case c.was == nil, touched && folder: // a folder that we made, and no more
		return ""
	case known(c.Path):
		if folder && c.Kind != Deleted && c.Kind != Typed {
			return "" // both made the folder; what is in it is judged by itself
		}
		return conflictAppeared
	case c.was.ctime >= began:
		return conflictAppeared
	}
	return conflictUnknown
}
