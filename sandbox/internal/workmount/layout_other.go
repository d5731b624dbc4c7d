//go:build !linux

package workmount

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/caisson-run/caisson/sandbox"
)

// Layout says, as a text to compare, how a workspace would be mounted now: the
// guards are an existing .git and .caisson.
func Layout(w sandbox.Workspace, git sandbox.GitMode) (string, error) {
	path, err := filepath.EvalSymlinks(w.Path)
	if err != nil {
		return "", fmt.Errorf("resolve workspace: %w", err)
	}
	text := fmt.Sprintf("%q %s", path, git)
	for _, name := range []string{".", ".git", ".caisson"} {
		if info, err := os.Lstat(filepath.Join(path, name)); err == nil {
			text += fmt.Sprintf("\n%s %+v", name, info.Sys())
		}
	}
	return text, nil
}
