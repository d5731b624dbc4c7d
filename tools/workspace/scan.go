package workspace

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// ScanOptions configures a [Reader.Scan].
type ScanOptions struct {
	// Mounts are the only mounts that the scan enters, relative to the workspace.
	Mounts []string
	// Open, if not nil, is called for a directory that can't be listed or searched.
	// It makes the directory accessible. The scan calls restore when it is done
	// with the directory.
	Open func(dir string) (restore func(), err error)
	// Visit is called for every entry, in no order. It returns marks for
	// [ScanDirectory].Marks, and the directory to scan: e's path, the path that e
	// was renamed to, or "" for none.
	Visit func(e *ScanEntry) (mark uint8, enter string)
	// Leave, if not nil, is called when a directory and everything in it is done.
	Leave func(dir *ScanDirectory)
	// Unread is called for each directory that could not be read completely.
	Unread func(dir string, err error)
	// Since, if not nil, holds what earlier scans have read. A directory that has
	// not changed since is not read again, and is opened only to scan directories
	// in it.
	Since *SeenDirs
	// Stat reads metadata in batches. Set it if Visit needs it for most entries.
	Stat bool
	// Parallel scans up to four directories at once, except below those that Open
	// opened. The functions are then called concurrently for different directories,
	// and Leave perhaps before those below are done.
	Parallel bool
}

// ScanDirectory is a directory that a scan reads.
type ScanDirectory struct {
	Path string
	// Marks are the marks that Visit returned for its entries, combined.
	Marks uint8
	// Value is for Visit and Leave to use.
	Value any
}

// SeenDirs holds the directories that scans have read. The zero value is empty. It
// must not be used by two scans at once.
type SeenDirs struct {
	top  seenDir
	held int
}

// seenDir is a directory as it was read. below holds the entered directories in it.
type seenDir struct {
	state dirState
	below map[string]*seenDir
}

// dirState is equal if a directory's entries are the same: any change of them
// advances its change time, which no program can set. The zero value means unknown.
type dirState struct {
	inode   uint64
	mount   uint64
	changed int64
}

// Bounds of a SeenDirs. Tests change them.
var (
	// maxSeen bounds the directories held, at about 150 bytes each. A directory
	// with subdirectories that are not held is read each time.
	maxSeen = 200_000
	// changeTick is longer than the resolution of change times on any file system:
	// a second change within one step doesn't advance the time.
	changeTick = 3 * time.Second
)

// ScanEntry is an entry that a scan visits. It is valid during that visit.
type ScanEntry struct {
	Type Type
	Dir  *ScanDirectory

	path []byte
	base int
	read *statRead
	stat func(name string) (ScanStat, error)
}

type statRead struct {
	st  ScanStat
	err error
}

// Path returns the entry's path relative to the workspace.
func (e *ScanEntry) Path() string { return string(e.path) }

// Name returns the entry's name. It is valid during the visit.
func (e *ScanEntry) Name() []byte { return e.path[e.base:] }

// Stat returns the entry's metadata. It follows no symlink.
func (e *ScanEntry) Stat() (ScanStat, error) {
	if e.read != nil {
		return e.read.st, e.read.err
	}
	return e.stat(string(e.Name()))
}

// ScanStat is the metadata of one entry.
type ScanStat struct {
	Type Type
	// Mode is the twelve mode bits of chmod(2).
	Mode    uint32
	Links   uint64
	Size    int64
	Blocks  int64  // of 512 bytes
	Device  uint64 // in which Inode is unique; 0 if unknown
	Inode   uint64
	UID     uint32
	GID     uint32
	ModTime time.Time
	// ChangeTime can't be set by a program.
	ChangeTime time.Time
	Target     string
}

const (
	// batchBytes is the size of the entries read at once. Each level of the tree
	// holds at most one batch of directories.
	batchBytes  = 8 << 10
	maxScanners = 4
	// maxHandOver is the depth below which nothing is handed over: each goroutine
	// holds all directories above its own.
	maxHandOver = 64
)

