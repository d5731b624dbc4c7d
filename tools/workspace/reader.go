package workspace

import (
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

// ReaderOptions configures a [Reader]; every zero means the default.
type ReaderOptions struct {
	// HostPath and ContainerPath are absolute spellings of the workspace,
	// accepted in front of a path; "" accepts none. They are never opened.
	HostPath, ContainerPath string
	// MaxFileBytes bounds what one call reads of a file.
	MaxFileBytes int64
	// MaxEntries bounds the entries of one List or Walk.
	MaxEntries int
	// MaxTextBytes bounds the bytes of the paths and symlink targets of one List
	// or Walk: what few entries can be made to hold much of.
	MaxTextBytes int64
	// MaxDepth bounds how deep List and Walk go; the entries of the directory
	// that was asked for are at depth 1.
	MaxDepth int
	// Deadline bounds each call's wait for the file system: a whole ReadFile,
	// Stat or List, and each directory of a Walk. It is for file systems that
	// may never answer (network, FUSE, whatever is not known to be local).
	Deadline time.Duration
	// MaxStuck bounds the calls that are inside such a file system at once,
	// those included that were given up. A further call waits its deadline,
	// or fails at once where all of them were given up.
	MaxStuck int
	// Layers are those of the overlay whose root the Reader's directory is, if
	// it is one and nothing else writes to them: what is in the lower layer
	// alone may be read there.
	Layers Layers
	// OwnThread makes every call run on its caller's thread, whose credentials
	// then count (the guest's threads have the commands'). Nothing is given up
	// at the Deadline then.
	OwnThread bool
}

// Layers are the two layers of an overlay that follows no redirects (its option
// userxattr sees to that). They stay their opener's, and open as long as the
// Reader is used.
type Layers struct{ Upper, Lower *os.File }

// Reader reads files below one directory and can't change them. It holds the
// directory open, so that moving or replacing it makes no difference. The
// caller closes the directory after the last call. Every method is safe for
// concurrent use. Its error is an [*Error], or wraps context.Cause(ctx) if ctx
// ended first. A cancelled call, or one beyond its deadline, returns at once.
// If it is stuck inside the kernel it is left behind, at most MaxStuck times.
// Since no other mount is entered, only a workspace that is itself on such a
// file system gets stuck.
type Reader struct {
	tree     *tree  // nil where remote is set
	remote   Remote // see [NewRemoteReader]
	prefixes prefixes
	guard    *guard
	options  ReaderOptions
}

// NewReader makes a Reader of the directory dir, which stays the caller's. It
// waits for the file system no longer than Deadline.
func NewReader(dir *os.File, o ReaderOptions) (*Reader, error) {
	o = o.withDefaults()
	g := newGuard(o.Deadline, o.MaxStuck)
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

// IsLocal reports whether the directory is certainly on a file system of this
// machine's own kernel and disks: no other machine or program changes it, or sets its
// change times.
func (r *Reader) IsLocal() bool { return r.tree != nil && r.tree.local }

func (o ReaderOptions) withDefaults() ReaderOptions {
	setDefault(&o.MaxFileBytes, DefaultMaxFileBytes)
	setDefault(&o.MaxEntries, DefaultMaxEntries)
	setDefault(&o.MaxTextBytes, DefaultMaxTextBytes)
	setDefault(&o.MaxDepth, DefaultMaxDepth)
	setDefault(&o.Deadline, DefaultDeadline)
	setDefault(&o.MaxStuck, DefaultMaxStuck)
	return o
}

func setDefault[T int | int64 | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// Stat describes what path leads to, without opening it for reading.
func (r *Reader) Stat(ctx context.Context, path string) (Info, error) {
	return r.info(ctx, path, true)
}

// Lstat describes what path itself names, which may be a symlink.
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

// Exists reports whether path leads to something inside the workspace. A path
// that leads outside is an error, never false.
func (r *Reader) Exists(ctx context.Context, path string) (bool, error) {
	_, err := r.Stat(ctx, path)
	if e, ok := errors.AsType[*Error](err); ok && e.Kind == KindNotFound {
		return false, nil
	}
	return err == nil, err
}

// Scope fails with [KindEscape] where path leads outside the workspace and
// with [KindInvalid] if it is no path. What does not exist (yet) is inside
// if the part of it that exists is. It is a courtesy that refuses early: the
// call that opens the path decides. A path with ".." behind a symlink, or behind
// what is no directory, is none: this package takes the name before ".." away,
// and a shell goes up from where the symlink leads, or fails.
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

// checkParents returns an error if a shell would resolve a ".." of path otherwise
// than by removing the name before it; rel is the path after the removal.
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
		case len(names) == 0: // it left the workspace and came back by its name
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

// Relative returns path as results and records spell it: relative to the
// workspace, slash-separated, cleaned. It looks only at the spelling.
func (r *Reader) Relative(path string) (string, error) {
	rel, e := r.prefixes.relativePath(path)
	if e != nil {
		return "", e
	}
	return rel, nil
}

// View is the reading side of a workspace. A [Reader] implements it for a
// directory of this machine, and a sandbox for a workspace that only it can see
// (an overlay that the engine mounted). Each method keeps the Reader's
// contract: the same errors, bounds and spelling of paths, and safety for
// concurrent use.
type View interface {
	Relative(path string) (string, error)
	Scope(ctx context.Context, path string) error
	Exists(ctx context.Context, path string) (bool, error)
	Stat(ctx context.Context, path string) (Info, error)
	Lstat(ctx context.Context, path string) (Info, error)
	List(ctx context.Context, path string, depth int) (Listing, error)
	Walk(ctx context.Context, path string, o WalkOptions, visit func(Entry) error) (WalkResult, error)
	Search(ctx context.Context, path string, o SearchOptions) (WalkResult, error)
	ReadFile(ctx context.Context, path string, offset, most int64) (File, error)
	ReadInto(ctx context.Context, path string, offset int64, buf []byte) (File, error)
}

var _ View = (*Reader)(nil)

// chunkBytes bounds one read(2), so that a call that was given up stops soon.
const chunkBytes = 4 << 20

// ReadFile reads at most most bytes of a regular file from offset on; most 0,
// or more than MaxFileBytes, means MaxFileBytes. What is allocated is bounded
// by the file's size and by most, whatever the file claims or does meanwhile.
// FIFOs, devices and sockets are refused without waiting and without a read.
func (r *Reader) ReadFile(ctx context.Context, path string, offset, most int64) (File, error) {
	if most == 0 || most > r.options.MaxFileBytes {
		most = r.options.MaxFileBytes
	}
	return r.readFile(ctx, path, offset, func(rest int64) []byte {
		// A size of 0 may be a lie (files of /proc): leave room to find out.
		return make([]byte, min(most, max(rest, 512)))
	}, most)
}

// ReadInto is ReadFile into a buffer of the caller's, of whose length it reads
// at most; the File's Data is a part of it. After any error the buffer must
// not be used again: a call that was given up may still write to it.
func (r *Reader) ReadInto(ctx context.Context, path string, offset int64, buf []byte) (File, error) {
	f, err := r.readFile(ctx, path, offset, func(int64) []byte { return buf }, int64(len(buf)))
	if r.remote != nil && f.Data != nil {
		f.Data = buf[:copy(buf, f.Data)]
	}
	return f, err
}

func (r *Reader) readFile(ctx context.Context, path string, offset int64, buffer func(rest int64) []byte, most int64) (File, error) {
	rel, e := r.prefixes.relativePath(path)
	if e == nil && (offset < 0 || most < 0) {
		e = &Error{Kind: KindInvalid, Path: path, Detail: "offset and limit must not be negative"}
	}
	if e != nil {
		return File{}, e
	}
	if r.remote != nil {
		return r.readRemote(ctx, path, rel, offset, most)
	}
	return runGuarded(ctx, r.guard, path, func(ctx context.Context) (File, error) {
		n, info, err := r.tree.openFile(rel)
		if err != nil {
			return File{}, newError(path, err)
		}
		defer n.close()
		info.Path = rel
		f := File{Info: info, Offset: offset}
		if err := f.readFrom(ctx, n, buffer(info.Size-offset), most); err != nil {
			return File{}, newError(path, err)
		}
		return f, nil
	})
}

// readRemote is read of what another process sees.
func (r *Reader) readRemote(ctx context.Context, path, rel string, offset, most int64) (File, error) {
	return runGuarded(ctx, r.guard, path, func(ctx context.Context) (File, error) {
		f, err := r.remote.ReadFile(ctx, rel, offset, most)
		if err != nil {
			return File{}, r.newError(path, err)
		}
		f.Path, f.Offset = rel, offset
		return f, nil
	})
}

// readFrom reads until buf is full, the file ends, or the size it had is reached.
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
