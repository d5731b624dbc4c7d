package workspace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// DefaultMaxRemove bounds a recursive delete: a node_modules folder has some
// ten thousand entries, a million is a mistake or an attack.
const DefaultMaxRemove = 1_000_000

// WriterOptions configures a [Writer]; every zero means the default.
type WriterOptions struct {
	// HostPath and ContainerPath are absolute spellings of the workspace,
	// accepted in front of a path; "" accepts none. They are never opened.
	HostPath, ContainerPath string
	// MaxRemove bounds the files and folders that one delete removes.
	MaxRemove int
}

// Writer changes files below one folder. Only the guest links it: it runs in
// the container, as the user that commands run as, and the kernel and the
// mounts of the container bound what it can do besides its own care.
//
// A Writer does everything on the goroutine that calls it and makes only
// system calls that act on the calling thread, so that a caller that has
// locked its thread and switched that thread's credentials writes with those.
// It is safe for concurrent use; two changes of one file at once leave one of
// the two. The folder stays the caller's, who closes it after the last call.
//
// Links: a link in the folders of a path is followed where it stays inside. A
// link at the end is followed, by a write and a patch, to a regular file that
// exists inside, which is then replaced while the link stays; a link that is
// absolute, dangling, or leads outside is refused. Delete and rename act on
// the link itself.
//
// Files are replaced, never changed in place: a new file in the same folder is
// written, synced and renamed over the old one. So another hard link of the
// old file keeps the old content, and a reader sees the one or the other.
type Writer struct {
	tree      *tree
	broken    error
	prefixes  prefixes
	maxRemove int
}

// NewWriter makes a Writer of the folder dir. A dir that is no open folder
// makes every Apply fail.
func NewWriter(dir *os.File, o WriterOptions) *Writer {
	t, err := newTree(dir)
	setDefault(&o.MaxRemove, DefaultMaxRemove)
	return &Writer{
		tree: t, broken: err,
		prefixes:  newPrefixes(o.HostPath, o.ContainerPath),
		maxRemove: o.MaxRemove,
	}
}

// Apply makes one change and says what it did. It fails with an [*Error], or
// with an error that wraps context.Cause(ctx); cancelling stops between two
// system calls, before the rename that makes a change visible. The Change is
// meaningful after an error too, where a recursive delete had removed some.
func (w *Writer) Apply(ctx context.Context, op Op) (Change, error) {
	if w.broken != nil {
		return Change{Kind: op.Kind}, &Error{Kind: KindIO, Path: op.Path, Detail: "the workspace folder is not open", Err: w.broken}
	}
	if ctx.Err() != nil {
		return Change{Kind: op.Kind}, fmt.Errorf("%s %q: %w", op.Kind, op.Path, context.Cause(ctx))
	}
	rel, e := w.prefixes.relative(op.Path)
	if e != nil {
		return Change{Kind: op.Kind}, e
	}
	c := Change{Kind: op.Kind, Path: rel}
	err := w.apply(ctx, op, rel, &c)
	if err != nil && ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return c, fmt.Errorf("%s %q: %w", op.Kind, op.Path, context.Cause(ctx))
	}
	if err != nil {
		return c, writeFault(op.Path, err)
	}
	return c, nil
}

func (w *Writer) apply(ctx context.Context, op Op, rel string, c *Change) error {
	folder := strings.HasSuffix(op.Path, "/")
	switch op.Kind {
	case OpWrite, OpAppend:
		if folder || rel == "." {
			return op.fail(KindIsDir, "names a folder; name a file")
		}
		return w.write(ctx, op, rel, c)
	case OpPatch:
		return w.patch(ctx, op, rel, c)
	case OpDelete:
		return w.delete(ctx, op, rel, c)
	case OpMkdir:
		dir, created, err := w.makeDirs(rel)
		if err == nil {
			_ = unix.Close(dir)
		}
		c.Created = created
		return err
	case OpRename:
		return w.rename(op, rel, c)
	case OpChmod:
		return w.chmod(op, rel, c)
	}
	return op.fail(KindInvalid, fmt.Sprintf("there is no change named %q", op.Kind))
}

// writeFault words what fault words for readers: another mount is one that
// the session protects, such as a read-only .git.
func writeFault(path string, err error) *Error {
	if errors.Is(err, ErrMount) || errors.Is(err, unix.EXDEV) && !isEscape(err) {
		return &Error{
			Kind: KindPermission, Path: abbreviate(path), Err: err,
			Detail: "is mounted apart from the workspace, which protects it from changes",
		}
	}
	return fault(path, err)
}

// place is an entry of a folder, which is held open, whether it exists or not.
type place struct {
	rel  string
	dir  int
	name string
	// now is what is there; exists says whether anything is.
	now    facts
	exists bool
}

func (p place) close() { _ = unix.Close(p.dir) }

// find opens the folder of rel and looks at the entry. With parents, missing
// folders are made; with follow, a link is followed to what exists inside.
func (w *Writer) find(rel string, parents, follow bool) (place, error) {
	at := rel
	for range maxLinks {
		dir, name := split(at)
		if name == "" {
			return place{}, unix.EISDIR
		}
		p, err := w.look(dir, name, parents && at == rel)
		if err != nil {
			return place{}, err
		}
		if !p.exists && at != rel {
			p.close()
			return place{}, &Error{Kind: KindNotFound, Path: rel, Detail: "is a link to a file that does not exist; write that file by its own path, or delete the link first"}
		}
		if !follow || !p.exists || typeOf(p.now.Mode) != TypeLink {
			return p, nil
		}
		target, err := readLink(p.dir, p.name)
		p.close()
		switch {
		case err != nil:
			return place{}, err
		case strings.HasPrefix(target, "/"):
			return place{}, errEscape
		}
		at = linkTarget(dir, target)
	}
	return place{}, errLoop
}

func (w *Writer) look(dir, name string, parents bool) (place, error) {
	p := place{rel: below(dir, name), name: name}
	var err error
	if parents {
		p.dir, _, err = w.makeDirs(dir)
	} else {
		p.dir, err = w.tree.open(dir, unix.O_PATH|unix.O_DIRECTORY)
	}
	if err != nil {
		return place{}, err
	}
	p.now, err = statx(p.dir, name, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return p, nil
	case err == nil && p.now.mount != w.tree.mount:
		err = ErrMount
	}
	if err != nil {
		p.close()
		return place{}, err
	}
	p.exists = true
	return p, nil
}

// checkHash compares what a person approved with what is there.
func (op Op) checkHash(exists bool, content []byte) error {
	switch {
	case op.IfSHA256 == "":
		return nil
	case op.IfSHA256 == "absent" && exists:
		return op.fail(KindConflict, "exists now; it did not when the change was shown")
	case op.IfSHA256 == "absent":
		return nil
	case !exists:
		return op.fail(KindConflict, "no longer exists; it did when the change was shown")
	}
	if sum := sha256.Sum256(content); !strings.EqualFold(hex.EncodeToString(sum[:]), op.IfSHA256) {
		return op.fail(KindConflict, "has changed since the change was shown; read it again")
	}
	return nil
}
