package overlay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Layers are the layers of one session. The caller must close them. They are
// not safe for concurrent use.
type Layers struct {
	dir  string
	info Info
	// lock is held since Create or Lock; nil means that the layers are only
	// read.
	lock *os.File
}

// Create creates the layers of a new session in the directory dir, which must
// not exist, and locks them. The upper layer gets the owner and mode of the
// workspace, because the merged root shows those. The caller must call
// [Layers.Record] before anything is written. After an error nothing is left.
func Create(dir string, o CreateOptions) (_ *Layers, err error) {
	info := Info{Version: 1, Session: o.Session, Workspace: o.Path, Began: time.Now().UTC(), State: Kept, Boot: readBootID()}
	var st unix.Stat_t
	if err := unix.Fstat(int(o.Workspace.Fd()), &st); err != nil {
		return nil, fmt.Errorf("create layers: examine workspace: %w", err)
	}
	info.Device = st.Dev
	info.Inode = st.Ino
	info.Born = readBirthTime(int(o.Workspace.Fd()))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create layers: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(dir)
		}
	}()
	l := &Layers{dir: dir, info: info}
	for _, name := range []string{UpperDir, WorkDir} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			return nil, fmt.Errorf("create layers: %w", err)
		}
	}
	upper := filepath.Join(dir, UpperDir)
	if os.Geteuid() == 0 || int(st.Gid) != os.Getegid() {
		// An ordinary user can set the group if it is one of the user's own.
		// Otherwise the upper layer keeps its group.
		if err := os.Lchown(upper, -1, int(st.Gid)); err != nil && os.Geteuid() == 0 {
			return nil, fmt.Errorf("create layers: %w", err)
		}
		if os.Geteuid() == 0 {
			if err := os.Lchown(upper, int(st.Uid), -1); err != nil {
				return nil, fmt.Errorf("create layers: %w", err)
			}
		}
	}
	if err := unix.Fchmodat(unix.AT_FDCWD, upper, st.Mode&0o7777, 0); err != nil {
		return nil, fmt.Errorf("create layers: %w", err)
	}
	if err := l.acquireLock(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(l.info)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, baseFile), append(text, '\n'), 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create layers: %w", err), l.Close())
	}
	return l, nil
}

// Open opens the layers in dir for reading. Its error wraps fs.ErrNotExist if
// there are none, because the session had not begun to write.
func Open(dir string) (*Layers, error) {
	l := &Layers{dir: dir}
	// The state file outlives the layers.
	for _, name := range []string{stateFile, baseFile} {
		info, err := readInfo(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open layers: %w", err)
		}
		l.info = info
		return l, nil
	}
	return nil, fmt.Errorf("open layers: %w", &fs.PathError{Op: "open", Path: filepath.Join(dir, baseFile), Err: fs.ErrNotExist})
}

// readInfo reads the first line of a file.
func readInfo(path string) (Info, error) {
	var info Info
	f, err := os.Open(path)
	if err != nil {
		return info, err
	}
	defer func() { _ = f.Close() }()
	line, err := bufio.NewReader(io.LimitReader(f, 64<<10)).ReadBytes('\n')
	if err != nil {
		return info, fmt.Errorf("%s: %w", path, err)
	}
	if err := json.Unmarshal(line, &info); err != nil {
		return info, fmt.Errorf("%s: %w", path, err)
	}
	if info.Version != 1 {
		return info, fmt.Errorf("%s: version %d is not known", path, info.Version)
	}
	return info, nil
}

// Dir returns the directory of the layers, for sandbox.Workspace.Layers.
func (l *Layers) Dir() string { return l.dir }

// Info returns the description of the layers, without reading their content.
func (l *Layers) Info() Info { return l.info }

// Lock locks the layers for a change. It returns [ErrBusy] if their session
// runs or another process applies them.
func (l *Layers) Lock() error {
	if l.lock != nil {
		return nil
	}
	return l.acquireLock()
}

