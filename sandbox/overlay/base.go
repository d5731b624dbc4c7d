package overlay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Record walks the original directory and records its state. It lets
// [Layers.Changes] tell later changes of the original from the session's.
// Nothing may write to the merged directory before Record returns, unless
// [Layers.RecordTime] was called: Record then replaces that record, and what
// changed in the original since counts as a later change. After an error that
// record stays. Such a call of Record may run beside [Layers.IsUnchanged].
func (l *Layers) Record(ctx context.Context, original *os.File) error {
	return l.writeBase(func(encode func(any) error) (baseTrailer, error) {
		r := recorder{tree: tree{int(original.Fd())}, encode: encode, since: math.MaxInt64}
		if l.info.Recorded { // commands may have run
			r.since = l.info.recordedAt().UnixNano()
		}
		err := r.recordTree(ctx)
		return baseTrailer{End: true, Entries: r.count, Whole: !r.truncated, Unread: r.unread}, err
	})
}

// RecordTime records the time instead of the state of the original directory. A
// change of an entry then counts as later if its change time is. The deletion of
// an entry that the session changed, and the move of a directory, can't be told.
func (l *Layers) RecordTime() error {
	return l.writeBase(func(func(any) error) (baseTrailer, error) { return baseTrailer{End: true, TimeOnly: true}, nil })
}

// writeBase writes base.json with the stamps that record encodes. If it replaces
// another record, l stays as it is.
func (l *Layers) writeBase(record func(encode func(any) error) (baseTrailer, error)) (err error) {
	info := l.info
	if !info.Recorded {
		info.Recorded = true
		info.BaseAt = time.Now().UTC()
	}
	path := filepath.Join(l.dir, baseFile)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("record workspace: %w", err)
	}
	w := bufio.NewWriterSize(f, 256<<10)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	err = enc.Encode(info)
	if err == nil {
		var end baseTrailer
		if end, err = record(enc.Encode); err == nil {
			err = enc.Encode(end)
		}
	}
	if err == nil {
		err = w.Flush()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("record workspace: %w", err), os.Remove(path+".new"))
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("record workspace: %w", err)
	}
	if !l.info.Recorded {
		l.info = info
	}
	return nil
}

// isLater reports whether a change time is later than since. The kernel's clock of
// files is up to 10 ms behind, so a change just after since may count as earlier; no
// command runs so soon. File systems that keep whole seconds round down.
func isLater(ctime, since int64) bool {
	const second = int64(time.Second)
	if ctime%second == 0 {
		return ctime >= since-since%second
	}
	return ctime > since
}

// baseTrailer is the last line of base.json. Without it the file is incomplete.
type baseTrailer struct {
	End     bool `json:"end"`
	Entries int  `json:"entries"`
	// Whole reports whether no bound was reached. Unread are all directories
	// that could not be read.
	Whole  bool     `json:"whole"`
	Unread [][]byte `json:"unread,omitempty"`
	// TimeOnly reports that nothing but the time was recorded.
	TimeOnly bool `json:"time_only,omitempty"`
}

// recorder is the state of one call of Record.
type recorder struct {
	tree        tree
	encode      func(any) error
	since       int64 // what changed after this time counts as a later change
	count       int
	textBytes   int // bytes of paths and symlink targets
	truncated   bool
	unread      [][]byte
	unreadBytes int // bytes of unread
}

// maxUnreadBytes bounds the names of the directories in the last line of
// base.json.
const maxUnreadBytes = 64 << 10

// addUnread records a directory that can't be read.
func (r *recorder) addUnread(rel string) {
	r.unreadBytes += len(rel)
	if r.unreadBytes > maxUnreadBytes {
		r.truncated = true
		return
	}
	r.unread = append(r.unread, []byte(rel))
}

// recordTree records everything in the directory.
func (r *recorder) recordTree(ctx context.Context) error {
	dir, err := r.tree.openDir(".")
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return r.recordDirectory(ctx, ".", dir, 0, false)
}

// errTruncated ends a walk that has reached a bound.
var errTruncated = errors.New("too much to record")

