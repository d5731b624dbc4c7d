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
	// walkInterval and walkShare bound the time that is spent in walks of a
	// directory: one is followed by a pause of walkShare times its duration, and
	// of walkInterval at least.
	walkInterval = 200 * time.Millisecond
	walkShare    = 20
	// blindTime is the time after which a directory is walked although its file
	// system did not lose room: what was freed elsewhere may hide what was
	// written to it.
	blindTime = 10 * time.Second
	// bytesPerFile is the size of a bound for each file that it allows: a
	// directory of 2 GiB may hold half a million.
	bytesPerFile = 4 << 10
)

// Bound is a directory of a sandbox whose use is bounded, such as the home. It
// is safe for concurrent use.
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

	mu   sync.Mutex
	used use
}

// use is the use of a directory.
type use struct{ bytes, files int64 }

// NewBound returns a bound of so many bytes for an empty directory of the host,
// which is at target in the sandbox. The caller must close it.
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

// lastUse returns the use at the last walk.
func (b *Bound) lastUse() use {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// watch walks the directory while there may be news, until ended is closed, and
// calls full once if it uses more than the bound. If it did before, that is
// when the slack is used up too: it must be possible to remove things.
func (b *Bound) watch(ended <-chan struct{}, full func(error)) {
	was := b.lastUse()
	most := use{max(b.bytes, was.bytes+byteSlack), max(b.files, was.files+fileSlack)}
	if was.bytes <= b.bytes && was.files <= b.files {
		most = use{b.bytes, b.files}
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

// walkIfDue walks the directory, unless another command's watch does so or it
// can't have come near the bound since the last walk.
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

// mayBeNear reports whether the file system lost as much room as an eighth of
// what was left below the bound, in bytes or in files.
func (b *Bound) mayBeNear(now Room, most use) bool {
	used := b.lastUse()
	bytes := max((most.bytes-used.bytes)/8, 0)
	files := max((most.files-used.files)/8, 0)
	return b.before.Bytes-now.Bytes > bytes || b.before.Files-now.Files > files || now.Files < 0 && b.before.Bytes-now.Bytes > 1<<20
}

// maxDepth bounds the depth of a directory, and the open descriptors of a walk.
// Anything deeper counts as more than the bound, as does a path that is too long.
const maxDepth = 128

func openDir(path string) (*os.File, error) {
	return os.OpenFile(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// countUse returns the use of a directory, or more than most as soon as it is
// more. Commands may change the directory meanwhile in any way. No symlink is
// followed. The blocks of a file with several names count once. If there is something that
// this user may not read, even in a second walk, it counts as more than the bound: commands
// could hide there what they write.
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

// fileID identifies a file. Subvolumes of btrfs have the same inodes on different devices.
type fileID struct{ device, inode uint64 }

// walk counts what it can read, and reports whether it was denied something.
func walk(dir *os.File, most use) (found use, denied bool) {
	r, err := workspace.NewReader(dir, workspace.ReaderOptions{OwnThread: true})
	if err != nil {
		return use{}, false
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	w := workspace.NewWriter(dir, workspace.WriterOptions{})
	seen := map[fileID]bool{} // files with several names
	_ = r.Scan(ctx, ".", workspace.ScanOptions{
		// A directory that its owner, who is this user, may not enter is opened for its
		// owner: otherwise a command could hide what it writes.
		Open: func(name string) (restore func(), err error) {
			_, err = w.Apply(ctx, workspace.Op{Kind: workspace.OpChmod, Path: name, Mode: 0o500, Add: true})
			return func() {}, err
		},
		Visit: func(e *workspace.ScanEntry) (mark uint8, enter string) {
			st, err := e.Stat()
			if err != nil { // it is gone by now, or the directory was closed again
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
