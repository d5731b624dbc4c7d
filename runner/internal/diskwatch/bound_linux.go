package diskwatch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

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
