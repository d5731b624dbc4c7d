package overlay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox/guest/overlayfs"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Collect brings what differs from the directory that was sent into the upper
// layer, which it replaces as a whole. It may be called while commands run: a
// file that is being written is in either state. It returns an
// [*IncompleteError] if something can't be read; after any other error the
// upper layer is as it was.
func (c *Copy) Collect(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	w, err := c.walkCopy(ctx)
	if err != nil {
		return fmt.Errorf("collect changes: %w", err)
	}
	k := collector{Copy: c, copyWalk: w, next: newUpper(c.dir), inodes: map[uint64]string{}, made: map[string]bool{}}
	err = workspace.RemoveTree(k.next) // of a Collect that was interrupted
	if err == nil {
		err = k.makeUpper(ctx)
	}
	if err == nil {
		err = unix.Renameat2(unix.AT_FDCWD, k.next, unix.AT_FDCWD, filepath.Join(c.dir, UpperDir), unix.RENAME_EXCHANGE)
	}
	if err := errors.Join(err, workspace.RemoveTree(k.next)); err != nil {
		return fmt.Errorf("collect changes: %w", err)
	}
	c.last = k.stableEntries()
	return k.reportUnread()
}

// collector is one call of Collect.
type collector struct {
	*Copy
	*copyWalk
	next   string
	inodes map[uint64]string // the first name of each file in next
	made   map[string]bool   // directories in next
	fetch  []string          // files whose content is needed
	mu     sync.Mutex        // guards unread while files are fetched
}

// makeUpper makes the next upper layer.
func (k *collector) makeUpper(ctx context.Context) error {
	var old unix.Stat_t
	if err := unix.Lstat(filepath.Join(k.dir, UpperDir), &old); err != nil {
		return err
	}
	if err := os.Mkdir(k.next, 0o700); err != nil {
		return err
	}
	if err := os.Lchown(k.next, int(old.Uid), int(old.Gid)); err != nil {
		return err
	}
	k.made["."] = true
	changed := slices.DeleteFunc(slices.SortedFunc(maps.Keys(k.entries), workspace.TreeOrder), func(path string) bool {
		was, ok := k.sent[path]
		return ok && was.isSame(k.entries[path]) && !was.fromUpper
	})
	links := map[string]string{}
	for _, path := range changed {
		if err := k.addEntry(path, links); err != nil {
			return err
		}
	}
	if err := k.fetchFiles(ctx); err != nil {
		return err
	}
	for path, first := range links {
		if k.unread[first] {
			k.unread[path] = true
		} else if err := os.Link(filepath.Join(k.next, first), filepath.Join(k.next, path)); err != nil {
			return err
		}
	}
	if err := k.addRemoved(); err != nil {
		return err
	}
	return errors.Join(k.setDirectoryModes(), os.Chmod(k.next, k.top))
}

// addEntry makes one entry that differs. Links collects further names of files.
func (k *collector) addEntry(path string, links map[string]string) error {
	e := k.entries[path]
	if e.typ == workspace.TypeDir {
		return k.makeDirectory(path)
	}
	if err := k.makeDirectory(parent(path)); err != nil {
		return err
	}
	name := filepath.Join(k.next, path)
	switch e.typ {
	case workspace.TypeSymlink:
		return os.Symlink(e.target, name)
	case workspace.TypeFIFO:
		return unix.Mkfifo(name, uint32(e.mode))
	case workspace.TypeFile:
		if first, ok := k.inodes[e.inode]; ok && k.entries[first].isSame(e) {
			links[path] = first
			return nil
		}
		k.inodes[e.inode] = path
		if k.isCollected(path, e) && os.Link(filepath.Join(k.dir, UpperDir, path), name) == nil {
			return nil
		}
		k.fetch = append(k.fetch, path)
	}
	return nil // addRemoved hides what had its name
}

// isKept reports whether the upper layer can have the entry. Sockets and devices are
// never applied.
func (c copied) isKept() bool {
	switch c.typ {
	case workspace.TypeDir, workspace.TypeFile, workspace.TypeSymlink, workspace.TypeFIFO:
		return true
	}
	return false
}

// isCollected reports whether the upper layer has this state of a file.
func (k *collector) isCollected(path string, e copied) bool {
	if was, ok := k.last[path]; ok && was.collected {
		return was.isSame(e)
	}
	was, ok := k.sent[path]
	return ok && k.last == nil && was.fromUpper && was.isSame(e)
}

