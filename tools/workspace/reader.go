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
	// MaxTextBytes bounds the bytes of the paths and link targets of one List
	// or Walk: what few entries can be made to hold much of.
	MaxTextBytes int64
	// MaxDepth bounds how deep List and Walk go; the entries of the folder
	// that was asked for are at depth 1.
	MaxDepth int
	// Deadline bounds each call's wait for the file system: a whole ReadFile,
	// Stat or List, and each folder of a Walk. It is for file systems that
	// may never answer (network, FUSE, whatever is not known to be local).
	Deadline time.Duration
	// MaxStuck bounds the calls that are inside such a file system at once,
	// those included that were given up. A further call waits its deadline,
	// or fails at once where all of them were given up.
	MaxStuck int
	// Layers are those of the overlay whose root the Reader's folder is, if it is
	// one and nothing else writes to them: what is in the lower layer alone may
	// be read there.
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

// Reader reads files below one folder and can't change them. It holds the
// folder that it was given, so that a folder moved or replaced by name
// afterwards makes no difference; whoever opened the folder closes it, after
// the last call.
//
// Every method is safe for concurrent use and fails with an [*Error], or with
// an error that wraps context.Cause(ctx) where ctx ended first. A cancelled
// call, and one beyond its deadline, returns at once; what is stuck inside
// the kernel is left behind, at most MaxStuck times. Since no other mount is
// entered, only a workspace that is itself on such a file system gets stuck.
type Reader struct {
	tree     *tree  // nil where remote is set
	remote   Remote // see [NewRemoteReader]
	prefixes prefixes
	guard    *guard
	options  ReaderOptions
}

// NewReader makes a Reader of the folder dir, which stays the caller's. It
// waits for the file system no longer than Deadline.
func NewReader(dir *os.File, o ReaderOptions) (*Reader, error) {
	o = o.withDefaults()
	g := newGuard(o.Deadline, o.MaxStuck)
	g.local = o.OwnThread
	t, err := guarded(context.Background(), g, dir.Name(), func(context.Context) (*tree, error) { return newTreeOf(dir, o.Layers) })
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
	return r.look(ctx, path, true)
}

// Lstat describes what path itself names, a link where it is one.
func (r *Reader) Lstat(ctx context.Context, path string) (Info, error) {
	return r.look(ctx, path, false)
}

func (r *Reader) look(ctx context.Context, path string, follow bool) (Info, error) {
	rel, e := r.prefixes.relative(path)
	if e != nil {
		return Info{}, e
	}
	return guarded(ctx, r.guard, path, func(ctx context.Context) (Info, error) {
		return r.describe(ctx, path, rel, follow)
	})
}

// Exists says whether path leads to something inside the workspace. A path
// that leads outside is an error, never false.
func (r *Reader) Exists(ctx context.Context, path string) (bool, error) {
	_, err := r.Stat(ctx, path)
	if e, ok := errors.AsType[*Error](err); ok && e.Kind == KindNotFound {
		return false, nil
	}
	return err == nil, err
}

// Scope fails with [KindEscape] where path leads outside the workspace and
// with [KindInvalid] where it is no path. What does not exist (yet) is inside
// if the part of it that exists is. It is a courtesy that refuses early: the
// call that opens the path decides. A path with ".." behind a symlink, or behind
// what is no directory, is none: this package takes the name before ".." away,
// and a shell goes up from where the symlink leads, or fails.
func (r *Reader) Scope(ctx context.Context, path string) error {
	rel, e := r.prefixes.relative(path)
	if e != nil {
		return e
	}
	_, err := guarded(ctx, r.guard, path, func(ctx context.Context) (struct{}, error) {
		if err := r.checkParents(ctx, path, rel); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, r.scope(ctx, path, rel)
	})
	return err
}

// checkParents returns an error if a shell would resolve a ".." of path otherwise
// than by removing the name before it; rel is the path after the removal.
func (r *Reader) checkParents(ctx context.Context, path, rel string) error {
	spelled, e := r.prefixes.spelled(path)
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
			return escape(path, nil)
		}
		before := strings.Join(names, "/")
		names = names[:len(names)-1]
		info, err := r.describe(ctx, path, before, false)
		if err == nil && info.Type == TypeDir {
			continue
		}
		what := "is no directory"
		failed, known := errors.AsType[*Error](err)
		switch {
		case err == nil && info.Type == TypeLink:
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

func (r *Reader) scope(ctx context.Context, path, rel string) error {
	for name := "…"; name != ""; rel, name = split(rel) {
		_, err := r.describe(ctx, path, rel, true)
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

// Relative gives path as results and records spell it: relative to the
// workspace, slash-separated, cleaned. It looks at nothing but the spelling.
func (r *Reader) Relative(path string) (string, error) {
	rel, e := r.prefixes.relative(path)
	if e != nil {
		return "", e
	}
	return rel, nil
}
