package workmount

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// guard is a file or directory in the workspace to bind on itself.
type guard struct {
	name     string // relative to the workspace
	readOnly bool
	// reserve means that a placeholder has to be made first.
	reserve bool
	// isMount means that it is a mount already.
	isMount bool
	// worktree is set for the .git file of a linked worktree.
	worktree worktree
	// from, if set, is a host path to bind instead, and target a mount point
	// outside the workspace.
	from, target string
}

// open opens the guarded file in root, or the one to bind instead.
func (g guard) open(root *os.File) (*os.File, error) {
	switch {
	case g.from != "":
		return os.OpenFile(g.from, unix.O_PATH|unix.O_NOFOLLOW, 0)
	case g.isMount:
		return openBeneath(root, g.name, unix.O_PATH, 0)
	}
	return openBelow(root, g.name, unix.O_PATH)
}

// mountPoint returns the guard's mount point if root's is target.
func (g guard) mountPoint(target string) string {
	return cmp.Or(g.target, path.Join(target, g.name))
}

// Names that tools on the host read in a workspace by themselves.
const (
	gitName       = ".git"
	mercurialName = ".hg"
	ownConfig     = ".caisson"
)

// gitExecutable are the entries of a repository that git obeys or executes:
// configuration, hooks, and files that name other configuration or hooks.
var gitExecutable = [...]string{"config", "config.worktree", "commondir", "hooks", "info", "modules", "worktrees"}

// listGuards returns the guards, parents first, and the missing protections.
func listGuards(w sandbox.Workspace, base string, mode sandbox.GitMode) (list []guard, lost []string, err error) {
	workspace := w.Dir
	kind, err := kindOf(workspace, gitName)
	switch {
	case errors.Is(err, unix.ENOENT):
		list, lost, err = absentGuards(workspace)
	case err != nil:
		return nil, nil, fmt.Errorf("examine %s: %w", gitName, err)
	case kind == unix.S_IFDIR:
		list, lost, err = directoryGuards(workspace, base, mode)
	case kind == unix.S_IFREG:
		list, lost, err = linkGuards(workspace, base)
	default:
		err = unprotectableError(gitName)
	}
	if err != nil {
		return nil, nil, err
	}
	for _, name := range []string{mercurialName, ownConfig} {
		own, err := existingGuards(workspace, name)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, own...)
	}
	below, notBelow := nestedGuards(workspace, base, mode, w.Repositories)
	files, notFiles := fileGuards(workspace, w.Privileged)
	return slices.Concat(list, below, files), slices.Concat(lost, notBelow, notFiles), nil
}

// existingGuards guards a Mercurial repository or the workspace's configuration
// if it exists. These names are not reserved: one that appears during a session
// is quarantined or ignored, and an empty .hg would mislead build tools, which
// recognise a repository by its name.
func existingGuards(workspace *os.File, name string) ([]guard, error) {
	switch kind, err := kindOf(workspace, name); {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("examine %s: %w", name, err)
	case !isBindable(kind):
		return nil, unprotectableError(name)
	}
	if name == mercurialName {
		if second, err := secondName(workspace, name, mercurialObeyed); err != nil || second != "" {
			return nil, errors.Join(err, twoNames(second))
		}
	}
	return []guard{{name: name, readOnly: true}}, nil
}

// absentGuards reserves the name of a missing repository, unless one above the
// workspace is in use, which an empty .git would hide.
func absentGuards(workspace *os.File) (list []guard, lost []string, err error) {
	inside, err := inRepository(workspace)
	if err != nil {
		return nil, nil, fmt.Errorf("look for a repository above the workspace: %w", err)
	}
	if inside {
		return nil, []string{"the workspace lies in a repository, so that a .git of its own is not reserved"}, nil
	}
	return []guard{{name: gitName, readOnly: true, reserve: true}}, nil, nil
}

func isBindable(kind uint32) bool { return kind == unix.S_IFDIR || kind == unix.S_IFREG }

func unprotectableError(name string) error {
	return fmt.Errorf("%w: %s is a symlink or a special file, which can't be protected: replace it by what it leads to", sandbox.ErrInvalid, name)
}

func directoryGuards(workspace *os.File, base string, mode sandbox.GitMode) (list []guard, lost []string, err error) {
	if err := checkCommonDir(workspace, gitName); err != nil {
		return nil, nil, err
	}
	if second, err := secondName(workspace, gitName, gitExecutable[:]); err != nil || second != "" {
		return nil, nil, errors.Join(err, twoNames(second))
	}
	if mode != sandbox.GitCommit {
		return []guard{{name: gitName, readOnly: true}}, lostConfigured(workspace, base, gitName), checkSymlinks(workspace, base, gitName)
	}
	list = []guard{{name: gitName}}
	for _, entry := range gitExecutable {
		name := path.Join(gitName, entry)
		kind, err := kindOf(workspace, name)
		missing := errors.Is(err, unix.ENOENT)
		switch {
		case err != nil && !missing:
			return nil, nil, fmt.Errorf("examine %s: %w", name, err)
		case !missing && !isBindable(kind):
			return nil, nil, unprotectableError(name)
		}
		list = append(list, guard{name: name, readOnly: true, reserve: missing})
	}
	return list, append(lostConfigured(workspace, base, gitName), lostRebase), nil
}

// lostRebase is lost in commit mode: if these directories were reserved, git
// would believe that it is in the middle of a rebase.
const lostRebase = "commands can leave an unfinished rebase or sequence in .git, whose steps git runs when the user continues it: abort it instead"

