package workspace

import (
	"context"
	"errors"
	"fmt"
)

// Remote reads a workspace that another process sees: what a [Reader] needs of
// it. Paths are relative, cleaned and within the bounds of one. It fails with an
// [*Error], with one that wraps [ErrMount] for a folder on another mount, or
// with an error that ends every further call (the loss of that process). It
// must return soon after ctx has ended.
type Remote interface {
	// Look describes what path leads to, or path itself where follow is false.
	Look(ctx context.Context, path string, follow bool) (Info, error)
	// ReadDir gives the first entries of one folder in the order of their names,
	// as many as there is room for, and whether there are more. The folder must
	// not be a link unless follow says so.
	ReadDir(ctx context.Context, path string, follow bool, room Room) (entries []Entry, more bool, err error)
	// ReadFile reads at most most bytes of a regular file from offset on.
	ReadFile(ctx context.Context, path string, offset, most int64) (File, error)
	// ReadFiles reads files of the directory dir from their beginning and calls
	// each, in their order, with a file or the [*Error] of it. A file of more than
	// most bytes has no data. It may end before the last name, but not before the
	// first, and returns how many files there were.
	ReadFiles(ctx context.Context, dir string, names []string, most int64, each func(i int, f File, err error)) (int, error)
}

// NewRemoteReader makes a Reader of what remote sees. Its contract and bounds
// are those of any other.
func NewRemoteReader(remote Remote, o ReaderOptions) *Reader {
	o = o.withDefaults()
	return &Reader{
		remote: remote, prefixes: newPrefixes(o.HostPath, o.ContainerPath),
		guard: newGuard(o.Deadline, o.MaxStuck), options: o,
	}
}

// ReadDir gives the first entries of one folder in the order of their names,
// as many as there is room for (and as the Reader's options allow, which a zero
// in it stands for), and whether there are more. Unlike
// List it refuses a folder that is a link unless follow says so, and its error
// wraps [ErrMount] where the folder is on another mount.
func (r *Reader) ReadDir(ctx context.Context, path string, follow bool, room Room) (entries []Entry, more bool, err error) {
	rel, e := r.prefixes.relative(path)
	if e != nil {
		return nil, false, e
	}
	got, err := guarded(ctx, r.guard, path, func(ctx context.Context) (folder, error) {
		return r.readDir(ctx, path, rel, follow, room.within(r.options.room()))
	})
	for i := range got.entries {
		got.entries[i].Depth = 1
	}
	return got.entries, got.more, err
}

// folder is what is in one folder.
type folder struct {
	entries []Entry
	more    bool
}

func (r *Reader) readDir(ctx context.Context, path, rel string, follow bool, room Room) (folder, error) {
	var f folder
	var err error
	if r.remote != nil {
		f.entries, f.more, err = r.remote.ReadDir(ctx, rel, follow, room)
	} else {
		f.entries, f.more, err = r.tree.readDir(rel, follow, room)
	}
	return f, r.fault(path, err)
}

func (r *Reader) describe(ctx context.Context, path, rel string, follow bool) (info Info, err error) {
	switch {
	case r.remote != nil:
		info, err = r.remote.Look(ctx, rel, follow)
	case follow:
		info, err = r.tree.stat(rel)
	default:
		info, err = r.tree.lstat(rel)
	}
	info.Path = rel
	return info, r.fault(path, err)
}

// fault gives the [Error] for what happened to path. What a Remote says of a
// path is said of the one that was asked for, and its loss stays what it is.
func (r *Reader) fault(path string, err error) error {
	if err == nil {
		return nil
	}
	if r.remote == nil {
		return fault(path, err)
	}
	if e, ok := errors.AsType[*Error](err); ok {
		told := *e
		told.Path = abbreviate(path)
		return &told
	}
	return fmt.Errorf("read %q: %w", abbreviate(path), err)
}