type scanBatch struct {
	buf   [batchBytes]byte
	names []dirName
	stats []statRead
}

var batches = sync.Pool{New: func() any { return new(scanBatch) }}

// Scan visits every entry below path in no order, however many there are. It keeps
// nothing of visited entries, follows no symlink, not even as path's last name, and
// looks only at names and types. If path is not a directory, there are no entries. The error wraps context.Cause(ctx), or says why path itself can't be
// resolved; directories below that can't be read go to Unread.
func (r *Reader) Scan(ctx context.Context, path string, o ScanOptions) error {
	rel, e := r.prefixes.relativePath(path)
	if e != nil {
		return e
	}
	if r.remote != nil {
		return errors.ErrUnsupported
	}
	s := scan{scanning: &scanning{reader: r, o: o, failed: make(chan error, 1)}, path: []byte(rel)}
	if rel == "." {
		s.path = s.path[:0]
	}
	if o.Parallel {
		s.scanners = make(chan struct{}, min(runtime.GOMAXPROCS(0), maxScanners))
		s.scanners <- struct{}{}
	}
	top := &seenDir{}
	if o.Since != nil {
		top = &o.Since.top
		s.room.Store(int64(maxSeen - o.Since.held))
	}
	err := s.scanDirectory(ctx, nil, rel, top)
	s.end()
	s.running.Wait()
	select {
	case err = <-s.failed:
	default:
	}
	if o.Since != nil {
		o.Since.held = maxSeen - int(s.room.Load())
		if err == nil {
			o.Since.held = int(s.held.Load())
		}
	}
	return err
}

// StatEntry returns the metadata of path, which may be a symlink.
func (r *Reader) StatEntry(ctx context.Context, path string) (ScanStat, error) {
	rel, e := r.prefixes.relativePath(path)
	if e != nil {
		return ScanStat{}, e
	}
	if r.remote != nil {
		return ScanStat{}, errors.ErrUnsupported
	}
	st, err := runGuarded(ctx, r.guard, path, func(context.Context) (ScanStat, error) { return r.tree.statEntry(rel) })
	if err != nil {
		return ScanStat{}, r.newError(path, err)
	}
	return st, nil
}

// scan is one goroutine of a Scan.
type scan struct {
	*scanning
	path []byte // of the current directory; empty for the workspace
	// batch is nil at first, and while a call that was given up may still use it.
	batch *scanBatch
	// opened counts the directories above that Open opened. They must not be
	// restored before everything below is done.
	opened int
}

// scanning is what a Scan's goroutines share.
type scanning struct {
	reader *Reader
	o      ScanOptions
	// held counts the directories of o.Since that were reached. room is how many
	// more it can hold.
	held, room atomic.Int64
	// scanners has an element for each scanning goroutine. running waits for all
	// but the first. failed gets their first error.
	scanners chan struct{}
	running  sync.WaitGroup
	failed   chan error
}

type belowDir struct {
	name string
	seen *seenDir
}

func (s *scan) currentPath() string {
	if len(s.path) == 0 {
		return "."
	}
	return string(s.path)
}

// scanDirectory scans one directory, name in parent or, if parent is nil, the path
// name in the workspace. It updates seen.
func (s *scan) scanDirectory(ctx context.Context, parent *scanDir, name string, seen *seenDir) error {
	began := time.Now()
	dir, restore, err := s.openDirectory(ctx, parent, name)
	defer restore()
	if err != nil {
		if err = s.reportUnread(ctx, err); err == nil {
			*seen = seenDir{}
		}
		return err
	}
	defer dir.close()
	if s.o.Since == nil || dir.state == (dirState{}) || dir.state != seen.state {
		d := &ScanDirectory{Path: s.currentPath()}
		if err := s.readDirectory(ctx, dir, d, seen); err != nil {
			return err
		}
		if seen.state.changed > began.Add(-changeTick).UnixNano() {
			seen.state = dirState{}
		}
		if s.o.Leave != nil {
			s.o.Leave(d)
		}
		return nil
	}
	below := make([]belowDir, 0, len(seen.below))
	for name, seen := range seen.below {
		s.held.Add(1)
		below = append(below, belowDir{name, seen})
	}
	return s.scanBelow(ctx, dir, below)
}

