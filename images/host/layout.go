package host

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
)

// DefaultUID and DefaultGID are the commands' default identity in account
// files: the sandbox contract's CommandUID and CommandGID.
const (
	DefaultUID = 10001
	DefaultGID = 10001
)

// mountPoints are the directories that backends mount on. Their modes matter
// because Docker's tmpfs takes the mount point's mode.
func mountPoints() []images.Dir {
	return []images.Dir{
		{Path: "/.caisson", Mode: 0o755},
		{Path: "/.caisson/git", Mode: 0o755}, // a linked worktree's repository
		{Path: "/dev", Mode: 0o755},
		{Path: "/etc", Mode: 0o755},
		{Path: "/home", Mode: 0o755},
		{Path: "/home/agent", Mode: 0o755},
		{Path: "/proc", Mode: 0o755},
		{Path: "/root", Mode: 0o755},
		{Path: "/run", Mode: 0o755},
		{Path: "/sys", Mode: 0o755},
		{Path: "/tmp", Mode: 0o1777},
		{Path: "/var", Mode: 0o755},
		{Path: "/workspace", Mode: 0o755},
	}
}

// mountFiles are the files that backends mount on: the guest's binary, and the
// nonce that proves which machine the mounted directories belong to.
func mountFiles() []images.File {
	return []images.File{{Path: "/.caisson/guest"}, {Path: "/.caisson/nonce"}}
}

// sealLayout sorts the lists, adds the parents of every mount point and sets
// the digest. versions are facts about the content that the layout doesn't
// show.
func sealLayout(r *images.RootFS, versions []string) error {
	dirs := map[string]uint32{}
	for _, d := range r.Dirs {
		dirs[d.Path] = d.Mode
	}
	for _, b := range r.Binds {
		if b.IsDir {
			addDir(dirs, r.Binds, b.Path)
		}
	}
	for _, p := range listPaths(r) {
		addDir(dirs, r.Binds, path.Dir(p))
	}
	r.Dirs = r.Dirs[:0]
	for p, mode := range dirs {
		r.Dirs = append(r.Dirs, images.Dir{Path: p, Mode: mode})
	}
	slices.SortFunc(r.Dirs, func(a, b images.Dir) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(r.Symlinks, func(a, b images.Symlink) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(r.Files, func(a, b images.File) int { return strings.Compare(a.Path, b.Path) })
	slices.SortFunc(r.Binds, func(a, b images.Bind) int { return strings.Compare(a.Path, b.Path) })
	slices.Sort(r.Masks)
	data, err := json.Marshal([]any{"layout 1", r.Reference, r.Dirs, r.Symlinks, r.Files, r.Binds, r.Masks, versions})
	if err != nil {
		return err
	}
	r.Digest = digest.Of(data)
	return nil
}

func listPaths(r *images.RootFS) []string {
	var all []string
	for _, l := range r.Symlinks {
		all = append(all, l.Path)
	}
	for _, f := range r.Files {
		all = append(all, f.Path)
	}
	for _, b := range r.Binds {
		all = append(all, b.Path)
	}
	return all
}

// addDir adds p and its parents, except those that a bind provides.
func addDir(dirs map[string]uint32, binds []images.Bind, p string) {
	for ; p != "/" && p != "."; p = path.Dir(p) {
		if _, ok := dirs[p]; !ok && !isCovered(binds, p) {
			dirs[p] = 0o755
		}
	}
}

func isCovered(binds []images.Bind, p string) bool {
	return slices.ContainsFunc(binds, func(b images.Bind) bool { return b.IsDir && isBelow(p, b.Path) })
}

func isBelow(p, dir string) bool {
	return strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
