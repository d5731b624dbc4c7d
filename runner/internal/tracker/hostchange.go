package tracker

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

func applyChange(ctx context.Context, dir *os.File, op workspace.Op) (workspace.Change, error) {
	return workspace.NewWriter(dir, workspace.WriterOptions{}).Apply(ctx, op)
}

// actAsOwner calls do with the file system identity of a directory's owner, on a thread
// of its own. Only root needs that and can do it; others act as themselves.
func actAsOwner(dir *os.File, do func() error) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return fmt.Errorf("read owner: %w", err)
	}
	uid, gid := int(st.Uid), int(st.Gid)
	if os.Geteuid() != 0 || uid == 0 {
		return do()
	}
	result := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, and its identity with it.
		runtime.LockOSThread()
		_, err := unix.SetfsgidRetGid(gid)
		if err == nil {
			_, err = unix.SetfsuidRetUid(uid)
		}
		if now, again := unix.SetfsuidRetUid(-1); err != nil || again != nil || now != uid {
			result <- fmt.Errorf("change file system identity to uid %d: %w", uid, unix.EPERM)
			return
		}
		result <- do()
	}()
	return <-result
}
