package workspace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// Defaults of [ReaderOptions].
const (
	DefaultMaxFileBytes = 16 << 20
	DefaultMaxEntries   = 100_000
	DefaultMaxTextBytes = 64 << 20
	DefaultMaxDepth     = 64
	DefaultDeadline     = 10 * time.Second
	DefaultMaxStuck     = 8
)

// ReaderOptions configures a [Reader]. Zeros mean the defaults.
type ReaderOptions struct {
	// HostPath and ContainerPath are absolute spellings of the workspace that may
	// precede a path, or "". They are never opened.
	HostPath, ContainerPath string
	// MaxEntries bounds the entries of one List or Search.
	MaxEntries int
	// Deadline bounds each call's wait for the file system: a whole ReadFile, Stat
	// or List, and each directory and file of a Search. It applies to file systems
	// that may never answer (network, FUSE, anything not known to be local).
	Deadline time.Duration
	// Layers, if set, are the layers of the overlay whose root is the Reader's
	// directory. Nothing else may write to them: files that only the lower layer
	// has may be read there.
	Layers Layers
	// OwnThread runs every call on its caller's thread, with that thread's
	// credentials (the guest's threads have the commands' credentials). The
	// Deadline then has no effect.
	OwnThread bool

	// Tests set the others. maxTextBytes bounds the bytes of paths and symlink
	// targets in one List, which even few entries can have many of. maxDepth is 1 for
	// the entries of path itself. maxStuck bounds the calls inside a file system that
	// doesn't answer, including those given up. A further call waits until its
	// deadline, or fails at once if all were given up.
	maxFileBytes, maxTextBytes int64
	maxDepth, maxStuck         int
}

// Layers are the layers of an overlay that follows no redirects (mounted with
// userxattr). The opener keeps them open as long as the Reader is used, and closes
// them.
type Layers struct{ Upper, Lower *os.File }

// Reader reads files below one directory and can't change them. It keeps working if
// the directory is moved or replaced. The caller closes the directory after the
// last call. Methods are safe for concurrent use. Their errors are an [*Error], or
// wrap context.Cause(ctx) if ctx ended first.
//
// A call that is cancelled or past its deadline returns at once. If it is stuck in
// the kernel it is left behind, at most [DefaultMaxStuck] times. Other mounts are not
// entered, so this happens only if the workspace itself is on such a file system.
type Reader struct {
	tree     *tree  // nil if remote is set
	remote   Remote // see [NewRemoteReader]
	prefixes prefixes
	guard    *guard
	options  ReaderOptions
}

// NewReader returns a Reader of dir, which the caller closes. It waits for the file
// system until Deadline.
func NewReader(dir *os.File, o ReaderOptions) (*Reader, error) {
	o = o.withDefaults()
	g := newGuard(o.Deadline, o.maxStuck)
	g.local = o.OwnThread
	t, err := runGuarded(context.Background(), g, dir.Name(), func(context.Context) (*tree, error) { return newTreeOf(dir, o.Layers) })
	if err != nil {
		return nil, fmt.Errorf("read workspace: %w", err)
	}
	g.local = g.local || t.local
	return &Reader{
		tree:     t,
		prefixes: newPrefixes(o.HostPath, o.ContainerPath),
		guard:    g,
		options:  o,
	}, nil
}

// IsLocal reports whether the directory is certainly on a local file system: no
// other machine or program changes it or sets its change times.
func (r *Reader) IsLocal() bool { return r.tree != nil && r.tree.local }

func (o ReaderOptions) withDefaults() ReaderOptions {
	o.maxFileBytes = cmp.Or(o.maxFileBytes, DefaultMaxFileBytes)
	o.MaxEntries = cmp.Or(o.MaxEntries, DefaultMaxEntries)
	o.maxTextBytes = cmp.Or(o.maxTextBytes, DefaultMaxTextBytes)
	o.maxDepth = cmp.Or(o.maxDepth, DefaultMaxDepth)
	o.Deadline = cmp.Or(o.Deadline, DefaultDeadline)
	o.maxStuck = cmp.Or(o.maxStuck, DefaultMaxStuck)
	return o
}

// Stat describes the file that path leads to, without opening it for reading.
func (r *Reader) Stat(ctx context.Context, path string) (Info, error) {
	return r.info(ctx, path, true)
}

// Lstat describes what path names, which may be a symlink.
func (r *Reader) Lstat(ctx context.Context, path string) (Info, error) {
	return r.info(ctx, path, false)
}

func (r *Reader) info(ctx context.Context, path string, follow bool) (Info, error) {
	rel, e := r.prefixes.relativePath(path)
	if e != nil {
		return Info{}, e
	}
	return runGuarded(ctx, r.guard, path, func(ctx context.Context) (Info, error) {
		return r.statFile(ctx, path, rel, follow)
	})
}

// Scope returns a [KindEscape] error if path leads outside the workspace. A missing
// file is inside if the existing part of its path is. Scope only refuses early: the
// call that opens the path decides.
//
// A path with ".." after a symlink or a non-directory is [KindInvalid]: this
// package removes the name before "..", but a shell would go up from the symlink's
// target, or fail.
func (r *Reader) Scope(ctx context.Context, path string) error {
	rel, e := r.prefixes.relativePath(path)
	if e != nil {
		return e
	}
	_, err := runGuarded(ctx, r.guard, path, func(ctx context.Context) (struct{}, error) {
		if err := r.checkParents(ctx, path, rel); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, r.checkScope(ctx, path, rel)
	})
	return err
}

