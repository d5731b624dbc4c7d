//go:build !linux

package workmount

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/sandbox"
)

// The names that a host reads in a workspace on its own account.
const gitName, mercurialName, ownConfig = ".git", ".hg", ".caisson"

// LayoutOf returns the current layout of a workspace: its guards are an
// existing .git, .hg and .caisson. It returns an error if the workspace can't
// be found.
func LayoutOf(w sandbox.Workspace, git sandbox.GitMode) (Layout, error) {
	path, err := filepath.EvalSymlinks(w.Path)
	if err != nil {
		return Layout{}, fmt.Errorf("resolve workspace: %w", err)
	}
	l := Layout{dir: fmt.Sprintf("%q %s", path, git)}
	for _, name := range []string{".", gitName, mercurialName, ownConfig} {
		if info, err := os.Lstat(filepath.Join(path, name)); err == nil {
			l.guards = append(l.guards, guardState{name: name, fileID: fmt.Sprintf("%+v", info.Sys())})
		}
	}
	return l, nil
}
