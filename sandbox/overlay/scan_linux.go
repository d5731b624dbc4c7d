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
func (l *Layers) Changes(ctx context.Context, original *os.File) (*Changes, error) {
	if err := l.ready(original); err != nil {
		return nil, err
	}
	upper, err := l.upper()
	if err != nil {
		return nil, err
	}
	defer upper.Close()
	s := scan{ctx: ctx, upper: tree{int(upper.Fd())}, lower: tree{int(original.Fd())}}
	if err := s.top(); err != nil {
		return nil, fmt.Errorf("read changes: %w", err)
	}
	done, err := l.readDone()
	if err != nil {
		return nil, err
	}
	begun, err := l.readJournal()
	if err != nil {
		return nil, err
	}
	s.List = slices.DeleteFunc(s.List, func(c Change) bool { return done.paths[c.Path] || begun.temporary(base(c.Path)) })
	slices.SortFunc(s.List, func(a, b Change) int { return treeOrder(a.Path, b.Path) })
	if err := l.judge(&s); err != nil {
		return nil, fmt.Errorf("read changes: %w", err)
	}
	s.leaveOut(s.there)
	return &s.Changes, nil
}

// there looks for a path in both.
func (s *scan) there(path string) (upper, lower bool) {
	up, err := s.upper.lstat(path)
	upper = err == nil && up != nil && !up.whiteout
	low, err := s.lower.lstat(path)
	return upper, err == nil && low != nil
}

func (l *Layers) ready(original *os.File) error {
	if l.info.State != Kept {
		return fmt.Errorf("%w: session %s is %s", ErrGone, l.info.Session, l.info.State)
	}
	return l.Same(original)
}

// upper opens the upper layer.
func (l *Layers) upper() (*os.File, error) {
	path := filepath.Join(l.dir, UpperDir)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open upper layer: %w", &os.PathError{Op: "open", Path: path, Err: err})
	}
	return os.NewFile(uintptr(fd), path), nil
}

// scan is one reading of an upper layer.
type scan struct {
	Changes
	ctx          context.Context
	upper, lower tree
	text         int // bytes of the paths and link targets that are held
}

// top begins with the workspace's own folder, whose mode may have changed.
func (s *scan) top() error {
	now, err := s.upper.lstat(".")
	if err != nil {
		return err
	}
	was, err := s.lower.lstat(".")
	if err != nil {
		return err
	}
	if now.perm() != was.perm() {
		s.add(".", Mode, was, now)
	}
	return s.folder(".", true, false)
}

func (s *scan) add(path string, kind Kind, was, now *node) {
	if !s.hold(path, was, now) {
		return
	}
	if len(s.List) >= MaxEntries {
		s.Truncated = true
		return
	}
	c := Change{Path: path, Kind: kind, was: was, now: now}
	if was != nil {
		c.Was, c.WasMode, c.Size = was.typ, was.perm(), was.size
	}
	if now != nil {
		c.Now, c.Mode, c.Size, c.Target = now.typ, now.perm(), now.size, now.target
	}
	s.List = append(s.List, c)
}

// hold counts the text of what is to be held; where it is too much, it is not.
func (s *scan) hold(path string, nodes ...*node) bool {
	s.text += textOf(path, nodes...)
	if s.text > MaxTextBytes {
		s.Truncated = true
		return false
	}
	return true
}

// release takes back what hold counted.
func (s *scan) release(path string, nodes ...*node) { s.text -= textOf(path, nodes...) }

// textOf is how many bytes are held of a path and of what was found there.
func textOf(path string, nodes ...*node) int {
	text := len(path)
	for _, n := range nodes {
		if n != nil {
			text += len(n.target)
		}
	}
	return text
}

func (s *scan) unread(rel string) {
	if len(s.Unread) < maxUnread {
		s.Unread = append(s.Unread, rel)
	}
}

// folder reads the upper folder rel. Merged says that the original has a folder
// there too, which shows through unless it is hidden.
func (s *scan) folder(rel string, merged, hidden bool) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	below, err := s.entries(rel, merged, hidden)
	if err != nil {
		return err
	}
	for _, b := range below {
		if s.Truncated {
			return nil
		}
		if err := s.folder(b.rel, b.merged, b.hidden); err != nil {
			return err
		}
	}
	return nil
}

// folderBelow is a folder of the upper layer that is still to be read.
type folderBelow struct {
	rel            string
	merged, hidden bool
}

