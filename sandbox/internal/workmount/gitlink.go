package workmount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
)

// linkGuards returns the guards of a .git file, as linked worktrees and
// submodules have it: one line with the path of the repository. A repository
// elsewhere is out of the commands' reach. One in the workspace could be
// written by them, so it is guarded too. Below a subdirectory it can't be
// guarded, because the subdirectory could be renamed.
func linkGuards(workspace *os.File, base string) (list []guard, lost []string, err error) {
	content, err := readSmall(workspace, gitName)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", gitName, err)
	}
	list = []guard{{name: gitName, readOnly: true}}
	lost = []string{"the workspace's repository lies elsewhere and is not mounted: git does not work in the sandbox"}
	target, ok := strings.CutPrefix(content, "gitdir:")
	if !ok {
		return list, lost, nil // git refuses such a file too
	}
	target = strings.TrimSpace(target)
	if !filepath.IsAbs(target) {
		target = filepath.Join(base, target)
	}
	inside, err := filepath.Rel(base, realPrefix(target))
	if err != nil || !filepath.IsLocal(inside) {
		if w, ok := linkedWorktree(base, realPrefix(target)); ok {
			list[0].worktree, lost = w, nil
		}
		return list, lost, nil // no relative path: elsewhere
	}
	kind, err := kindOf(workspace, inside)
	if err != nil || !isBindable(kind) || inside == "." || strings.ContainsRune(inside, filepath.Separator) {
		return nil, nil, fmt.Errorf("%w: %s leads to %q in the workspace, where it can't be protected: make .git a directory", sandbox.ErrInvalid, gitName, inside)
	}
	if err := errors.Join(checkCommonDir(workspace, inside), checkSymlinks(workspace, base, inside)); err != nil {
		return nil, nil, err
	}
	return append(list, guard{name: inside, readOnly: true}), nil, nil
}

// realPrefix resolves the symlinks in a path as far as it exists: if the
// existing part is in the workspace, commands could create the rest.
func realPrefix(target string) string {
	target = filepath.Clean(target)
	rest := ""
	for at := target; ; at = filepath.Dir(at) {
		if real, err := filepath.EvalSymlinks(at); err == nil {
			return filepath.Join(real, rest)
		}
		if at == filepath.Dir(at) {
			return target
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
}