// recordDirectory records the content of one open directory. All of it counts as
// later if the directory may have been moved here.
func (r *recorder) recordDirectory(ctx context.Context, rel string, dir, depth int, moved bool) error {
	err := eachName(dir, func(name string) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return r.recordEntry(ctx, join(rel, name), name, dir, depth, moved)
	})
	switch {
	case errors.Is(err, errTruncated):
		r.truncated = true
		return nil
	case errors.Is(err, errNames):
		r.addUnread(rel)
		return nil
	}
	return err
}

// recordEntry records name in an open directory, and its content.
func (r *recorder) recordEntry(ctx context.Context, path, name string, dir, depth int, moved bool) error {
	n, err := statAt(dir, name)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		r.addUnread(parent(path))
		return nil
	}
	s := stampOf(path, n)
	s.Late = moved || isLater(n.ctime, r.since)
	r.textBytes += len(path) + len(s.Target)
	if r.textBytes > MaxTextBytes || r.count >= MaxEntries {
		return errTruncated
	}
	r.count++
	if n.typ == workspace.TypeFile && isIndex(path) && !s.Late {
		s.Index = r.tree.hashIndexAt(path)
	}
	if err := r.encode(s); err != nil || n.typ != workspace.TypeDir {
		return err
	}
	if depth >= maxScanDepth || len(path) > maxPathBytes {
		r.addUnread(path)
		return nil
	}
	below, err := (tree{dir}).openDir(name)
	if err != nil {
		if !isMissing(err) {
			r.addUnread(path)
		}
		return nil
	}
	defer unix.Close(below)
	if err := r.recordDirectory(ctx, path, below, depth+1, moved || r.changed(below) && r.changed(dir)); err != nil {
		return err
	}
	if r.truncated {
		return errTruncated
	}
	return nil
}

// changed reports whether an open directory changed since the time from which on
// that counts. A directory that was moved has, and so has the one that it was
// moved to.
func (r *recorder) changed(dir int) bool {
	n, err := statAt(dir, "")
	return err != nil || isLater(n.ctime, r.since)
}

// stampOf returns the stamp of a node.
func stampOf(path string, n *node) stamp {
	s := stamp{Type: n.typ, Size: n.size, Mode: n.mode, MTime: n.mtime, CTime: n.ctime, Inode: n.ino}
	if n.typ == workspace.TypeDir {
		s.MTime, s.CTime = 0, 0
	}
	if n.target != "" {
		s.Target = []byte(shortenTarget(n.target))
	}
	if utf8.ValidString(path) {
		s.Path = path
	} else {
		s.Bytes = []byte(path)
	}
	return s
}

// readStamps reads the recorded state of the original and sets the stamps of
// changes, by their paths.
func (l *Layers) readStamps(at map[string]*Change) (baseTrailer, error) {
	var end baseTrailer
	f, err := os.Open(stampsPath(l))
	if err != nil {
		return end, fmt.Errorf("read base: %w", err)
	}
	defer func() { _ = f.Close() }()
	in := bufio.NewReaderSize(f, 256<<10)
	for first := true; ; first = false {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return end, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return end, fmt.Errorf("read base: %w", err)
		}
		switch {
		case first:
		case bytes.HasPrefix(line, []byte(`{"end"`)):
			if err := json.Unmarshal(line, &end); err != nil {
				return end, fmt.Errorf("read base: %w", err)
			}
			return end, nil
		default:
			if path, ok := plainPath(line); ok && at[string(path)] == nil {
				continue // of most stamps nothing else is needed
			}
			var s stamp
			if err := json.Unmarshal(line, &s); err != nil {
				return end, fmt.Errorf("read base: %w", err)
			}
			if s.Bytes != nil {
				s.Path = string(s.Bytes)
			}
			if c := at[s.Path]; c != nil {
				c.base = &s
			}
		}
	}
}

// plainPath returns the path in the line of a stamp if nothing in it is escaped.
func plainPath(line []byte) (path []byte, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(`{"p":"`))
	end := bytes.IndexAny(rest, `"\`)
	if !ok || end < 0 || rest[end] != '"' {
		return nil, false
	}
	return rest[:end], true
}