// readDirectory visits a directory's entries, scans the directories to enter, and
// updates seen. After an error, seen keeps what it knew of directories not reached.
func (s *scan) readDirectory(ctx context.Context, dir *scanDir, d *ScanDirectory, seen *seenDir) (err error) {
	was := seen.below
	*seen = seenDir{state: dir.state}
	defer func() {
		if err == nil {
			return
		}
		seen.state = dirState{}
		if was != nil {
			maps.Copy(was, seen.below)
			seen.below = was
		}
	}()
	for {
		batch, err := s.nextBatch(ctx, dir, d.Path)
		if err != nil {
			seen.state = dirState{}
			return s.reportUnread(ctx, err)
		}
		if len(batch.names) == 0 {
			return nil
		}
		var below []belowDir
		for _, name := range s.visitBatch(ctx, dir, d, batch) {
			below = append(below, belowDir{name, s.hold(seen, name, was[name])})
		}
		if err := s.scanBelow(ctx, dir, below); err != nil {
			return err
		}
	}
}

// nextBatch returns the next entries, valid until the next call; none at the end.
func (s *scan) nextBatch(ctx context.Context, dir *scanDir, path string) (*scanBatch, error) {
	batch := s.batch
	if batch == nil {
		batch, _ = batches.Get().(*scanBatch)
	}
	s.batch = nil // a call that is given up keeps it
	_, err := runGuarded(ctx, s.reader.guard, path, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, dir.readBatch(ctx, batch, s.statsBatches())
	})
	if err == nil {
		s.batch = batch
	}
	return batch, err
}

// statsBatches reports whether metadata is read with the names in one call. On file
// systems that are not local, each call has its own time limit.
func (s *scan) statsBatches() bool { return s.o.Stat && s.reader.guard.local }

// hold returns the entry for the directory name in parent, and keeps it there if
// there is room. was is the entry so far, or nil.
func (s *scan) hold(parent *seenDir, name string, was *seenDir) *seenDir {
	switch {
	case was == nil && s.room.Add(-1) < 0:
		s.room.Add(1)
		parent.state = dirState{}
		return &seenDir{}
	case was == nil:
		was = &seenDir{}
	}
	s.held.Add(1)
	if parent.below == nil {
		parent.below = map[string]*seenDir{}
	}
	parent.below[name] = was
	return was
}

// scanBelow scans directories in dir. Whenever another goroutine may start, it
// hands half of them over.
func (s *scan) scanBelow(ctx context.Context, dir *scanDir, below []belowDir) error {
	for len(below) > 0 {
		if half := len(below) / 2; half > 0 && s.opened == 0 && bytes.Count(s.path, []byte("/")) < maxHandOver && s.handOver(ctx, dir, below[len(below)-half:]) {
			below = below[:len(below)-half]
		}
		if err := s.scanNamed(ctx, dir, below[0].name, below[0].seen); err != nil {
			return err
		}
		below = below[1:]
	}
	return nil
}

func (s *scan) handOver(ctx context.Context, dir *scanDir, below []belowDir) bool {
	select {
	case s.scanners <- struct{}{}:
	default:
		return false
	}
	fd, err := unix.FcntlInt(uintptr(dir.fd), unix.F_DUPFD_CLOEXEC, 0) // dir may be closed soon
	if err != nil {
		<-s.scanners
		return false
	}
	other := &scan{scanning: s.scanning, path: slices.Clone(s.path)}
	s.running.Go(func() {
		dir := &scanDir{fd: fd}
		defer other.end()
		defer dir.close()
		if err := other.scanBelow(ctx, dir, below); err != nil {
			select {
			case s.failed <- err:
			default: // it has an error already
			}
		}
	})
	return true
}

