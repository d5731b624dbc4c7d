package ownership

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// Placeholder is an empty file or folder that Caisson puts into a workspace to
// reserve a name that a host would execute or obey, so that it can be bound on
// itself, read-only. It belongs to the workspace's owner, and is removed at
// the end if it is still what was put there.
type Placeholder struct {
	// Workspace is the workspace's absolute path without links, for another
	// process that has to find it; WorkspaceDev and WorkspaceIno say that it
	// is the same folder.
	Workspace    string `json:"workspace"`
	WorkspaceDev uint64 `json:"workspace_dev"`
	WorkspaceIno uint64 `json:"workspace_ino"`
	// Name is relative to the workspace, and one of a closed list: .git and the
	// entries of a repository that git obeys or runs.
	Name string `json:"name"`
	// UID and GID own it.
	UID int `json:"uid"`
	GID int `json:"gid"`
	// Ino is its inode; 0 as long as it is not made.
	Ino uint64 `json:"ino,omitempty"`
}

// ErrChanged says that a placeholder is no longer what was put there. It is
// the user's now, and stays.
var ErrChanged = errors.New("placeholder was changed")

// shape is what a placeholder of a given name is.
type shape struct {
	dir     bool
	content string
}

// placeholderShape is the closed list of placeholders: a cleanup list can't name
// another one, nor another content. "commondir" must not be empty: git reads a
// path from it, relative to the folder it is in.
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

// Known says whether its name is one that may be reserved.
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
