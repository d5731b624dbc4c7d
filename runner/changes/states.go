package changes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Bounds of what a session remembers about its workspace's files. Tests change the first three.
var (
	// maxStateBytes bounds the names of remembered files, on disk: some eight million.
	maxStateBytes int64 = 256 << 20
	// maxStateDirs bounds the remembered directories with files, at some 50 bytes of memory
	// each.
	maxStateDirs = 500_000
	// pieceBytes is the size at which a directory's files are written to disk.
	pieceBytes = 64 << 10
)

const (
	// keptFiles files of at most keptFileBytes each, together at most keptFilesBytes, are
	// kept in full, on disk, so that changes by commands can be shown.
	keptFiles      = 20_000
	keptFileBytes  = 256 << 10
	keptFilesBytes = 32 << 20
)

// stamp identifies a file's state. Programs can't set the change time, so it reveals new content
// with the old size and modification time.
type stamp struct {
	kind   workspace.Type
	size   int64
	mode   uint32
	mtime  int64
	ctime  int64
	inode  uint64
	target string
}

func stampOf(st *workspace.ScanStat) stamp {
	return stamp{
		kind: st.Type, size: st.Size, mode: st.Mode, mtime: st.ModTime.UnixNano(), ctime: st.ChangeTime.UnixNano(),
		inode: st.Inode, target: st.Target,
	}
}

// FileStates are a workspace's files when a session began. Memory has a keyed hash of the path of
// each directory with files. It leads to the files' names in a scratch file, each with a keyed
// hash of the file's [stamp]. Another scratch file has the content of some files. The zero value
// knows nothing. A FileStates is safe for concurrent use once it is made.
type FileStates struct {
	seed maphash.Seed
	dirs map[uint64]dirStates
	// names has the directories' files, and contents the files that are kept in full, by the
	// hashes of their paths in content. toKeep are candidates for that.
	names, contents *scratch
	content         map[uint64]keptFile
	toKeep          []keptFile
	// taken is the latest change time of the files.
	taken time.Time
	// whole reports that everything was examined, and cut that there were more files than the
	// bounds allow.
	whole, cut bool

	mu sync.Mutex // guards all fields while they are made
	// keptBytes is the total size of toKeep.
	keptBytes int64
}

// dirStates leads to the files of one directory: to their last piece, which begins with the
// place of the piece before.
type dirStates struct {
	last   extent
	number uint32 // from 0
}

type keptFile struct {
	path string // "" once it is kept
	mode uint32
	at   extent
}

// Look is a further use of a pass over a workspace's files. Its functions, which may be nil, are
// called for several directories at once. They get all entries and directories of the pass, which
// does not enter directories named .git.
type Look struct {
	Visit  func(e *workspace.ScanEntry)
	Unread func(dir string)
}

// scanFiles visits all entries except directories and the content of repositories, several
// directories at once. It calls unread for unreadable ones.
func (l Look) scanFiles(ctx context.Context, r *workspace.Reader, visit func(e *workspace.ScanEntry), leave func(*workspace.ScanDirectory), unread func()) error {
	return r.Scan(ctx, ".", workspace.ScanOptions{
		Stat: true, Parallel: true,
		Visit: func(e *workspace.ScanEntry) (uint8, string) {
			if l.Visit != nil {
				l.Visit(e)
			}
			switch {
			case string(e.Name()) == ".git":
			case e.Type == workspace.TypeDir:
				return 0, e.Path()
			default:
				visit(e)
			}
			return 0, ""
		},
		Leave: leave,
		Unread: func(dir string, _ error) {
			if l.Unread != nil {
				l.Unread(dir)
			}
			unread()
		},
	})
}