func (s *scan) scanNamed(ctx context.Context, dir *scanDir, name string, seen *seenDir) error {
	if len(seen.below) == 0 && seen.state != (dirState{}) {
		now, err := runGuarded(ctx, s.reader.guard, name, func(context.Context) (dirState, error) { return dir.stateOf(name) })
		if err == nil && now == seen.state {
			return nil
		}
	}
	length := len(s.path)
	s.pushName(name)
	err := s.scanDirectory(ctx, dir, name, seen)
	s.path = s.path[:length]
	return err
}

func (s *scan) end() {
	if s.batch != nil {
		batches.Put(s.batch)
	}
	if s.scanners != nil {
		<-s.scanners
	}
}

func (s *scan) pushName(name string) {
	if len(s.path) > 0 {
		s.path = append(s.path, '/')
	}
	s.path = append(s.path, name...)
}

func (s *scan) visitBatch(ctx context.Context, dir *scanDir, d *ScanDirectory, batch *scanBatch) (enter []string) {
	length := len(s.path)
	e := ScanEntry{Dir: d, stat: func(name string) (ScanStat, error) {
		return runGuarded(ctx, s.reader.guard, name, func(context.Context) (ScanStat, error) { return dir.stat(name) })
	}}
	for i, n := range batch.names {
		s.pushName(n.name)
		e.Type = n.typ
		e.path, e.base = s.path, len(s.path)-len(n.name)
		if s.statsBatches() {
			e.read = &batch.stats[i]
		}
		if e.Type == TypeOther { // the file system tells no types
			if st, err := e.Stat(); err == nil {
				e.Type = st.Type
			}
		}
		mark, into := s.o.Visit(&e)
		d.Marks |= mark
		s.path = s.path[:length]
		if into != "" {
			_, name := splitPath(into)
			enter = append(enter, name)
		}
	}
	return enter
}

// openDirectory opens a directory, with ScanOptions.Open if it can't be listed or
// searched.
func (s *scan) openDirectory(ctx context.Context, parent *scanDir, name string) (dir *scanDir, restore func(), err error) {
	restore = func() {}
	if len(s.path) > MaxPathBytes {
		return nil, restore, &Error{Kind: KindTooLarge, Path: abbreviatePath(s.currentPath()), Detail: "its path is longer than 4095 bytes"}
	}
	cross := slices.Contains(s.o.Mounts, s.currentPath())
	open := func(context.Context) (*scanDir, error) {
		d, err := s.reader.tree.openScan(parent, name, cross)
		if err == nil && s.o.Since != nil {
			d.state, _ = d.stateOf("")
		}
		return d, err
	}
	dir, err = runGuarded(ctx, s.reader.guard, s.currentPath(), open)
	if s.o.Open == nil || !errors.Is(err, errClosedDir) {
		return dir, restore, err
	}
	undo, failed := s.o.Open(s.currentPath())
	if failed != nil {
		return nil, restore, failed
	}
	dir, err = runGuarded(ctx, s.reader.guard, s.currentPath(), open)
	s.opened++
	return dir, func() { s.opened--; undo() }, err
}

func (s *scan) reportUnread(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, errGone) {
		return nil // removed meanwhile
	}
	s.o.Unread(s.currentPath(), s.reader.newError(s.currentPath(), err))
	return nil
}

var (
	// errClosedDir means that a directory's mode forbids listing or searching it.
	errClosedDir = errors.New("the directory can't be listed or searched")
	// errGone means that a directory is missing, or no longer one.
	errGone = errors.New("the directory is gone")
)

// inDir resolves one name in a directory.
const inDir = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

type scanDir struct {
	fd    int
	state dirState
}

