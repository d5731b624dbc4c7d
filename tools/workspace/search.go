package workspace

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path"
	"runtime"
	"sync"
)

// Bounds of one search.
const (
	// maxSearchers is the number of goroutines that read ahead.
	maxSearchers = 8
	// remoteSearchers replaces maxSearchers if each read is a request to another
	// process, which may be far away.
	remoteSearchers = 24
	searchFiles     = 32
	searchDirText   = 8 << 20
	// searchAhead bounds the bytes that were read ahead and not visited yet.
	searchAhead  = 4 << 20
	searchBuffer = 64 << 10
)

// Rules decide what a search leaves out of a directory. Their methods are called
// concurrently.
type Rules interface {
	// Enter returns the rules for a directory below. file is its
	// [SearchOptions.RulesFile], nil if there is none.
	Enter(dir string, file []byte) Rules
	Skip(dir, name string, isDir bool) bool
}

// SearchResult is what a search found out about one entry.
type SearchResult struct {
	// Value is the result of [SearchOptions.Examine], or nil without one.
	Value any
	// Bytes is roughly the memory that Value holds.
	Bytes int
}

// SearchOptions selects the entries that a search visits.
type SearchOptions struct {
	// MaxEntries bounds the entries that are read. Zero means the Reader's bound.
	// It may be larger than that, since a search holds only a few directories at a
	// time.
	MaxEntries int
	// Rules apply to the directory that the search starts in; nil leaves nothing
	// out.
	Rules Rules
	// RulesFile names the file in each directory that Rules.Enter gets. At most
	// MaxRules bytes are read.
	RulesFile string
	MaxRules  int64
	// Match selects entries other than directories; nil means all. It is called
	// concurrently.
	Match func(dir, name string) bool
	// Examine is called concurrently with the content of each selected regular
	// file, or the error of reading it. A file of more than MaxFile bytes has nil
	// data. Examine must not keep the data. If it is nil, only names are searched,
	// and entries of every type except directories count.
	Examine func(ctx context.Context, name string, f File, err error) SearchResult
	MaxFile int64
	// Visit is called on the caller's goroutine, in path order, for each selected
	// entry for which Examine, if set, returned a Value. Its error ends the search
	// and is returned, except [SkipAll].
	Visit func(name string, f SearchResult) error
}

// SkipAll ends the search without an error if [SearchOptions].Visit returns it.
var SkipAll = fs.SkipAll

// SearchSummary describes how a search ended.
type SearchSummary struct {
	// Entries is how many were read.
	Entries int
	// Truncated reports whether MaxEntries was reached. Incomplete names up to 20
	// directories that could not be read, were too deep or are mounts.
	Truncated  bool
	Incomplete []string
}