// TakeFileStates records the files of a workspace, except in repositories, which other checks
// cover. Scratch files are made in dir.
func TakeFileStates(ctx context.Context, r *workspace.Reader, dir string, look Look) (_ *FileStates, err error) {
	f := &FileStates{seed: maphash.MakeSeed(), dirs: map[uint64]dirStates{}, content: map[uint64]keptFile{}, whole: true}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if f.contents, err = newScratch(dir); err != nil {
		return nil, err
	}
	if f.names, err = newScratch(dir); err != nil {
		return nil, err
	}
	var failed error
	write := func(p *piece) {
		f.mu.Lock()
		defer f.mu.Unlock()
		failed = cmp.Or(failed, f.addPiece(p))
	}
	partial := func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.whole = false
	}
	err = look.scanFiles(ctx, r, func(e *workspace.ScanEntry) {
		st, err := e.Stat()
		if err != nil {
			partial()
			return
		}
		p, _ := e.Dir.Value.(*piece)
		if p == nil {
			p = &piece{dir: e.Dir.Path}
			e.Dir.Value = p
		}
		p.addFile(e.Name(), f.hashStamp(&st))
		if st.ChangeTime.After(p.taken) {
			p.taken = st.ChangeTime
		}
		if len(p.files) >= pieceBytes {
			write(p)
		}
		f.noteContent(e, &st)
	}, func(d *workspace.ScanDirectory) {
		if p, ok := d.Value.(*piece); ok {
			write(p)
		}
	}, partial)
	return f, errors.Join(err, failed)
}

func (f *FileStates) hashStamp(st *workspace.ScanStat) uint64 {
	return maphash.Comparable(f.seed, stampOf(st))
}

type piece struct {
	dir   string
	files []byte // each with the length of its name, its name and the hash of its stamp
	last  extent // the piece before
	taken time.Time
}

func (p *piece) addFile(name []byte, stamp uint64) {
	p.files = append(binary.AppendUvarint(p.files, uint64(len(name))), name...)
	p.files = binary.NativeEndian.AppendUint64(p.files, stamp)
}

// addPiece writes the files of p and empties it. The caller holds mu.
func (f *FileStates) addPiece(p *piece) (err error) {
	if p.taken.After(f.taken) {
		f.taken = p.taken
	}
	key := maphash.String(f.seed, p.dir)
	at, known := f.dirs[key]
	switch {
	case len(p.files) == 0:
		return nil
	case f.names.size+int64(len(p.files)) > maxStateBytes || !known && len(f.dirs) >= maxStateDirs:
		f.cut = true
	default:
		text := make([]byte, 0, len(p.files)+len(p.dir)+4*binary.MaxVarintLen64)
		for _, n := range []int64{p.last.offset, int64(p.last.length), int64(len(p.dir))} {
			text = binary.AppendUvarint(text, uint64(n)) //nolint:gosec // it is not negative
		}
		p.last, err = f.names.appendText(append(append(text, p.dir...), p.files...))
		if !known {
			at.number = uint32(len(f.dirs)) //nolint:gosec // bounded
		}
		at.last = p.last
		f.dirs[key] = at
	}
	p.files = nil
	return err
}

func (f *FileStates) noteContent(e *workspace.ScanEntry, st *workspace.ScanStat) {
	if st.Type != workspace.TypeFile || st.Size > keptFileBytes {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.toKeep) < keptFiles && f.keptBytes+st.Size <= keptFilesBytes {
		f.keptBytes += st.Size
		f.toKeep = append(f.toKeep, keptFile{path: e.Path(), mode: st.Mode, at: extent{length: int(st.Size)}})
	}
}

// KeepContents keeps the content of files, within bounds, so that changes can be shown, and a file
// rewritten with the same content counts as unchanged. With onlyExecuted it keeps only files that
// a host would run or obey. It skips unreadable files.
func (f *FileStates) KeepContents(ctx context.Context, r *workspace.Reader, onlyExecuted bool) error {
	defer func() { f.toKeep = nil }()
	for _, k := range f.toKeep {
		if onlyExecuted && !isHostExecuted(k.path) {
			continue
		}
		file, err := r.ReadFile(ctx, k.path, 0, keptFileBytes)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || file.Truncated || len(file.Data) != k.at.length {
			continue
		}
		if k.at, err = f.contents.appendText(file.Data); err != nil {
			return err
		}
		key := maphash.String(f.seed, k.path)
		k.path = ""
		f.content[key] = k
	}
	return nil
}

type dirFiles struct {
	dirStates
	path string
	// text has the files as in a piece, at offsets.
	text    []byte
	offsets []uint32
	// seen marks the files that were found; next is the index after the last of them.
	seen []bool
	next int
	// index has the files by the hashes of their names, once the order differs.
	index map[uint64]uint32
}

// readDir returns the remembered files of a directory, none if it is unknown.
func (f *FileStates) readDir(dir string) (*dirFiles, error) {
	at, known := f.dirs[maphash.String(f.seed, dir)]
	if !known {
		return &dirFiles{path: dir}, nil
	}
	return f.readFiles(at)
}