// openScan opens name in parent or, if parent is nil, the path name in the
// workspace. It enters another mount only with cross.
func (t *tree) openScan(parent *scanDir, name string, cross bool) (*scanDir, error) {
	fd, err := t.openScanAt(parent, name, cross)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%w: %w", errGone, err)
	}
	if err == nil && os.Geteuid() != 0 {
		if err = unix.Faccessat(fd, ".", unix.X_OK, unix.AT_EACCESS); err != nil {
			_ = unix.Close(fd)
		}
	}
	if errors.Is(err, unix.EACCES) {
		return nil, fmt.Errorf("%w: %w", errClosedDir, err)
	}
	if err != nil {
		return nil, err
	}
	return &scanDir{fd: fd}, nil
}

// stateOf returns the state of a directory in d, or of d itself if name is "".
func (d *scanDir) stateOf(name string) (dirState, error) {
	st, err := statx(d.fd, name, unix.AT_EMPTY_PATH)
	if err != nil {
		return dirState{}, err
	}
	return dirState{st.Ino, cmp.Or(st.mount.id, st.mount.dev), time.Unix(st.Ctim.Unix()).UnixNano()}, nil
}

func (t *tree) openScanAt(parent *scanDir, name string, cross bool) (int, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW
	switch {
	case parent == nil:
		return t.openDir(name, false)
	case cross:
		return openat(parent.fd, name, flags)
	case !t.walking.Load():
		fd, err := openat2(parent.fd, name, flags, inDir)
		if errors.Is(err, unix.EXDEV) {
			err = fmt.Errorf("%w: %w", ErrMount, err)
		}
		return fd, err
	}
	fd, err := openat(parent.fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return -1, err
	}
	f, err := statx(fd, "", unix.AT_EMPTY_PATH)
	if err == nil && f.mount != t.mount {
		err = ErrMount
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return openForReading(fd)
}

func (d *scanDir) close() { _ = unix.Close(d.fd) }

// readBatch reads the next entries, and with stat their metadata; none at the end.
func (d *scanDir) readBatch(ctx context.Context, b *scanBatch, stat bool) (err error) {
	b.stats = b.stats[:0]
	b.names, err = nextNames(ctx, d.fd, b.buf[:], b.names[:0])
	if !stat {
		return err
	}
	for _, n := range b.names {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		st, err := d.stat(n.name)
		b.stats = append(b.stats, statRead{st, err})
	}
	return err
}

// nextNames appends a directory's next entries to names; none at the end.
func nextNames(ctx context.Context, fd int, buf []byte, names []dirName) ([]dirName, error) {
	for len(names) == 0 {
		if ctx.Err() != nil { // given up: the descriptor may be another file's by now
			return names, context.Cause(ctx)
		}
		n := 0
		err := retry(func() (err error) {
			n, err = unix.Getdents(fd, buf)
			return err
		})
		if err != nil || n <= 0 {
			return names, err
		}
		for rest := buf[:n]; len(rest) > 0; {
			var e dirName
			if e, rest = nextDirent(rest); e.name != "" && e.name != "." && e.name != ".." {
				names = append(names, e)
			}
		}
	}
	return names, nil
}

func (d *scanDir) stat(name string) (ScanStat, error) {
	st, err := statx(d.fd, name, 0)
	if err != nil {
		return ScanStat{}, err
	}
	out := ScanStat{
		Type: typeOf(st.Mode), Mode: st.Mode & 0o7777, Links: st.links, Size: st.Size, Blocks: st.Blocks,
		Device: st.Dev, Inode: st.Ino, UID: st.Uid, GID: st.Gid, ModTime: time.Unix(st.Mtim.Unix()), ChangeTime: time.Unix(st.Ctim.Unix()),
	}
	if out.Type == TypeSymlink {
		out.Target, err = readLink(d.fd, name)
	}
	return out, err
}

func (t *tree) statEntry(rel string) (ScanStat, error) {
	dir, name := splitPath(rel)
	if name == "" {
		name = "."
	}
	fd, err := t.openPath(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return ScanStat{}, err
	}
	defer func() { _ = unix.Close(fd) }()
	return (&scanDir{fd: fd}).stat(name)
}