// Search finds files below path. It reads directories and files concurrently, but
// visits them in order: a directory before its content, names sorted. Only path
// itself may be a symlink. If path is a file, it alone is searched, without rules.
func (r *Reader) Search(ctx context.Context, name string, o SearchOptions) (SearchSummary, error) {
	rel, e := r.prefixes.relativePath(name)
	if e != nil {
		return SearchSummary{}, e
	}
	info, err := r.Stat(ctx, name)
	if err != nil {
		return SearchSummary{}, err
	}
	if info.Type != TypeDir {
		return SearchSummary{Entries: 1}, r.searchFile(ctx, rel, &o)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	s := &searcher{reader: r, o: &o, most: cmp.Or(o.MaxEntries, r.options.MaxEntries), held: map[*searchDir]struct{}{}}
	s.changed.L = &s.mu
	defer s.stop(cancel)
	defer context.AfterFunc(ctx, s.halt)()
	top := &searchDir{path: rel, depth: 1, rules: o.Rules}
	s.listDirectory(ctx, top)
	if top.err != nil {
		return SearchSummary{}, top.err
	}
	s.open = append(s.open, top)
	if !r.options.OwnThread {
		searchers := min(runtime.GOMAXPROCS(0), maxSearchers)
		if r.remote != nil {
			searchers = remoteSearchers
		}
		for range searchers {
			s.running.Go(func() { s.runPieces(ctx) })
		}
	}
	err = s.visitDirectory(ctx, top)
	switch {
	case errors.Is(err, SkipAll):
		err = nil
	case err == nil:
		err = endCause(ctx) // what was done last may be incomplete
	}
	return s.SearchSummary, err
}

func (r *Reader) searchFile(ctx context.Context, rel string, o *SearchOptions) error {
	if o.Match != nil && !o.Match(path.Dir(rel), path.Base(rel)) {
		return nil
	}
	var found SearchResult
	if o.Examine != nil {
		f, err := r.ReadFile(ctx, rel, 0, o.MaxFile)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if f.Size > o.MaxFile {
			f.Data = nil
		}
		found = o.Examine(ctx, rel, f, err)
		if found.Value == nil {
			return endCause(ctx)
		}
	}
	err := o.Visit(rel, found)
	if errors.Is(err, SkipAll) {
		return nil
	}
	return cmp.Or(err, endCause(ctx))
}

// endCause returns context.Cause(ctx), but nil if ctx has not ended.
func endCause(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// searcher is one call of Search. Its goroutines take the first untaken piece of
// work in path order. The caller's goroutine visits the pieces in that order, and
// does those that no one has begun.
type searcher struct {
	SearchSummary
	reader  *Reader
	o       *SearchOptions
	most    int
	running sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond
	// open are directories that may have untaken pieces, innermost last.
	open []*searchDir
	// held are the directories that have a handle.
	held    map[*searchDir]struct{}
	busy    int
	ahead   int
	stopped bool
	panic   any
}

type searchDir struct {
	path   string
	name   string
	depth  int
	parent *searchDir // nil once it is listed
	rules  Rules
	handle *dirHandle // released once undone is 0
	names  []dirName
	more   bool
	err    error
	bytes  int
	pieces []*piece
	next   int // earlier pieces are taken
	undone int
}

// piece is a run of files in one directory, or one directory in it.
type piece struct {
	dir   *searchDir
	child *searchDir
	at    int     // index of the first name
	files []int32 // indexes of the names
	state pieceState
	found []searchFound
	bytes int
	err   error
}

type searchFound struct {
	at int
	SearchResult
}

type pieceState uint8

const (
	pieceOpen pieceState = iota
	pieceTaken
	pieceDone
)

func (s *searcher) halt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.changed.Broadcast()
}

// stop ends the goroutines and closes what is open. It passes on a goroutine's
// panic.
func (s *searcher) stop(cancel context.CancelCauseFunc) {
	cancel(nil)
	s.halt()
	s.running.Wait()
	for d := range s.held {
		d.handle.release()
	}
	if s.panic != nil {
		panic(s.panic)
	}
}

func (s *searcher) runPieces(ctx context.Context) {
	var buf []byte
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.stopped {
		if s.ahead > searchAhead {
			s.changed.Wait()
			continue
		}
		p := s.takePiece()
		switch {
		case p != nil:
			buf = s.runPiece(ctx, p, buf)
		case s.busy == 0:
			s.changed.Broadcast()
			return
		default:
			s.changed.Wait()
		}
	}
}

func (s *searcher) takePiece() *piece {
	for len(s.open) > 0 {
		top := len(s.open) - 1
		d := s.open[top]
		for d.next < len(d.pieces) && d.pieces[d.next].state != pieceOpen {
			d.next++
		}
		if d.next < len(d.pieces) {
			return d.pieces[d.next]
		}
		s.open = s.open[:top]
	}
	return nil
}

// runPiece runs a piece. s.mu must be locked; it is unlocked meanwhile.
func (s *searcher) runPiece(ctx context.Context, p *piece, buf []byte) []byte {
	p.state = pieceTaken
	s.busy++
	s.mu.Unlock()
	defer func() {
		if r := recover(); r != nil {
			s.mu.Lock()
			s.panic, s.stopped = r, true
		}
		s.busy--
		p.state = pieceDone
		s.changed.Broadcast()
	}()
	if p.child != nil {
		s.listDirectory(ctx, p.child)
	} else {
		buf = s.examineFiles(ctx, p, buf)
	}
	s.mu.Lock()
	if p.child != nil {
		s.open = append(s.open, p.child)
	}
	s.ahead += p.bytes
	p.dir.undone--
	s.closeDone(p.dir)
	return buf
}

func (s *searcher) closeDone(d *searchDir) {
	if d.undone == 0 {
		delete(s.held, d)
		d.handle.release()
	}
}

func (s *searcher) listDirectory(ctx context.Context, d *searchDir) {
	var above *dirHandle
	if d.parent != nil {
		above, d.parent = d.parent.handle, nil
	}
	opened, err := s.reader.openNames(ctx, above, d.path, d.name)
	if err != nil {
		d.err = err
		return
	}
	d.handle, d.names, d.more = opened.handle, opened.names, opened.more
	if d.rules != nil && d.depth > 1 {
		d.rules = d.rules.Enter(d.path, s.rulesFile(ctx, d))
	}
	s.makePieces(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ahead += d.bytes
	s.held[d] = struct{}{}
	s.closeDone(d)
}

func (s *searcher) rulesFile(ctx context.Context, d *searchDir) []byte {
	if !d.more && !hasName(d.names, s.o.RulesFile) {
		return nil
	}
	f, err := s.reader.ReadFile(ctx, joinPath(d.path, s.o.RulesFile), 0, s.o.MaxRules)
	if err != nil {
		return nil
	}
	return f.Data
}

func (s *searcher) makePieces(d *searchDir) {
	var run *piece
	for i, n := range d.names {
		d.bytes += len(n.name) + dirNameBytes
		isDir := n.typ == TypeDir
		if d.rules != nil && d.rules.Skip(d.path, n.name, isDir) {
			continue
		}
		if isDir {
			child := &searchDir{path: joinPath(d.path, n.name), name: n.name, depth: d.depth + 1, parent: d, rules: d.rules}
			p := d.addPiece(&piece{child: child, at: i})
			if d.depth == s.reader.options.maxDepth {
				p.state = pieceDone
				d.undone--
			}
			run = nil
			continue
		}
		if s.o.Examine != nil && n.typ != TypeFile || s.o.Match != nil && !s.o.Match(d.path, n.name) {
			continue
		}
		if s.o.Examine == nil {
			d.pieces = append(d.pieces, &piece{dir: d, at: i, state: pieceDone, found: []searchFound{{at: i}}})
			continue
		}
		if run == nil || len(run.files) == searchFiles {
			run = d.addPiece(&piece{at: i})
		}
		run.files = append(run.files, int32(i))
	}
}

func (d *searchDir) addPiece(p *piece) *piece {
	p.dir = d
	d.pieces = append(d.pieces, p)
	d.undone++
	return p
}

func (s *searcher) examineFiles(ctx context.Context, p *piece, buf []byte) []byte {
	names := make([]string, len(p.files))
	for i, at := range p.files {
		names[i] = p.dir.names[at].name
	}
	if buf == nil {
		buf = make([]byte, searchBuffer)
	}
	buf, p.err = s.reader.readFiles(ctx, p.dir.handle, p.dir.path, names, s.o.MaxFile, buf, func(i int, f File, err error) {
		if errors.Is(err, ErrMount) {
			return
		}
		if e, ok := errors.AsType[*Error](err); ok && e.Kind == KindNotFound {
			return
		}
		found := s.o.Examine(ctx, joinPath(p.dir.path, names[i]), f, err)
		if found.Value != nil {
			p.found = append(p.found, searchFound{int(p.files[i]), found})
			p.bytes += found.Bytes
		}
	})
	return buf
}

func (s *searcher) visitDirectory(ctx context.Context, d *searchDir) error {
	most := min(len(d.names), s.most)
	s.most -= most
	s.Truncated = s.Truncated || d.more || most < len(d.names)
	for _, p := range d.pieces {
		if p.at >= most {
			break
		}
		if !s.awaitPiece(ctx, p) {
			return context.Cause(ctx)
		}
		for _, f := range p.found {
			if f.at >= most {
				break
			}
			if err := s.o.Visit(joinPath(d.path, d.names[f.at].name), f.SearchResult); err != nil {
				return err
			}
		}
		if p.err != nil {
			return p.err
		}
		if p.child != nil {
			if err := s.visitSubdirectory(ctx, p.child); err != nil {
				return err
			}
		}
		p.child, p.found = nil, nil
		s.addPassed(p.bytes)
	}
	s.Entries += most
	s.addPassed(d.bytes)
	return nil
}

// addPassed subtracts the memory of visited entries.
func (s *searcher) addPassed(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ahead -= bytes; s.ahead <= searchAhead && s.ahead+bytes > searchAhead {
		s.changed.Broadcast()
	}
}

// awaitPiece waits until a piece is done, or runs it if nobody has begun. It
// returns false if the search ended before.
func (s *searcher) awaitPiece(ctx context.Context, p *piece) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.state == pieceOpen && !s.stopped {
		s.runPiece(ctx, p, nil)
	}
	for p.state != pieceDone && !s.stopped {
		s.changed.Wait()
	}
	return p.state == pieceDone
}

// visitSubdirectory visits a directory below. An error reading it does not end the
// search, unless nothing more can be read.
func (s *searcher) visitSubdirectory(ctx context.Context, d *searchDir) error {
	f, ok := errors.AsType[*Error](d.err)
	switch {
	case d.depth > s.reader.options.maxDepth:
		s.Incomplete = addIncomplete(s.Incomplete, d.path)
	case s.most == 0:
		s.Truncated = true
	case d.err == nil:
		return s.visitDirectory(ctx, d)
	case !ok || f.Kind == KindTimeout:
		return d.err
	case f.Kind != KindNotFound:
		s.Incomplete = addIncomplete(s.Incomplete, d.path)
	}
	return nil
}