func (f *FileStates) readFiles(at dirStates) (*dirFiles, error) {
	d := &dirFiles{dirStates: at}
	var pieces [][]byte
	for size := 0; at.last.length > 0; {
		text, err := f.names.readExtent(at.last)
		if err != nil {
			return nil, err
		}
		number := func() int64 {
			n, width := binary.Uvarint(text)
			text = text[width:]
			return int64(n) //nolint:gosec // written by addPiece
		}
		at.last = extent{number(), int(number())}
		length := number()
		d.path, text = string(text[:length]), text[length:]
		pieces = append(pieces, text)
		size += len(text)
	}
	slices.Reverse(pieces)
	d.text = pieces[0]
	if len(pieces) > 1 {
		d.text = bytes.Join(pieces, nil)
	}
	for at := 0; at < len(d.text); {
		d.offsets = append(d.offsets, uint32(at)) //nolint:gosec // see maxStateBytes
		length, width := binary.Uvarint(d.text[at:])
		at += width + int(length) + 8 //nolint:gosec // written by addFile
	}
	d.seen = make([]bool, len(d.offsets))
	return d, nil
}

// file returns a file's name and the hash of its stamp.
func (d *dirFiles) file(i int) (name []byte, stamp uint64) {
	text := d.text[d.offsets[i]:]
	length, width := binary.Uvarint(text)
	text = text[width:]
	return text[:length], binary.NativeEndian.Uint64(text[length:])
}

// find returns the index of a file and the hash of its stamp. It first tries the file after the
// last one: an unchanged directory is read in the same order.
func (d *dirFiles) find(seed maphash.Seed, name []byte) (i int, stamp uint64, ok bool) {
	if d.next < len(d.offsets) {
		if is, stamp := d.file(d.next); bytes.Equal(is, name) {
			d.next++
			return d.next - 1, stamp, true
		}
	}
	if d.index == nil {
		d.index = make(map[uint64]uint32, len(d.offsets))
		for i := range d.offsets {
			name, _ := d.file(i)
			d.index[maphash.Bytes(seed, name)] = uint32(i) //nolint:gosec // bounded
		}
	}
	at, ok := d.index[maphash.Bytes(seed, name)]
	if !ok {
		return 0, 0, false
	}
	d.next = int(at) + 1
	_, stamp = d.file(int(at))
	return int(at), stamp, true
}

// isIncomplete reports whether there may have been unknown files.
func (f *FileStates) isIncomplete() bool { return f.dirs == nil || !f.whole || f.cut }

// IsFresh reports whether the metadata of the file at p is unchanged. It returns false if that is
// unknown.
func (f *FileStates) IsFresh(ctx context.Context, r *workspace.Reader, p string) bool {
	st, err := statEntry(ctx, r, p)
	return err == nil && f.isFresh(p, st)
}

// isFresh reports whether p is unchanged; st describes it and is nil if nothing is there.
func (f *FileStates) isFresh(p string, st *workspace.ScanStat) bool {
	d, err := f.readDir(path.Dir(p))
	if err != nil {
		return false
	}
	for i := range d.offsets {
		if name, was := d.file(i); string(name) == path.Base(p) {
			return st != nil && was == f.hashStamp(st)
		}
	}
	return st == nil && !f.isIncomplete()
}

// contentBefore returns the former content of a changed file. known reports whether it is known,
// and absent whether the file did not exist.
func (f *FileStates) contentBefore(p, change string) (content []byte, absent, known bool) {
	if change == "added" {
		return nil, true, !f.isIncomplete()
	}
	k, ok := f.content[maphash.String(f.seed, p)]
	if !ok {
		return nil, false, false
	}
	content, err := f.contents.readExtent(k.at)
	return content, false, err == nil
}

type fileChange struct {
	path, change string
	// stat is the file's current state, or nil if it is gone.
	stat *workspace.ScanStat
	// target is where a symlink leads out of the workspace.
	target string
}

type comparison struct {
	*FileStates
	reader *workspace.Reader

	mu    sync.Mutex
	visit func(fileChange)
	whole bool
	err   error
	// seen marks the files that were found, by the number of their directory. An element is nil
	// if none was found in a directory, and empty if all were.
	seen [][]bool
}

