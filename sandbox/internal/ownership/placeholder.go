package ownership

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Placeholder is an empty file or directory that reserves a name in a workspace
// that a host would execute or obey, so that it can be bound on itself,
// read-only. It belongs to the workspace's owner, and is removed at the end
// unless it was changed.
type Placeholder struct {
	// Workspace is the workspace's absolute path without symlinks, by which
	// another process finds it. WorkspaceDev and WorkspaceIno identify the
	// directory.
	Workspace    string `json:"workspace"`
	WorkspaceDev uint64 `json:"workspace_dev"`
	WorkspaceIno uint64 `json:"workspace_ino"`
	// Name is relative to the workspace and one of shapeOf's.
	Name string `json:"name"`
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
	// Ino is the inode, or 0 before the placeholder is made.
	Ino uint64 `json:"ino,omitempty"`
}

// ErrChanged means that a placeholder was changed. It then belongs to the user
// and stays.
var ErrChanged = errors.New("placeholder was changed")

// shape is a placeholder's type and content.
type shape struct {
	dir     bool
	content string
}

// shapeOf is the closed list of placeholders: a cleanup list can't contain
// others, or other content. commondir must not be empty: git reads a path from
// it, relative to its directory.
func shapeOf(name string) (shape, bool) {
	switch name {
	case ".git", ".git/hooks", ".git/info", ".git/modules", ".git/worktrees":
		return shape{dir: true}, true
	case ".git/config", ".git/config.worktree":
		return shape{}, true
	case ".git/commondir":
		return shape{content: ".\n"}, true
	}
	return shape{}, false
}

// IsReservable reports whether the name is in the closed list.
func (p Placeholder) IsReservable() bool {
	_, ok := shapeOf(p.Name)
	return ok
}

func (p Placeholder) validateFields() error {
	if _, ok := shapeOf(p.Name); !ok {
		return fmt.Errorf("placeholder name %q is not on the list", p.Name)
	}
	if !filepath.IsAbs(p.Workspace) || filepath.Clean(p.Workspace) != p.Workspace || strings.ContainsRune(p.Workspace, 0) {
		return fmt.Errorf("placeholder workspace %q is not an absolute path", p.Workspace)
	}
	if p.WorkspaceIno == 0 || p.UID < 0 || p.GID < 0 {
		return errors.New("placeholder without its workspace's inode and owner")
	}
	return nil
}