// acquireLock takes the lock, or returns [ErrBusy].
func (l *Layers) acquireLock() error {
	f, err := os.OpenFile(filepath.Join(l.dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("lock layers: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrBusy
	}
	if err != nil {
		return errors.Join(fmt.Errorf("lock layers: %w", err), f.Close())
	}
	l.lock = f
	return nil
}

// Close releases the lock. The layers stay.
func (l *Layers) Close() error {
	if l.lock == nil {
		return nil
	}
	lock := l.lock
	l.lock = nil
	return lock.Close()
}

// Record walks the original directory and records its state. It lets
// [Layers.Changes] distinguish later changes of the original from those of the
// session. Nothing may write to the merged directory before Record returns.
func (l *Layers) Record(ctx context.Context, original *os.File) (err error) {
	path := filepath.Join(l.dir, baseFile)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("record workspace: %w", err)
	}
	w := bufio.NewWriterSize(f, 256<<10)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	l.info.Recorded = true
	err = enc.Encode(l.info)
	if err == nil {
		r := recorder{tree: tree{int(original.Fd())}, encode: enc.Encode}
		if err = r.recordTree(ctx); err == nil {
			err = enc.Encode(baseTrailer{End: true, Entries: r.count, Whole: !r.truncated, Unread: r.unread})
		}
	}
	if err == nil {
		err = w.Flush()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("record workspace: %w", err), os.Remove(path+".new"))
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("record workspace: %w", err)
	}
	return nil
}

// baseTrailer is the last line of base.json. Without it the file is incomplete.
type baseTrailer struct {
	End     bool `json:"end"`
	Entries int  `json:"entries"`
	// Whole reports whether no bound was reached. Unread are all directories
	// that could not be read.
	Whole  bool     `json:"whole"`
	Unread [][]byte `json:"unread,omitempty"`
}

// recorder is the state of one call of Record.
type recorder struct {
	tree        tree
	encode      func(any) error
	count       int
	textBytes   int // bytes of paths and symlink targets
	truncated   bool
	unread      [][]byte
	unreadBytes int // bytes of unread
}

// maxUnreadBytes bounds the names of the directories in the last line of
// base.json.
const maxUnreadBytes = 64 << 10

// addUnread records a directory that can't be read.
func (r *recorder) addUnread(rel string) {
	r.unreadBytes += len(rel)
	if r.unreadBytes > maxUnreadBytes {
		r.truncated = true
		return
	}
	r.unread = append(r.unread, []byte(rel))
}

// recordTree records everything in the directory.
func (r *recorder) recordTree(ctx context.Context) error {
	dir, err := r.tree.openDir(".")
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return r.recordDirectory(ctx, ".", dir, 0)
}

// errTruncated ends a walk that has reached a bound.
var errTruncated = errors.New("too much to record")

// recordDirectory records the content of one open directory.
func (r *recorder) recordDirectory(ctx context.Context, rel string, dir, depth int) error {
	err := eachName(dir, func(name string) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return r.recordEntry(ctx, join(rel, name), name, dir, depth)
	})
	switch {
	case errors.Is(err, errTruncated):
		r.truncated = true
		return nil
	case errors.Is(err, errNames):
		r.addUnread(rel)
		return nil
	}
	return err
}

// recordEntry records name in an open directory, and its content.
func (r *recorder) recordEntry(ctx context.Context, path, name string, dir, depth int) error {
	n, err := statAt(dir, name)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		r.addUnread(parent(path))
		return nil
	}
	s := stampOf(path, n)
	r.textBytes += len(path) + len(s.Target)
	if r.textBytes > MaxTextBytes || r.count >= MaxEntries {
		return errTruncated
	}
	r.count++
	if n.typ == workspace.TypeFile && isIndex(path) {
		s.Index = r.tree.hashIndexAt(path)
	}
	if err := r.encode(s); err != nil || n.typ != workspace.TypeDir {
		return err
	}
	if depth >= maxScanDepth || len(path) > maxPathBytes {
		r.addUnread(path)
		return nil
	}
	below, err := (tree{dir}).openDir(name)
	if err != nil {
		if !isMissing(err) {
			r.addUnread(path)
		}
		return nil
	}
	defer unix.Close(below)
	if err := r.recordDirectory(ctx, path, below, depth+1); err != nil {
		return err
	}
	if r.truncated {
		return errTruncated
	}
	return nil
}

// stampOf returns the stamp of a node.
func stampOf(path string, n *node) stamp {
	s := stamp{Type: n.typ, Size: n.size, Mode: n.mode, MTime: n.mtime, CTime: n.ctime, Inode: n.ino}
	if n.typ == workspace.TypeDir {
		s.MTime, s.CTime = 0, 0
	}
	if n.target != "" {
		s.Target = []byte(shortenTarget(n.target))
	}
	if utf8.ValidString(path) {
		s.Path = path
	} else {
		s.Bytes = []byte(path)
	}
	return s
}