// compareFiles calls visit for each changed file, in no order. If its old content is known, a file
// with the same content and mode counts as unchanged. whole reports whether every file could be
// examined.
func (f *FileStates) compareFiles(ctx context.Context, r *workspace.Reader, look Look, visit func(fileChange)) (whole bool, _ error) {
	c := &comparison{FileStates: f, reader: r, visit: visit, whole: f.dirs != nil, seen: make([][]bool, len(f.dirs))}
	err := look.scanFiles(ctx, r, func(e *workspace.ScanEntry) { c.compareFile(ctx, e) }, c.leaveDir, func() { c.fail(nil) })
	if err = cmp.Or(err, c.err); err != nil {
		return false, err
	}
	return c.whole, c.visitMissing(ctx)
}

// fail notes that a file could not be examined. A non-nil error ends the comparison.
func (c *comparison) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.whole = false
	c.err = cmp.Or(c.err, err)
}

func (c *comparison) compareFile(ctx context.Context, e *workspace.ScanEntry) {
	if c.dirs == nil {
		return
	}
	d, _ := e.Dir.Value.(*dirFiles)
	if d == nil {
		var err error
		if d, err = c.readDir(e.Dir.Path); err != nil {
			c.fail(err)
			return
		}
		e.Dir.Value = d
	}
	st, err := e.Stat()
	if err != nil {
		c.fail(nil)
		return
	}
	i, was, ok := d.find(c.seed, e.Name())
	if ok {
		d.seen[i] = true
	}
	change := fileChange{stat: &st}
	switch {
	case ok && was == c.hashStamp(&st):
		return
	case ok:
		change.change = "modified"
	case !c.isIncomplete() || st.ChangeTime.After(c.taken):
		change.change = "added"
	default:
		return
	}
	change.path = e.Path()
	if ok && c.isRewritten(ctx, change.path, &st) {
		return
	}
	if st.Type == workspace.TypeSymlink && leadsOut(ctx, c.reader, change.path, st.Target) {
		change.target = st.Target
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.visit(change)
}

// leaveDir keeps which files of a directory were found.
func (c *comparison) leaveDir(dir *workspace.ScanDirectory) {
	d, ok := dir.Value.(*dirFiles)
	if !ok || len(d.seen) == 0 {
		return
	}
	if !slices.Contains(d.seen, false) {
		d.seen = []bool{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[d.number] = d.seen
}

func (c *comparison) isRewritten(ctx context.Context, p string, st *workspace.ScanStat) bool {
	k, ok := c.content[maphash.String(c.seed, p)]
	if !ok || st.Type != workspace.TypeFile || st.Mode != k.mode || st.Size != int64(k.at.length) {
		return false
	}
	file, err := c.reader.ReadFile(ctx, p, 0, keptFileBytes)
	if err != nil || file.Truncated {
		return false
	}
	content, err := c.contents.readExtent(k.at)
	return err == nil && bytes.Equal(content, file.Data)
}

// visitMissing calls visit for the files that were not found. If some of the workspace could not
// be examined, it verifies that they are gone.
func (c *comparison) visitMissing(ctx context.Context) error {
	for _, at := range c.dirs {
		seen := c.seen[at.number]
		if seen != nil && len(seen) == 0 {
			continue
		}
		d, err := c.readFiles(at)
		if err != nil {
			return err
		}
		for i := range d.offsets {
			if seen != nil && seen[i] {
				continue
			}
			name, _ := d.file(i)
			p := path.Join(d.path, string(name))
			if !c.whole {
				if st, err := statEntry(ctx, c.reader, p); err != nil || st != nil {
					continue
				}
			}
			c.visit(fileChange{path: p, change: "deleted"})
		}
	}
	return nil
}

// Close removes the scratch files.
func (f *FileStates) Close() error {
	var all []error
	for _, s := range []*scratch{f.contents, f.names} {
		if s != nil {
			all = append(all, s.close())
		}
	}
	return errors.Join(all...)
}

// statEntry returns the entry at a path, or nil if there is none.
func statEntry(ctx context.Context, r *workspace.Reader, p string) (*workspace.ScanStat, error) {
	st, err := r.StatEntry(ctx, path.Clean(p))
	if e, ok := errors.AsType[*workspace.Error](err); ok && e.Kind == workspace.KindNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &st, nil
}
