package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/overlayfs"
	"github.com/caisson-run/caisson/tools/workspace"
)

// CopyReader reads the copy of a workspace in a sandbox; *workspace.Reader is
// one. What it returns is untrusted, apart from the form of names.
type CopyReader interface {
	Lstat(ctx context.Context, path string) (workspace.Info, error)
	ReadDir(ctx context.Context, path string, follow bool, capacity workspace.Capacity) ([]workspace.Entry, bool, error)
	ReadFile(ctx context.Context, path string, offset, most int64) (workspace.File, error)
}

// Copy is the copy of a merged directory in a sandbox. It is safe for
// concurrent use.
type Copy struct {
	dir    string // of the layers
	reader CopyReader
	most   CopyBounds
	sent   map[string]copied // the copy before any command ran
	// hidden are the names by which the upper layer hid the original's then:
	// opaque directories (false), and everything but directories (true).
	hidden map[string]bool

	mu   sync.Mutex        // held by one Collect
	last map[string]copied // the copy at the last Collect, without what may have changed since
}

// copied is the state of one entry of the copy. Programs can't set its change
// time.
type copied struct {
	typ                  workspace.Type
	mode                 fs.FileMode
	size, mtime, ctime   int64
	inode                uint64
	target               string
	fromUpper, collected bool // see Copy.sent and Copy.last
}

// isSame reports whether two states are the same.
func (c copied) isSame(o copied) bool {
	if c.typ == workspace.TypeDir && o.typ == workspace.TypeDir {
		return c.mode == o.mode
	}
	c.fromUpper, c.collected, o.fromUpper, o.collected = false, false, false, false
	return c == o
}

// settleTime is longer than a tick of any kernel's clock of change times, so
// that a later change has another one.
const settleTime = 20 * time.Millisecond

// OpenCopy records the copy that was just made of the merged directory of the
// layers in dir. No command may have run. The bounds are for what is collected.
func OpenCopy(ctx context.Context, dir string, reader CopyReader, bounds CopyBounds) (*Copy, error) {
	select {
	case <-time.After(settleTime):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c := &Copy{dir: dir, reader: reader, most: bounds, hidden: map[string]bool{}}
	w, err := c.walkCopy(ctx)
	if err != nil {
		return nil, fmt.Errorf("record copy: %w", err)
	}
	c.sent = w.entries
	if err := c.markUpper(); err != nil {
		return nil, fmt.Errorf("record copy: %w", err)
	}
	return c, nil
}

// markUpper marks the entries that come from the upper layer.
func (c *Copy) markUpper() error {
	top := filepath.Join(c.dir, UpperDir)
	return filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if path == top {
			return err
		}
		rel, _ := filepath.Rel(top, path)
		if err != nil {
			return nil // a closed directory, of which nothing was sent
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		buf := make([]byte, 2)
		if !d.IsDir() {
			c.hidden[rel] = true
		} else if n, err := unix.Lgetxattr(path, overlayfs.OpaqueAttribute, buf); err == nil && string(buf[:n]) == "y" {
			c.hidden[rel] = false
		}
		if n := nodeOf(&st); n.whiteout || n.typ == workspace.TypeFile && n.size == 0 && overlayfs.IsWhiteout(unix.AT_FDCWD, path) {
			return nil
		}
		if e, ok := c.sent[rel]; ok {
			e.fromUpper = true
			c.sent[rel] = e
		}
		return nil
	})
}

// copyWalk is one walk of the copy.
type copyWalk struct {
	top     fs.FileMode // of the directory itself
	entries map[string]copied
	unread  map[string]bool // files and directories
}

// maxCopyPath bounds a path of the copy and the path of the layers together, so
// that the kernel accepts the paths in the upper layer.
const maxCopyPath = maxPathBytes - 64

// walkCopy reads the metadata of everything in the copy.
func (c *Copy) walkCopy(ctx context.Context) (*copyWalk, error) {
	w := &copyWalk{entries: map[string]copied{}, unread: map[string]bool{}}
	for level := []string{"."}; len(level) > 0; {
		lists := make([]directory, len(level))
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(workspace.RemoteRequests)
		for i, path := range level {
			group.Go(func() (err error) {
				lists[i], err = c.readDirectory(ctx, path)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return nil, err
		}
		var next []string
		for i, list := range lists {
			below, err := c.addDirectory(w, level[i], list)
			if err != nil {
				return nil, err
			}
			next = append(next, below...)
		}
		level = next
	}
	return w, nil
}

// directory is one directory of the copy.
type directory struct {
	mode    fs.FileMode
	entries []workspace.Entry
	err     error // why it can't be read, or is not
}

// readDirectory reads one directory. Listings have no modes of directories.
func (c *Copy) readDirectory(ctx context.Context, path string) (d directory, err error) {
	info, err := c.reader.Lstat(ctx, path)
	more := false
	if err == nil {
		d.mode = info.Mode.Perm()
		d.entries, more, err = c.reader.ReadDir(ctx, path, false, workspace.Capacity{Entries: int(c.most.Entries), Bytes: MaxTextBytes})
	}
	if errors.As(err, new(*workspace.Error)) && path != "." {
		return directory{mode: d.mode, err: err}, nil
	}
	switch {
	case more && path == ".":
		err = c.tooMany()
	case more:
		return directory{mode: d.mode, err: c.tooMany()}, nil
	}
	return d, err
}

// addDirectory adds the entries of a directory, and returns the directories
// among them.
func (c *Copy) addDirectory(w *copyWalk, path string, d directory) (below []string, err error) {
	own := w.entries[path]
	own.mode = d.mode
	e, failed := errors.AsType[*workspace.Error](d.err)
	switch {
	case path == ".":
		w.top = d.mode
	case failed && e.Kind == workspace.KindNotFound: // removed since
		delete(w.entries, path)
		return nil, nil
	case d.err != nil:
		w.unread[path] = true
		if own.mode == 0 { // not known
			own.mode = c.sent[path].mode
		}
		fallthrough
	default:
		w.entries[path] = own
	}
	for _, e := range d.entries {
		if int64(len(w.entries)) >= c.most.Entries {
			return nil, c.tooMany()
		}
		if e.Path == ownConfig {
			continue
		}
		if len(e.Path)+len(c.dir) > maxCopyPath {
			w.unread[e.Path] = true
			continue
		}
		w.entries[e.Path] = copied{
			typ: e.Type, mode: e.Mode.Perm(), size: e.Size, mtime: e.ModTime.UnixNano(), ctime: e.ChangeTime.UnixNano(), inode: e.Inode, target: e.Target,
		}
		if e.Type == workspace.TypeDir {
			below = append(below, e.Path)
		}
	}
	return below, nil
}

func (c *Copy) tooMany() error {
	return fmt.Errorf("the copy has too many files and directories: at most %d are collected, and 100,000 of one directory", c.most.Entries)
}
