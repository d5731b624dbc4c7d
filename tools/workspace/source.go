package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
)

// Remote reads a workspace that another process sees, for a [Reader]. Paths are
// relative and cleaned. An error is an [*Error], or wraps [ErrMount] for a
// directory on another mount; any other means that the other process is lost. Calls
// must return soon after ctx has ended.
type Remote interface {
	// Stat describes the file that path leads to or, without follow, the one that
	// path names.
	Stat(ctx context.Context, path string, follow bool) (Info, error)
	// ReadDir returns the first entries of a directory by name, as many as capacity
	// allows, and whether there are more. Without follow, a symlink is an error.
	ReadDir(ctx context.Context, path string, follow bool, capacity Capacity) (entries []Entry, more bool, err error)
	// ReadFile reads up to most bytes of a regular file, from offset.
	ReadFile(ctx context.Context, path string, offset, most int64) (File, error)
	// ReadFiles reads files in the directory dir and calls each, in order, with the
	// file or an [*Error]. A file of more than most bytes has no data. It may stop
	// early, but not before the first file, and returns how many it read.
	ReadFiles(ctx context.Context, dir string, names []string, most int64, each func(i int, f File, err error)) (int, error)
}

// NewRemoteReader returns a Reader of what remote sees. It reads at most
// [RemoteRequests] directories at once.
func NewRemoteReader(remote Remote, o ReaderOptions) *Reader {
	o.maxStuck = cmp.Or(o.maxStuck, RemoteRequests)
	o = o.withDefaults()
	return &Reader{
		remote: remote, prefixes: newPrefixes(o.HostPath, o.ContainerPath),
		guard: newGuard(o.Deadline, o.maxStuck), options: o,
	}
}

// ReadDir returns the first entries of a directory by name, as many as the capacity
// and the Reader's options allow, and whether there are more. Zeros in the capacity
// mean the Reader's options. Without follow, a symlink is an error. The error wraps
// [ErrMount] if the directory is on another mount.
func (r *Reader) ReadDir(ctx context.Context, path string, follow bool, capacity Capacity) (entries []Entry, more bool, err error) {
	rel, e := r.prefixes.relativePath(path)
	if e != nil {
		return nil, false, e
	}
	got, err := runGuarded(ctx, r.guard, path, func(ctx context.Context) (directory, error) {
		return r.readDir(ctx, path, rel, follow, capacity.cappedAt(r.options.capacity()))
	})
	for i := range got.entries {
		got.entries[i].Depth = 1
	}
	return got.entries, got.more, err
}

// RemoteRequests is the number of concurrent requests to a [Remote] in one search.
const RemoteRequests = remoteSearchers

type directory struct {
	entries []Entry
	more    bool
}

func (r *Reader) readDir(ctx context.Context, path, rel string, follow bool, capacity Capacity) (directory, error) {
	var f directory
	var err error
	if r.remote != nil {
		f.entries, f.more, err = r.remote.ReadDir(ctx, rel, follow, capacity)
	} else {
		f.entries, f.more, err = r.tree.readDir(rel, follow, capacity)
	}
	return f, r.newError(path, err)
}

func (r *Reader) statFile(ctx context.Context, path, rel string, follow bool) (info Info, err error) {
	if r.remote != nil {
		info, err = r.remote.Stat(ctx, rel, follow)
	} else {
		info, err = r.tree.stat(rel, follow)
	}
	info.Path = rel
	return info, r.newError(path, err)
}

// newError returns the [Error] for path. A Remote's Error gets the path that the
// caller passed. Any other error means that the Remote is lost, and is wrapped.
func (r *Reader) newError(path string, err error) error {
	if err == nil {
		return nil
	}
	if r.remote == nil {
		return newError(path, err)
	}
	if e, ok := errors.AsType[*Error](err); ok {
		named := *e
		named.Path = abbreviatePath(path)
		return &named
	}
	return fmt.Errorf("read %q: %w", abbreviatePath(path), err)
}