// beneath are the openat2 flags below a directory that others can write to: no
// symlinks, no mounts, no way out.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// Make makes the placeholder in the workspace as its owner, and returns it with
// its inode. It returns fs.ErrExist if the name is taken.
func (p Placeholder) Make(workspace *os.File) (Placeholder, error) {
	what, ok := shapeOf(p.Name)
	if !ok {
		return p, fmt.Errorf("make placeholder: %w", p.validateFields())
	}
	parent, err := openParent(workspace, p.Name)
	if err != nil {
		return p, fmt.Errorf("make placeholder %s: %w", p.Name, err)
	}
	defer unix.Close(parent)
	err = actAsOwner(p.UID, p.GID, func() error { return what.makeAt(parent, path.Base(p.Name)) })
	if err != nil {
		return p, fmt.Errorf("make placeholder %s as uid %d: %w", p.Name, p.UID, err)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(parent, path.Base(p.Name), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return p, fmt.Errorf("make placeholder %s: %w", p.Name, err)
	}
	p.Ino = st.Ino
	return p, nil
}

func (s shape) makeAt(parent int, name string) error {
	if s.dir {
		return unix.Mkdirat(parent, name, 0o755)
	}
	fd, err := unix.Openat(parent, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.WriteString(s.content)
	return errors.Join(err, f.Close())
}

// findInode returns the inode of the file with the placeholder's name.
func (p Placeholder) findInode(workspace *os.File) (uint64, error) {
	parent, err := openParent(workspace, p.Name)
	if err != nil {
		return 0, err
	}
	defer unix.Close(parent)
	var st unix.Stat_t
	if err := unix.Fstatat(parent, path.Base(p.Name), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return 0, err
	}
	return st.Ino, nil
}

// Remove removes the placeholder. It returns [ErrChanged] if it was changed,
// and fs.ErrNotExist if it is gone.
func (p Placeholder) Remove(workspace *os.File) error {
	what, ok := shapeOf(p.Name)
	if !ok {
		return fmt.Errorf("remove placeholder: %w", p.validateFields())
	}
	parent, err := openParent(workspace, p.Name)
	if err != nil {
		return fmt.Errorf("remove placeholder %s: %w", p.Name, err)
	}
	defer unix.Close(parent)
	name, flags := path.Base(p.Name), 0
	if err := p.checkUnchanged(parent, name, what); err != nil {
		return fmt.Errorf("remove placeholder %s: %w", p.Name, err)
	}
	if what.dir {
		flags = unix.AT_REMOVEDIR // fails unless the directory is empty
	}
	err = unix.Unlinkat(parent, name, flags)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTDIR) {
		err = ErrChanged
	}
	if err != nil {
		return fmt.Errorf("remove placeholder %s: %w", p.Name, err)
	}
	return nil
}

func (p Placeholder) checkUnchanged(parent int, name string, what shape) error {
	var st unix.Stat_t
	if err := unix.Fstatat(parent, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if p.Ino != 0 && st.Ino != p.Ino {
		return ErrChanged
	}
	switch kind := st.Mode & unix.S_IFMT; {
	case what.dir && kind == unix.S_IFDIR:
		return nil // rmdir fails unless it is empty
	case what.dir || kind != unix.S_IFREG || st.Size != int64(len(what.content)):
		return ErrChanged
	}
	fd, err := unix.Openat(parent, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, int64(len(what.content))+1))
	if err != nil {
		return err
	}
	if string(data) != what.content {
		return ErrChanged
	}
	return nil
}

// removeByPath removes the placeholder from a dead session's workspace. It
// returns fs.ErrNotExist if the path is another directory now.
func (p Placeholder) removeByPath() error {
	fd, err := unix.Openat2(unix.AT_FDCWD, p.Workspace, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return fs.ErrNotExist
	}
	if err != nil {
		return fmt.Errorf("open workspace %s: %w", p.Workspace, err)
	}
	workspace := os.NewFile(uintptr(fd), p.Workspace)
	defer func() { _ = workspace.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("open workspace %s: %w", p.Workspace, err)
	}
	if st.Dev != p.WorkspaceDev || st.Ino != p.WorkspaceIno {
		return fs.ErrNotExist
	}
	return p.Remove(workspace)
}

func openParent(workspace *os.File, name string) (int, error) {
	return openBeneath(int(workspace.Fd()), path.Dir(name))
}

// openBeneath opens a directory below dir as a base for other calls.
func openBeneath(dir int, name string) (int, error) {
	return unix.Openat2(dir, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: beneath,
	})
}

// actAsOwner calls do on a thread with the file system identity of uid and gid:
// new files belong to them from the start, and do can't make what they
// couldn't. Only root needs and can do that; other users act as themselves.
func actAsOwner(uid, gid int, do func() error) error {
	if os.Geteuid() != 0 || uid == 0 && gid == 0 {
		return do()
	}
	result := make(chan error, 1)
	go func() {
		// Never unlocked, so the thread ends with the goroutine. Setfsgid comes
		// first, while the thread may.
		runtime.LockOSThread()
		if _, err := unix.SetfsgidRetGid(gid); err != nil {
			result <- err
			return
		}
		if _, err := unix.SetfsuidRetUid(uid); err != nil {
			result <- err
			return
		}
		if now, err := unix.SetfsuidRetUid(-1); err != nil || now != uid {
			result <- fmt.Errorf("change file system identity to uid %d: %w", uid, unix.EPERM)
			return
		}
		result <- do()
	}()
	return <-result
}