// makeDirectory makes a directory and those above it. They get their modes at
// the end.
func (k *collector) makeDirectory(path string) error {
	if k.made[path] {
		return nil
	}
	if err := k.makeDirectory(parent(path)); err != nil {
		return err
	}
	k.made[path] = true
	name := filepath.Join(k.next, path)
	if err := os.Mkdir(name, 0o700); err != nil {
		return err
	}
	if _, ok := k.hidden[path]; ok { // it hides the original's
		return unix.Lsetxattr(name, overlayfs.OpaqueAttribute, []byte("y"), 0)
	}
	return nil
}

func (k *collector) setDirectoryModes() error {
	for _, path := range slices.Backward(slices.SortedFunc(maps.Keys(k.made), workspace.TreeOrder)) {
		if path == "." {
			continue
		}
		if err := os.Chmod(filepath.Join(k.next, path), k.entries[path].mode); err != nil {
			return err
		}
	}
	return nil
}

// addRemoved makes the whiteouts, each in a directory that still exists.
func (k *collector) addRemoved() error {
	gone := slices.Collect(maps.Keys(k.sent))
	for path, isFile := range k.hidden {
		if isFile {
			gone = append(gone, path)
		}
	}
	for _, path := range gone {
		if e, there := k.entries[path]; there && e.isKept() {
			continue
		}
		above := parent(path)
		if above != "." && k.entries[above].typ != workspace.TypeDir || k.unread[above] {
			continue
		}
		if err := k.makeDirectory(above); err != nil {
			return err
		}
		if err := k.makeWhiteout(path); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("whiteout: %w", err)
		}
	}
	return nil
}

func (k *collector) makeWhiteout(path string) error {
	dir, err := os.Open(filepath.Join(k.next, parent(path)))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }() // only read
	return overlayfs.MakeWhiteout(int(dir.Fd()), base(path))
}

// fetchFiles reads the content of files, several at a time. Files that are too large,
// which only sparse ones can be, and those that can't be read are left out.
func (k *collector) fetchFiles(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workspace.RemoteRequests)
	left := k.most.Bytes
	for _, path := range k.fetch {
		size := k.entries[path].size
		if size > left {
			k.leaveOut(path)
			continue
		}
		left -= size
		group.Go(func() error {
			err := k.fetchFile(ctx, path)
			if errors.As(err, new(*workspace.Error)) && ctx.Err() == nil {
				k.leaveOut(path)
				return nil
			}
			return err
		})
	}
	return group.Wait()
}

// leaveOut notes a file that is not collected.
func (k *collector) leaveOut(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.unread[path] = true
}

// fetchFile reads one file into the next upper layer, up to the size that it had.
func (k *collector) fetchFile(ctx context.Context, path string) (err error) {
	e := k.entries[path]
	name := filepath.Join(k.next, path)
	var f *os.File
	defer func() {
		if f == nil {
			return
		}
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(name) // the error counts
		}
	}()
	for offset := int64(0); ; {
		got := workspace.File{}
		if left := e.size - offset; left > 0 {
			if got, err = k.reader.ReadFile(ctx, path, offset, min(left, pieceBytes)); err != nil {
				return err
			}
		}
		if f == nil {
			if f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
				return err
			}
		}
		if len(bytes.TrimLeft(got.Data, "\x00")) > 0 { // zeros are left as holes
			if _, err := f.WriteAt(got.Data, offset); err != nil {
				return err
			}
		}
		offset += int64(len(got.Data))
		if !got.Truncated || len(got.Data) == 0 {
			mtime := time.Unix(0, e.mtime)
			return errors.Join(f.Truncate(offset), f.Chmod(e.mode), os.Chtimes(name, mtime, mtime))
		}
	}
}

// pieceBytes is the size of the pieces in which files are read.
const pieceBytes = 1 << 20

// stableEntries returns the state of the files that the upper layer has now. A
// file that changed just before may change again without another change time.
func (k *collector) stableEntries() map[string]copied {
	var newest int64
	for _, e := range k.entries {
		newest = max(newest, e.ctime)
	}
	stable := map[string]copied{}
	for path, e := range k.entries {
		if e.typ == workspace.TypeFile && e.ctime < newest-int64(settleTime) && !k.unread[path] {
			e.collected = true
			stable[path] = e
		}
	}
	return stable
}

func (k *collector) reportUnread() error {
	if len(k.unread) == 0 {
		return nil
	}
	names := slices.SortedFunc(maps.Keys(k.unread), strings.Compare)
	return &IncompleteError{Unread: names[:min(len(names), maxUnread)], Count: len(names)}
}
