package diskwatch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// walkInterval and walkShare bound the time spent in walks of a directory: after each
	// follows a pause of walkShare times its duration, at least walkInterval.
	walkInterval = 200 * time.Millisecond
	walkShare    = 20
	// blindTime is when a directory is walked although its file system lost no room: files
	// removed elsewhere may hide what was written to it.
	blindTime = 10 * time.Second
	// bytesPerFile is how much of a bound's size allows one more file: 2 GiB allow half a
	// million.
	bytesPerFile = 4 << 10
)

// Bound is a directory of a sandbox with bounded size, such as the home. It is safe for
// concurrent use.
type Bound struct {
	target string // in the sandbox
	dir    *os.File
	bytes  int64
	files  int64
	room   func() Room

	walking sync.Mutex // held during a walk; guards the fields below
	before  Room       // when the last walk began
	ended   time.Time
	took    time.Duration

	slack slack

	mu   sync.Mutex
	used use
}

type use struct{ bytes, files int64 }

// NewBound bounds an empty directory at path on the host, and at target in the sandbox, to a
// number of bytes. The caller must close it.
func NewBound(target, path string, bytes int64) (*Bound, error) {
	dir, err := openDir(path)
	if err != nil {
		return nil, err
	}
	b := &Bound{target: target, dir: dir, bytes: bytes, files: bytes / bytesPerFile, room: RoomOn(dir)}
	b.before, b.ended = b.room(), time.Now()
	return b, nil
}

// Close closes the directory.
func (b *Bound) Close() error {
	b.walking.Lock()
	defer b.walking.Unlock()
	return b.dir.Close()
}

func (b *Bound) lastUse() use {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// watch walks the directory when necessary until ended is closed, and calls full once if it
// exceeds the bound. If it exceeded it before, there is some slack: it must be possible to
// remove things.
func (b *Bound) watch(ended <-chan struct{}, full func(error)) {
	was := b.lastUse()
	most := use{b.bytes, b.files}
	isFull := was.bytes > b.bytes || was.files > b.files
	if slack := b.slack.take(isFull); isFull {
		most = use{max(b.bytes, was.bytes+slack.bytes), max(b.files, was.files+slack.files)}
	}
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ended:
			return
		case <-ticker.C:
		}
		b.walkIfDue(most)
		switch now := b.lastUse(); {
		case now.bytes > most.bytes:
			full(&limits.ExceededError{Kind: limits.KindDisk, Dir: b.target, Limit: b.bytes, Used: now.bytes})
			return
		case now.files > most.files:
			full(&limits.ExceededError{Kind: limits.KindDisk, Dir: b.target, Limit: b.files, Used: now.files, Files: true})
			return
		}
	}
}

// walkIfDue walks the directory unless another command's watch is doing so, or it can't have
// come near the bound since the last walk.
func (b *Bound) walkIfDue(most use) {
	if !b.walking.TryLock() {
		return
	}
	defer b.walking.Unlock()
	pause := max(walkInterval, walkShare*b.took)
	since := time.Since(b.ended)
	if since < pause {
		return
	}
	now := b.room()
	if !b.mayBeNear(now, most) && (since < blindTime || now == b.before) {
		return
	}
	begun := time.Now()
	found := countUse(b.dir, most)
	b.before, b.ended, b.took = now, time.Now(), time.Since(begun)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = found
}

// mayBeNear reports whether the file system lost more than an eighth of what the bound still
// allowed, in bytes or in files.
func (b *Bound) mayBeNear(now Room, most use) bool {
	used := b.lastUse()
	bytes := max((most.bytes-used.bytes)/8, 0)
	files := max((most.files-used.files)/8, 0)
	return b.before.Bytes-now.Bytes > bytes || b.before.Files-now.Files > files || now.Files < 0 && b.before.Bytes-now.Bytes > 1<<20
}

// maxDepth bounds the depth of a directory and so the open descriptors of a walk. Deeper
// entries, and paths that are too long, count as exceeding the bound.
const maxDepth = 128

func openDir(path string) (*os.File, error) {
	return os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// countUse returns the size of a directory, and stops once it exceeds most. Commands may change
// the directory meanwhile. It follows no symlinks, and counts the blocks of hard links
// once. If this user may not read something, even in a second walk, the bound counts as
// exceeded: commands could hide their files there.
func countUse(dir *os.File, most use) use {
	found, denied := walk(dir, most)
	if denied {
		found, denied = walk(dir, most) // a command may have changed a mode in between
	}
	if denied {
		found.files = most.files + 1
	}
	return found
}

// fileID identifies a file. Subvolumes of btrfs reuse inode numbers on different devices.
type fileID struct{ device, inode uint64 }

// walk counts what it can read. denied reports that it may not read something.
func walk(dir *os.File, most use) (found use, denied bool) {
	r, err := workspace.NewReader(dir, workspace.ReaderOptions{OwnThread: true})
	if err != nil {
		return use{}, false
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	w := workspace.NewWriter(dir, workspace.WriterOptions{})
	seen := map[fileID]bool{} // hard links
	_ = r.Scan(ctx, ".", workspace.ScanOptions{
		// Open a directory that its owner, this user, may not enter: a command could hide its
		// files there.
		Open: func(name string) (restore func(), err error) {
			_, err = w.Apply(ctx, workspace.Op{Kind: workspace.OpChmod, Path: name, Mode: 0o500, Add: true})
			return func() {}, err
		},
		Visit: func(e *workspace.ScanEntry) (mark uint8, enter string) {
			st, err := e.Stat()
			if err != nil { // it is gone, or its directory was closed again
				denied = denied || errors.Is(err, fs.ErrPermission)
				return 0, ""
			}
			found.files++
			id := fileID{st.Device, st.Inode}
			isDir := st.Type == workspace.TypeDir
			if isDir || st.Links < 2 || !seen[id] {
				found.bytes += st.Blocks * 512
			}
			if isDir {
				enter = e.Path()
			} else if st.Links > 1 {
				seen[id] = true
			}
			if strings.Count(enter, "/") == maxDepth {
				found.files = most.files + 1
			}
			if found.bytes > most.bytes || found.files > most.files {
				cancel(nil)
			}
			return 0, enter
		},
		Unread: func(_ string, err error) {
			denied = denied || errors.Is(err, fs.ErrPermission)
			if e, ok := errors.AsType[*workspace.Error](err); ok && e.Kind == workspace.KindTooLarge {
				found.files = most.files + 1
			}
		},
	})
	return found, denied
}
