package diskwatch

import (
	"context"
	"errors"
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
// followed. The blocks of a file with several names count once. What can't be read is
// gone by now.
func countUse(dir *os.File, most use) (found use) {
	r, err := workspace.NewReader(dir, workspace.ReaderOptions{OwnThread: true})
	if err != nil {
		return use{}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	w := workspace.NewWriter(dir, workspace.WriterOptions{})
	seen := map[uint64]bool{} // files with several names
	_ = r.Scan(ctx, ".", workspace.ScanOptions{
		// A directory that its owner, who is this user, may not enter is opened for its
		// owner: otherwise a command could hide what it writes.
		Open: func(name string) (restore func(), err error) {
			_, err = w.Apply(ctx, workspace.Op{Kind: workspace.OpChmod, Path: name, Mode: 0o500, Add: true})
			return func() {}, err
		},
		Visit: func(e *workspace.ScanEntry) (mark uint8, enter string) {
			st, err := e.Stat()
			if err != nil {
				return 0, ""
			}
			found.files++
			isDir := st.Type == workspace.TypeDir
			if isDir || st.Links < 2 || !seen[st.Inode] {
				found.bytes += st.Blocks * 512
			}
			if isDir {
				enter = e.Path()
			} else if st.Links > 1 {
				seen[st.Inode] = true
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
			if e, ok := errors.AsType[*workspace.Error](err); ok && e.Kind == workspace.KindTooLarge {
				found.files = most.files + 1
			}
		},
	})
	return found
}
