package workspace

import (
	"context"
	"errors"
	"slices"
	"time"
)

// List gives the entries of a folder, and of the folders below it down to
// depth (at least 1, at most MaxDepth). The folders nearest to the top are
// read first, so that a cap on entries cuts off the deepest ones; so does the
// Deadline. No link is followed but in path itself.
func (r *Reader) List(ctx context.Context, path string, depth int) (Listing, error) {
	rel, e := r.prefixes.relative(path)
	if e != nil {
		return Listing{}, e
	}
	return guarded(ctx, r.guard, path, func(ctx context.Context) (Listing, error) {
		l := lister{reader: r, room: r.options.room(), root: rel}
		l.depth = min(max(depth, 1), r.options.MaxDepth)
		l.capped = depth > l.depth
		l.until = time.Now().Add(r.options.Deadline)
		if err := l.run(ctx, path); err != nil {
			return Listing{}, err
		}
		slices.SortFunc(l.Entries, treeOrder)
		return l.Listing, nil
	})
}

// lister is one call of List.
type lister struct {
	Listing
	reader *Reader
	root   string
	room   Room
	depth  int
	capped bool
	until  time.Time
}

func (l *lister) run(ctx context.Context, path string) error {
	l.Path = l.root
	if err := l.read(ctx, path, l.root, -1); err != nil {
		return err
	}
	// Entries grows while it is walked: breadth first.
	for i := 0; i < len(l.Entries) && !l.Truncated; i++ {
		e := l.Entries[i]
		switch {
		case e.Type != TypeDir:
			continue
		case e.Depth == l.depth:
			if l.capped {
				l.Incomplete = note(l.Incomplete, e.Path)
			}
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Now().After(l.until):
			l.Truncated = true
			return nil
		}
		err := l.read(ctx, e.Path, e.Path, i)
		if _, ok := errors.AsType[*Error](err); err != nil && !ok {
			return err // nothing can be read any more
		}
		if err != nil {
			l.miss(i, err)
		}
	}
	return nil
}

// read adds what is in the folder rel, which is the entry at parent.
func (l *lister) read(ctx context.Context, path, rel string, parent int) error {
	depth := 1
	if parent >= 0 {
		depth = l.Entries[parent].Depth + 1
	}
	got, err := l.reader.readDir(ctx, path, rel, parent < 0, l.room)
	if err != nil {
		return err
	}
	for i := range got.entries {
		got.entries[i].Depth = depth
		l.room.Take(got.entries[i])
	}
	l.Entries = append(l.Entries, got.entries...)
	l.Truncated = l.Truncated || got.more
	return nil
}

// miss records a folder that could not be read, and why where the type says it.
func (l *lister) miss(i int, err error) {
	e := &l.Entries[i]
	if errors.Is(err, ErrMount) {
		e.Type = TypeMount
		return
	}
	l.Incomplete = note(l.Incomplete, e.Path)
}
