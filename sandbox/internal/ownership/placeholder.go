package ownership

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// Placeholder is an empty file or directory that Caisson puts into a workspace
// to reserve a name that a host would execute or obey, so that it can be bound
// on itself, read-only. It belongs to the workspace's owner, and is removed at
// the end if it is unchanged.
type Placeholder struct {
	// Workspace is the workspace's absolute path without symlinks, for another
	// process that has to find it. WorkspaceDev and WorkspaceIno identify the
	// directory.
	Workspace    string `json:"workspace"`
	WorkspaceDev uint64 `json:"workspace_dev"`
	WorkspaceIno uint64 `json:"workspace_ino"`
	// Name is relative to the workspace and in a closed list: .git and the
	// entries of a repository that git obeys or executes.
	Name string `json:"name"`
	// UID and GID are the owner.
	UID int `json:"uid"`
	GID int `json:"gid"`
	// Ino is the inode; 0 before the placeholder is made.
	Ino uint64 `json:"ino,omitempty"`
}

// ErrChanged is the error for a placeholder that was changed. It belongs to the
// user then, and stays.
var ErrChanged = errors.New("placeholder was changed")

// shape is the type and content of a placeholder.
type shape struct {
	dir     bool
	content string
}

// shapeOf returns the shape of the placeholder with a name. It is the closed
// list of placeholders: a cleanup list can't contain others, or other content.
// "commondir" must not be empty: git reads a path from it, relative to its
// directory.
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
