package workspace

import (
	"context"
	"errors"
	"slices"
	"time"
)

// List returns the entries of a directory and of the directories below it. The
// depth is capped to between 1 and [DefaultMaxDepth]. Directories near the top are
// read first, so that the bounds on entries and time cut off the deepest ones. Only
// path itself may be a symlink.
func (r *Reader) List(ctx context.Context, path string, depth int) (Listing, error) {
	rel, e := r.prefixes.relativePath(path)
	if e != nil {
		return Listing{}, e
	}
	return runGuarded(ctx, r.guard, path, func(ctx context.Context) (Listing, error) {
		l := lister{reader: r, capacity: r.options.capacity(), root: rel}
		l.depth = min(max(depth, 1), r.options.maxDepth)
		l.capped = depth > l.depth
		l.until = time.Now().Add(r.options.Deadline)
		if err := l.listTree(ctx, path); err != nil {
			return Listing{}, err
		}
		slices.SortFunc(l.Entries, func(a, b Entry) int { return TreeOrder(a.Path, b.Path) })
		return l.Listing, nil
	})
}

type lister struct {
	Listing
	reader   *Reader
	root     string
	capacity Capacity
	depth    int
	capped   bool
	until    time.Time
}

func (l *lister) listTree(ctx context.Context, path string) error {
	l.Path = l.root
	if err := l.readDirectory(ctx, path, l.root, -1); err != nil {
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
				l.Incomplete = addIncomplete(l.Incomplete, e.Path)
			}
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Now().After(l.until):
			l.Truncated = true
			return nil
		}
		err := l.readDirectory(ctx, e.Path, e.Path, i)
		if _, ok := errors.AsType[*Error](err); err != nil && !ok {
			return err // nothing can be read any more
		}
		if err != nil {
			l.addUnread(i, err)
		}
	}
	return nil
}

// readDirectory adds the entries of the directory rel, which is Entries[parent], or
// the root if parent is negative.
func (l *lister) readDirectory(ctx context.Context, path, rel string, parent int) error {
	depth := 1
	if parent >= 0 {
		depth = l.Entries[parent].Depth + 1
	}
	got, err := l.reader.readDir(ctx, path, rel, parent < 0, l.capacity)
	if err != nil {
		return err
	}
	for i := range got.entries {
		got.entries[i].Depth = depth
		l.capacity.Take(got.entries[i])
	}
	l.Entries = append(l.Entries, got.entries...)
	l.Truncated = l.Truncated || got.more
	return nil
}

func (l *lister) addUnread(i int, err error) {
	e := &l.Entries[i]
	if errors.Is(err, ErrMount) {
		e.Type = TypeMount
		return
	}
	l.Incomplete = addIncomplete(l.Incomplete, e.Path)
}
