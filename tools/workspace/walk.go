package workspace

import (
	"context"
	"errors"
	"io/fs"
)

// SkipDir, returned by a walk's function for a directory, leaves it out; SkipAll
// ends the walk without an error.
var (
	SkipDir = fs.SkipDir
	SkipAll = fs.SkipAll
)

// WalkOptions bounds one walk; a zero means the Reader's own bound, which is
// also the most that counts.
type WalkOptions struct {
	// MaxEntries bounds the entries that are read.
	MaxEntries int
	// MaxDepth bounds how deep the walk goes.
	MaxDepth int
	// MaxTextBytes bounds the bytes of the entries' paths and symlink targets.
	MaxTextBytes int64
}

// WalkResult describes how a walk ended.
type WalkResult struct {
	// Entries is how many were visited.
	Entries int
	// Truncated reports whether a cap was reached. Incomplete names directories
	// that could not be read, were too deep or are mounts, at most 20 of them.
	Truncated  bool
	Incomplete []string
}

// Walk calls visit for every entry below path, directories before what is in
// them, each directory by name. No symlink is followed but in path itself; a
// path that is a file is visited alone, at depth 0. Visit runs on the caller's
// goroutine and may use the Reader. What it returns, but SkipDir and SkipAll,
// ends the walk and is returned as it is.
func (r *Reader) Walk(ctx context.Context, path string, o WalkOptions, visit func(Entry) error) (WalkResult, error) {
	rel, e := r.prefixes.relativePath(path)
	if e != nil {
		return WalkResult{}, e
	}
	info, err := r.Stat(ctx, path)
	if err != nil {
		return WalkResult{}, err
	}
	if info.Type != TypeDir {
		err := visit(Entry{Path: info.Path, Type: info.Type, Size: info.Size})
		if errors.Is(err, SkipDir) || errors.Is(err, SkipAll) {
			err = nil
		}
		return WalkResult{Entries: 1}, err
	}
	w := walker{reader: r, visit: visit, depth: capValue(o.MaxDepth, r.options.MaxDepth)}
	w.capacity = Capacity{Entries: o.MaxEntries, Bytes: o.MaxTextBytes}.cappedAt(r.options.capacity())
	if err := w.enterDirectory(ctx, rel, 1); err != nil {
		return w.WalkResult, err
	}
	return w.WalkResult, w.walkFrom(ctx)
}

// walker is one call of Walk. It keeps what is left of each directory on its way
// down, in all no more than its capacity.
type walker struct {
	WalkResult
	reader   *Reader
	visit    func(Entry) error
	capacity Capacity
	depth    int
	left     [][]Entry
}

func (w *walker) walkFrom(ctx context.Context) error {
	for len(w.left) > 0 {
		top := len(w.left) - 1
		if len(w.left[top]) == 0 {
			w.left = w.left[:top]
			continue
		}
		e := w.left[top][0]
		w.left[top][0] = Entry{} // what was visited need not be held
		w.left[top] = w.left[top][1:]
		w.Entries++
		switch err := w.visit(e); {
		case errors.Is(err, SkipAll):
			return nil
		case errors.Is(err, SkipDir):
			continue
		case err != nil:
			return err
		}
		if e.Type != TypeDir {
			continue
		}
		if e.Depth == w.depth {
			w.Incomplete = addIncomplete(w.Incomplete, e.Path)
			continue
		}
		if w.capacity.isExhausted() {
			w.Truncated = true
			continue
		}
		if err := w.descend(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// descend enters a directory. An error reading it does not end the walk, unless
// nothing can be read any more.
func (w *walker) descend(ctx context.Context, e Entry) error {
	err := w.enterDirectory(ctx, e.Path, e.Depth+1)
	f, ok := errors.AsType[*Error](err)
	if !ok || f.Kind == KindTimeout {
		return err
	}
	if f.Kind != KindNotFound {
		w.Incomplete = addIncomplete(w.Incomplete, e.Path)
	}
	return nil
}

func (w *walker) enterDirectory(ctx context.Context, rel string, depth int) error {
	left := w.capacity
	c, err := runGuarded(ctx, w.reader.guard, rel, func(ctx context.Context) (directory, error) {
		return w.reader.readDir(ctx, rel, rel, depth == 1, left)
	})
	if err != nil {
		return err
	}
	for i := range c.entries {
		c.entries[i].Depth = depth
		w.capacity.Take(c.entries[i])
	}
	w.Truncated = w.Truncated || c.more
	w.left = append(w.left, c.entries)
	return nil
}
