package workmount

import (
	"fmt"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A linked worktree (git-worktree(1)) has a .git file with the path of its
// directory in a repository elsewhere. That repository is mounted read-only in
// the container, and the .git file is covered by one that names the mount, so
// git can read.
const (
	// repositoryTarget is the repository's mount point.
	repositoryTarget = "/.caisson/git"
	// worktreeDir contains the covering .git file, below Options.Dir.
	worktreeDir = "worktree"
)

// worktree is the repository of a linked worktree.
type worktree struct {
	common string // the repository
	name   string // the worktree's directory in it: worktrees/NAME
}

// linkedWorktree reports whether gitdir belongs to a linked worktree at base.
// The repository must confirm it: otherwise a .git file could name any
// directory of the host.
func linkedWorktree(base, gitdir string) (worktree, bool) {
	back, err := readOutside(filepath.Join(gitdir, "gitdir"))
	if err != nil || filepath.Base(back) != gitName || realPrefix(filepath.Dir(back)) != base {
		return worktree{}, false
	}
	up, err := readOutside(filepath.Join(gitdir, "commondir"))
	if err != nil {
		return worktree{}, false
	}
	if !filepath.IsAbs(up) {
		up = filepath.Join(gitdir, up)
	}
	common, err := filepath.EvalSymlinks(up)
	if err != nil {
		return worktree{}, false
	}
	w := worktree{common: common, name: path.Join("worktrees", filepath.Base(gitdir))}
	if filepath.Join(common, w.name) != gitdir {
		return worktree{}, false
	}
	if inside, err := filepath.Rel(base, common); err == nil && filepath.IsLocal(inside) {
		return worktree{}, false // commands can write there
	}
	if _, err := readOutside(filepath.Join(common, "HEAD")); err != nil {
		return worktree{}, false
	}
	return w, true
}

// readOutside reads a small regular file of the host, without line ends.
func readOutside(name string) (string, error) {
	f, err := os.OpenFile(name, unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	return readPath(f)
}

// linkWorktrees covers the .git file of a linked worktree and adds its
// repository.
func linkWorktrees(p *Mounts, list []guard, decided identityPlan) ([]guard, error) {
	for i, g := range list {
		if g.worktree.common == "" {
			continue
		}
		dir, err := p.cleanup.makeDir(worktreeDir, 0o755)
		place := filepath.Join(dir, "git")
		if err == nil {
			err = os.WriteFile(place, []byte("gitdir: "+path.Join(repositoryTarget, g.worktree.name)+"\n"), 0o644)
		}
		if err == nil && os.Geteuid() == 0 {
			err = os.Chown(place, decided.files.uid, decided.files.gid) // git trusts only its own user's repositories
		}
		if err != nil {
			return nil, fmt.Errorf("cover %s: %w", g.name, err)
		}
		list[i].from = place
		return append(list, guard{from: g.worktree.common, target: repositoryTarget, readOnly: true}), nil
	}
	return list, nil
}