// readStamps reads base.json and calls visit for each stamp.
func (l *Layers) readStamps(visit func(stamp)) (baseTrailer, error) {
	var end baseTrailer
	f, err := os.Open(filepath.Join(l.dir, baseFile))
	if err != nil {
		return end, fmt.Errorf("read base: %w", err)
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewReaderSize(f, 256<<10)
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return end, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return end, fmt.Errorf("read base: %w", err)
		}
		switch {
		case first:
		case bytes.HasPrefix(line, []byte(`{"end"`)):
			if err := json.Unmarshal(line, &end); err != nil {
				return end, fmt.Errorf("read base: %w", err)
			}
			return end, nil
		default:
			var s stamp
			if err := json.Unmarshal(line, &s); err != nil {
				return end, fmt.Errorf("read base: %w", err)
			}
			if s.Bytes != nil {
				s.Path = string(s.Bytes)
			}
			visit(s)
		}
	}
}

// Same returns [ErrOther] unless folder is the directory of the session.
func (l *Layers) Same(dir *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return fmt.Errorf("examine workspace: %w", err)
	}
	born := readBirthTime(int(dir.Fd()))
	switch i := l.info; {
	case st.Ino != i.Inode,
		st.Dev != i.Device && readBootID() == i.Boot,
		born != 0 && i.Born != 0 && born != i.Born:
		return fmt.Errorf("%w: session %s worked on %s as it was then", ErrOther, i.Session, i.Workspace)
	}
	return nil
}

// End removes the layers permanently and records the reason: applied,
// discarded, expired or empty. The lock must be held.
func (l *Layers) End(state State) error {
	if l.lock == nil {
		return fmt.Errorf("end layers: %w: they are not locked", ErrBusy)
	}
	unmounted, err := l.lockDir()
	if err != nil {
		return fmt.Errorf("end layers: %w", err)
	}
	defer unmounted()
	return l.endAs(state)
}

// Sweep removes the rest of layers whose End was interrupted. It removes
// nothing of other layers.
func (l *Layers) Sweep() error {
	if l.info.State == Kept {
		return nil
	}
	if _, err := os.Lstat(filepath.Join(l.dir, UpperDir)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := l.Lock(); err != nil {
		return err
	}
	return l.removeLayers()
}

// endAs records the state and removes the layers.
func (l *Layers) endAs(state State) error {
	if state != Applied && state != Discarded {
		l.info.By = "" // no user did
	}
	if err := l.writeState(state); err != nil {
		return fmt.Errorf("end layers: %w", err)
	}
	return l.removeLayers()
}

// writeState records the state of the changes, the time and the user.
func (l *Layers) writeState(state State) error {
	l.info.State, l.info.At = state, time.Now().UTC()
	text, err := json.Marshal(l.info)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(l.dir, stateFile), append(text, '\n'))
}

// SetUser sets the label of the user who applies or discards the changes. It is
// stored with their state.
func (l *Layers) SetUser(label string) { l.info.By = label }

// removeLayers removes the layers, the upper one last: as long as it exists,
// something is left to remove.
func (l *Layers) removeLayers() error {
	var all []error
	for _, name := range []string{baseFile, applyFile, doneFile} {
		if err := os.Remove(filepath.Join(l.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = append(all, fmt.Errorf("end layers: %w", err))
		}
	}
	for _, name := range []string{WorkDir, UpperDir} {
		if err := removeTree(filepath.Join(l.dir, name)); err != nil {
			all = append(all, fmt.Errorf("end layers: %w", err))
		}
	}
	return errors.Join(all...)
}

// replaceFile replaces a file atomically and syncs it.
func replaceFile(path string, text []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return os.Rename(path+".new", path)
}

// removeTree removes a directory and its content without following symlinks. It
// first makes directories accessible that their owner can't enter, which
// commands can create.
func removeTree(path string) error {
	err := os.RemoveAll(path)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	fd, openErr := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if openErr != nil {
		return errors.Join(err, openErr)
	}
	makeAccessible(tree{fd}, ".")
	return errors.Join(unix.Close(fd), os.RemoveAll(path))
}

// makeAccessible grants the owner every right to the directory rel and those
// below it. It ignores errors, since the removal reports them.
func makeAccessible(t tree, rel string) {
	dir, err := t.openAt(rel, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return
	}
	if n, err := statAt(dir, ""); err == nil && n.mode&0o700 != 0o700 {
		// /proc is used because fchmod(2) does not accept an O_PATH descriptor.
		_ = unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", dir), n.mode|0o700)
	}
	unix.Close(dir)
	fd, err := t.openDir(rel)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_ = eachName(fd, func(name string) error {
		if n, err := statAt(fd, name); err == nil && n.typ == workspace.TypeDir {
			makeAccessible(t, join(rel, name))
		}
		return nil
	})
}

// readBootID returns the kernel's ID of the current boot.
func readBootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