// checkSymlinks refuses a repository in which a file that git obeys is a
// symlink to a place that commands can write. The user may have symlinks that
// leave the workspace or stay in the read-only repository.
func checkSymlinks(workspace *os.File, base, repo string) error {
	for _, entry := range gitExecutable {
		name := path.Join(repo, entry)
		kind, err := kindOf(workspace, name)
		if errors.Is(err, unix.ENOENT) || err == nil && isBindable(kind) {
			continue
		}
		if err != nil {
			return fmt.Errorf("examine %s: %w", name, err)
		}
		if kind != unix.S_IFLNK {
			return unprotectableError(name)
		}
		leads := symlinkTarget(workspace, base, name)
		inside, err := filepath.Rel(base, leads)
		if err == nil && filepath.IsLocal(inside) && inside != repo && !strings.HasPrefix(inside, repo+"/") {
			return fmt.Errorf("%w: %s leads to %s, which commands can write: replace it by what it leads to", sandbox.ErrInvalid, name, inside)
		}
	}
	return nil
}

// symlinkTarget returns the target of a symlink in the workspace, resolved as
// far as it exists.
func symlinkTarget(workspace *os.File, base, name string) string {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(workspace.Fd()), name, buf)
	if err != nil {
		return realPrefix(path.Join(base, name))
	}
	target := string(buf[:n])
	if !filepath.IsAbs(target) {
		target = path.Join(base, path.Dir(name), target)
	}
	return realPrefix(target)
}

// checkCommonDir refuses a repository whose configuration is elsewhere, where
// commands may be able to write.
func checkCommonDir(workspace *os.File, repo string) error {
	name := path.Join(repo, "commondir")
	content, err := readSmall(workspace, name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.ELOOP) {
		return unprotectableError(name)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if content != "." {
		return fmt.Errorf("%w: %s makes git read its configuration from %q: remove the file", sandbox.ErrInvalid, name, content)
	}
	return nil
}

// inRepository reports whether a directory above the workspace has a .git.
func inRepository(workspace *os.File) (bool, error) {
	dir := int(workspace.Fd())
	up, err := listAncestors(dir)
	if err != nil {
		return false, err
	}
	for i := 1; i < len(up); i++ {
		var st unix.Stat_t
		if unix.Fstatat(dir, strings.Repeat("../", i)+gitName, &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
			return true, nil
		}
	}
	return false, nil
}

// linkGuards returns the guards of a .git file, which linked worktrees and
// submodules have: one line with the path of the repository. Commands can't
// reach a repository outside the workspace. One at the workspace's top is
// guarded too. Deeper ones are refused, because commands could rename a
// directory above them.
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
		return list, lost, nil // elsewhere
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

// realPrefix resolves the symlinks in a path as far as it exists: if that part
// is in the workspace, commands could create the rest.
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

// maxConfig bounds what is read of a repository's configuration, in bytes.
const maxConfig = 256 << 10

// lostConfigured describes what the repository's own configuration makes git
// execute in places that commands can write: a directory of hooks, as husky
// configures it (core.hooksPath), or a file system monitor. `git status`
// executes both. It doesn't look at other keys that make git execute something.
func lostConfigured(workspace *os.File, base, repo string) []string {
	f, err := openBelow(workspace, path.Join(repo, "config"), unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil // missing, or elsewhere
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfig))
	if err != nil {
		return nil
	}
	var lost []string
	for _, key := range []string{"hooksPath", "fsmonitor"} {
		value := coreValue(string(text), key)
		if program, _, _ := strings.Cut(value, " "); key == "fsmonitor" && strings.Contains(program, "/") {
			value = program
		} else if key == "fsmonitor" {
			continue // a switch, or a program of PATH
		}
		if inside := pathInWorkspace(base, repo, value); inside != "" {
			lost = append(lost, fmt.Sprintf("git on this machine runs what is in %q (core.%s of the repository), which commands can write: look at it before you use git", inside, key))
		}
	}
	return lost
}

// coreValue returns the last value of a key in the section core
// (git-config(1)), or "".
func coreValue(config, key string) (value string) {
	section := ""
	for line := range strings.Lines(config) {
		line = strings.TrimSpace(line)
		if head, rest, ok := strings.Cut(line, "]"); ok && strings.HasPrefix(head, "[") {
			section, line = strings.TrimSpace(head[1:]), strings.TrimSpace(rest)
		}
		name, text, ok := strings.Cut(line, "=")
		if !ok || !strings.EqualFold(section, "core") || !strings.EqualFold(strings.TrimSpace(name), key) {
			continue
		}
		value = strings.TrimSpace(text)
		if quoted, ok := strings.CutPrefix(value, `"`); ok {
			value, _, _ = strings.Cut(quoted, `"`)
		} else if i := strings.IndexAny(value, "#;"); i >= 0 {
			value = strings.TrimSpace(value[:i])
		}
	}
	return value
}

// pathInWorkspace returns the path in the workspace that value leads to, or ""
// if it leads out of the workspace or into the repository.
func pathInWorkspace(base, repo, value string) string {
	if value == "" || strings.HasPrefix(value, "~") {
		return ""
	}
	if !filepath.IsAbs(value) {
		value = filepath.Join(base, value)
	}
	inside, err := filepath.Rel(base, realPrefix(value))
	if err != nil || !filepath.IsLocal(inside) || inside == repo || strings.HasPrefix(inside, repo+"/") {
		return ""
	}
	return inside
}