func (s *scan) entries(rel string, merged, hidden bool) ([]folderBelow, error) {
	up, err := s.upper.dir(rel)
	if err != nil {
		if rel == "." {
			return nil, err
		}
		s.unread(rel)
		return nil, nil
	}
	defer unix.Close(up)
	low := -1
	if merged {
		if low, err = s.lower.dir(rel); err != nil {
			s.unread(rel) // the original's: what is below can't be compared
			return nil, nil
		}
		defer unix.Close(low)
	}
	list, more, err := names(up, MaxEntries-len(s.List), MaxTextBytes-s.text)
	if err != nil {
		s.unread(rel)
		return nil, nil
	}
	s.Truncated = s.Truncated || more
	var below []folderBelow
	for _, name := range list {
		b, err := s.entry(rel, name, up, low)
		if err != nil {
			return nil, err
		}
		if b.rel != "" {
			below = append(below, b)
		}
	}
	if merged && hidden {
		return below, s.hidden(rel, low, list)
	}
	return below, nil
}

// entry compares one name; what it gives is a folder to go on in, if any.
func (s *scan) entry(rel, name string, up, low int) (folderBelow, error) {
	path := join(rel, name)
	now, err := stat(up, name)
	if err != nil {
		s.unread(path)
		return folderBelow{}, nil
	}
	var was *node
	if low >= 0 {
		if was, err = stat(low, name); err != nil && !missing(err) {
			s.unread(path)
			return folderBelow{}, nil
		}
	}
	switch {
	case now.whiteout:
		if was == nil {
			return folderBelow{}, nil
		}
		return folderBelow{}, s.gone(path, was)
	case now.typ == workspace.TypeDir:
		return s.directory(path, was, now, up, name)
	case was == nil:
		s.add(path, Added, nil, now)
	case was.typ == workspace.TypeDir:
		if err := s.below(path); err != nil {
			return folderBelow{}, err
		}
		s.add(path, Typed, was, now)
	case was.typ != now.typ:
		s.add(path, Typed, was, now)
	default:
		s.compare(path, was, now)
	}
	return folderBelow{}, nil
}

// directory compares a folder of the upper layer.
func (s *scan) directory(path string, was, now *node, up int, name string) (folderBelow, error) {
	switch {
	case was == nil:
		s.add(path, Added, nil, now)
		return folderBelow{rel: path}, nil
	case was.typ != workspace.TypeDir:
		s.add(path, Typed, was, now)
		return folderBelow{rel: path}, nil
	}
	hides := false
	dir, err := (tree{up}).dir(name)
	if err == nil {
		hides, err = opaque(dir)
		unix.Close(dir)
	}
	if err != nil {
		s.unread(path)
		return folderBelow{}, nil
	}
	if was.perm() != now.perm() {
		s.add(path, Mode, was, now)
	}
	if !s.hold(path) {
		return folderBelow{}, nil
	}
	return folderBelow{rel: path, merged: true, hidden: hides}, nil
}

// compare tells a change of what both have from a mere touch.
func (s *scan) compare(path string, was, now *node) {
	same := false
	switch now.typ {
	case workspace.TypeLink:
		same = was.target == now.target
		if same {
			return // links have no mode of their own
		}
	case workspace.TypeFile:
		same = was.size == now.size && now.size <= compareBytes && s.equal(path)
		if !same && isIndex(path) {
			says := s.upper.index(path)
			same = says != "" && says == s.lower.index(path)
		}
	default: // a pipe is a pipe
		same = true
	}
	switch {
	case !same:
		s.add(path, Modified, was, now)
	case was.perm() != now.perm():
		s.add(path, Mode, was, now)
	case now.nlink > 1 && now.typ == workspace.TypeFile:
		if s.twins == nil {
			s.twins = map[uint64]twin{}
		}
		if _, ok := s.twins[now.ino]; !ok && s.hold(path) {
			s.twins[now.ino] = twin{path, was}
		}
	}
}

// equal compares the content of a file in both. What can't be read is not equal.
func (s *scan) equal(path string) bool {
	up, _, err := s.upper.file(path)
	if err != nil {
		return false
	}
	defer up.Close()
	low, _, err := s.lower.file(path)
	if err != nil {
		return false
	}
	defer low.Close()
	const chunk = 128 << 10
	a, b := make([]byte, chunk), make([]byte, chunk)
	for s.ctx.Err() == nil {
		n, errA := io.ReadFull(up, a)
		m, errB := io.ReadFull(low, b)
		if n != m || !bytes.Equal(a[:n], b[:m]) {
			return false
		}
		if errA != nil || errB != nil {
			return ended(errA) && ended(errB)
		}
	}
	return false
}

func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

