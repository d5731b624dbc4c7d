package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Reopen opens the layers in dir for another process of their session, and locks
// them. The state is that of the layers until now: where it is not [Kept], or there were
// none ([Empty]), the layers are new ones, as those of [Create]. It returns [ErrBusy]
// while another process uses them, [ErrOther] for another workspace, and
// [ErrPartlyApplied].
func Reopen(dir string, o CreateOptions) (_ *Layers, state State, err error) {
	if _, err := SweepUnmade(dir); err != nil {
		return nil, "", fmt.Errorf("reopen layers: %w", err)
	}
	l, err := Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		l, err = Create(dir, o)
		return l, Empty, err
	}
	if err != nil {
		return nil, "", err
	}
	if err := l.Lock(); err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if err := l.Same(o.Workspace); err != nil {
		return nil, "", err
	}
	if l.info.State != Kept {
		state := l.info.State
		if err := errors.Join(workspace.RemoveTree(dir), l.Close()); err != nil {
			return nil, "", fmt.Errorf("reopen layers: %w", err)
		}
		l, err = Create(dir, o)
		return l, state, err
	}
	for _, name := range []string{applyFile, doneFile} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !isMissing(err) {
			return nil, "", fmt.Errorf("reopen layers: %w", ErrPartlyApplied)
		}
	}
	return l, Kept, nil
}

// IdentifyDir returns a text that identifies an open directory as long as it exists, or
// "" if its file system does not record when it was made.
func IdentifyDir(dir *os.File) string {
	var st unix.Stat_t
	born := readBirthTime(int(dir.Fd()))
	if born == 0 || unix.Fstat(int(dir.Fd()), &st) != nil {
		return ""
	}
	return fmt.Sprintf("%d-%d", st.Ino, born)
}