// checkParents returns an error if a shell would not resolve each ".." of path by
// removing the name before it. rel is the cleaned path.
func (r *Reader) checkParents(ctx context.Context, path, rel string) error {
	spelled, e := r.prefixes.stripPrefix(path)
	if e != nil {
		return e
	}
	var names []string
	for name := range strings.SplitSeq(spelled, "/") {
		switch {
		case name == "" || name == ".":
			continue
		case name != "..":
			names = append(names, name)
			continue
		case len(names) == 0: // it left the workspace and came back by name
			return newEscapeError(path, nil)
		}
		before := strings.Join(names, "/")
		names = names[:len(names)-1]
		info, err := r.statFile(ctx, path, before, false)
		if err == nil && info.Type == TypeDir {
			continue
		}
		what := "is no directory"
		failed, known := errors.AsType[*Error](err)
		switch {
		case err == nil && info.Type == TypeSymlink:
			what = "is a symlink, from whose target a shell would go up"
		case known && failed.Kind == KindNotFound:
			what = "does not exist"
		case known && failed.Kind == KindEscape:
			return failed
		case err != nil && !known: // a Remote was lost
			return err
		}
		return &Error{Kind: KindInvalid, Path: path, Detail: fmt.Sprintf("%q before .. %s; write %q, if that is meant, or the path without ..", before, what, rel)}
	}
	return nil
}

func (r *Reader) checkScope(ctx context.Context, path, rel string) error {
	for name := "…"; name != ""; rel, name = splitPath(rel) {
		_, err := r.statFile(ctx, path, rel, true)
		e, ok := errors.AsType[*Error](err)
		switch {
		case err == nil:
			return nil
		case !ok: // a Remote was lost
			return err
		case e.Kind == KindNotFound:
		case e.Kind == KindEscape || e.Kind == KindInvalid:
			return e
		default: // the call itself will say it better
			return nil
		}
	}
	return nil
}

// Relative returns path as results and records spell it: relative to the workspace,
// slash-separated and cleaned. It accesses no file.
func (r *Reader) Relative(path string) (string, error) {
	rel, e := r.prefixes.relativePath(path)
	if e != nil {
		return "", e
	}
	return rel, nil
}

// View is the reading side of a workspace. A [Reader] implements it for a local
// directory, and a sandbox for a workspace that only it can see, such as an overlay
// that the engine mounted. Methods keep the Reader's contract: errors, bounds,
// spelling of paths and concurrency.
type View interface {
	Relative(path string) (string, error)
	Scope(ctx context.Context, path string) error
	Stat(ctx context.Context, path string) (Info, error)
	Lstat(ctx context.Context, path string) (Info, error)
	List(ctx context.Context, path string, depth int) (Listing, error)
	Search(ctx context.Context, path string, o SearchOptions) (SearchSummary, error)
	ReadFile(ctx context.Context, path string, offset, most int64) (File, error)
}

var _ View = (*Reader)(nil)

// chunkBytes bounds one read(2), so that a call that was given up stops soon.
const chunkBytes = 4 << 20

// ReadFile reads at most most bytes of a regular file, from offset. If most is 0 or
// more than [DefaultMaxFileBytes], it means that. The file's size and most bound the
// memory used, whatever the file claims. FIFOs, devices and sockets are refused
// without waiting.
func (r *Reader) ReadFile(ctx context.Context, path string, offset, most int64) (File, error) {
	if most == 0 || most > r.options.maxFileBytes {
		most = r.options.maxFileBytes
	}
	rel, e := r.prefixes.relativePath(path)
	if e == nil && (offset < 0 || most < 0) {
		e = &Error{Kind: KindInvalid, Path: path, Detail: "offset and limit must not be negative"}
	}
	if e != nil {
		return File{}, e
	}
	return runGuarded(ctx, r.guard, path, func(ctx context.Context) (f File, err error) {
		if r.remote != nil {
			f, err = r.remote.ReadFile(ctx, rel, offset, most)
		} else {
			f, err = r.tree.readFile(ctx, rel, offset, most)
		}
		if err != nil {
			return File{}, r.newError(path, err)
		}
		f.Path = rel
		f.Offset = offset
		return f, nil
	})
}

func (t *tree) readFile(ctx context.Context, rel string, offset, most int64) (File, error) {
	n, info, err := t.openFile(rel)
	if err != nil {
		return File{}, err
	}
	defer n.close()
	f := File{Info: info, Offset: offset}
	// Files in /proc report a size of 0: leave room to find out.
	buf := make([]byte, min(most, max(info.Size-offset, 512)))
	err = f.readFrom(ctx, n, buf, most)
	return f, err
}

// readFrom reads until buf is full, the file ends, or its known size is reached.
func (f *File) readFrom(ctx context.Context, n node, buf []byte, most int64) error {
	got, end := 0, false
	for got < len(buf) && !end {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read file: %w", context.Cause(ctx))
		}
		m, err := n.readAt(buf[got:min(len(buf), got+chunkBytes)], f.Offset+int64(got))
		if err != nil {
			return err
		}
		got += m
		end = m == 0 || f.Size > 0 && f.Offset+int64(got) == f.Size
		if got == len(buf) && !end && int64(got) < most {
			buf = append(buf, make([]byte, min(most-int64(got), int64(got)))...)
		}
	}
	if got > 0 {
		f.Data = buf[:got]
		f.Size = max(f.Size, f.Offset+int64(got))
	}
	f.Truncated = !end
	return nil
}