// hidden adds what an opaque folder hides: names of the original that it lacks.
func (s *scan) hidden(rel string, low int, have []string) error {
	list, more, err := names(low, MaxEntries, MaxTextBytes-s.text)
	if err != nil {
		s.unread(rel)
		return nil
	}
	s.Truncated = s.Truncated || more
	for _, name := range list {
		if _, ok := slices.BinarySearch(have, name); ok {
			continue
		}
		was, err := stat(low, name)
		if missing(err) {
			continue
		}
		if err != nil {
			s.unread(join(rel, name))
			continue
		}
		if err := s.gone(join(rel, name), was); err != nil {
			return err
		}
	}
	return nil
}

// gone adds the deletion of something of the original, and of what is in it.
func (s *scan) gone(path string, was *node) error {
	s.add(path, Deleted, was, nil)
	if was.typ != workspace.TypeDir {
		return nil
	}
	return s.below(path)
}

// below adds the deletion of all that a folder of the original holds.
func (s *scan) below(path string) error {
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	low, err := s.lower.dir(path)
	if err != nil {
		if !missing(err) {
			s.unread(path)
		}
		return nil
	}
	list, more, err := names(low, MaxEntries-len(s.List), MaxTextBytes-s.text)
	s.Truncated = s.Truncated || more
	var found []*node
	for _, name := range list {
		n, statErr := stat(low, name)
		if statErr != nil && !missing(statErr) {
			err = errors.Join(err, statErr)
		}
		found = append(found, n)
		if !s.hold(join(path, name), n) {
			break
		}
	}
	unix.Close(low)
	if err != nil {
		s.unread(path)
		return nil
	}
	for i, n := range found {
		s.release(join(path, list[i]), n) // gone holds it for good
		if n == nil || s.Truncated {
			continue
		}
		if err := s.gone(join(path, list[i]), n); err != nil {
			return err
		}
	}
	return nil
}

// Reasons of conflicts, as people read them.
const (
	appeared  = "it appeared in the workspace since the session began"
	vanished  = "it was deleted in the workspace since the session began"
	differs   = "it was changed in the workspace since the session began"
	unknown   = "it is not known whether it changed in the workspace: there was too much to look at when the session began"
	onTheWay  = "its folder was changed in the workspace since the session began"
	holdsMore = "something in it was changed in the workspace since the session began"
)

// judge finds the changes whose originals are not what they were.
func (l *Layers) judge(s *scan) error {
	at := make(map[string]*Change, len(s.List))
	for i := range s.List {
		at[s.List[i].Path] = &s.List[i]
	}
	end, err := l.stamps(func(st stamp) {
		if c := at[st.Path]; c != nil {
			c.had = &st
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
	touched, err := l.readJournal()
	if err != nil {
		return err
	}
	for i := range s.List {
		c := &s.List[i]
		c.Conflict = conflict(c, touched.paths[c.Path], known, l.info.Began.UnixNano())
		if c.Conflict == differs && c.had.Index != "" && c.had.Index == s.lower.index(c.Path) {
			c.Conflict = "" // git refreshed what it remembers of the files
		}
		if c.Conflict != "" {
			continue
		}
		// In the order of a tree, so that the folder was judged before.
		if up := at[parent(c.Path)]; up != nil && up.Conflict != "" && up.Path != c.Path && up.Kind != Deleted {
			c.Conflict = onTheWay
		}
	}
	// A folder goes only with all that is in it.
	for i := len(s.List) - 1; i >= 0; i-- {
		c := &s.List[i]
		up := at[parent(c.Path)]
		if c.Conflict != "" && up != nil && up.Conflict == "" && up.was != nil && up.was.typ == workspace.TypeDir &&
			(up.Kind == Deleted || up.Kind == Typed) {
			up.Conflict = holdsMore
		}
	}
	return nil
}

// conflict says how a change's original differs from what it was, or "".
// touched says that an apply that was killed had begun with it.
func conflict(c *Change, touched bool, known func(string) bool, began int64) string {
	folder := c.was != nil && c.was.typ == workspace.TypeDir
	switch {
	case c.Path == ".":
		return "" // its mode is no file's content
	case c.had != nil && c.was == nil:
		if touched {
			return "" // we took it away
		}
		return vanished
	case c.had != nil:
		if c.had.matches(c.was, touched) || touched && folder {
			return ""
		}
		return differs
	case c.was == nil, touched && folder: // a folder that we made, and no more
		return ""
	case known(c.Path):
		if folder && c.Kind != Deleted && c.Kind != Typed {
			return "" // both made the folder; what is in it is judged by itself
		}
		return appeared
	case c.was.ctime >= began:
		return appeared
	}
	return unknown
}
