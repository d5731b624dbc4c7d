package overlay

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools/workspace"
)

// The reasons for which changes are left out of an apply.
const (
	leftSpecial = "it is a pipe, a socket or a device"
	leftGit     = "a git of the host obeys or runs it"
	leftGitDir  = "the repository's own directory was moved, removed or replaced"
	leftGitFile = "it names the repository that a git of the host obeys"
	leftCaisson = "it is Caisson's own configuration"
	leftLinkOut = "it is a symlink that leads out of the workspace"
)

// gitObeyed are the entries of a repository that its owner's git obeys or runs
// (gitrepository-layout(5), git-config(1), githooks(5), and the todo lists of
// git-rebase(1), git-am(1) and git-cherry-pick(1), which hold commands).
var gitObeyed = []string{
	"config", "config.worktree", "commondir", "gitdir", "hooks", "info", "worktrees", "remotes", "branches",
	"rebase-merge", "rebase-apply", "sequencer",
}

// gitKept are entries of info without configuration: git gc and git repack
// write them.
var gitKept = []string{"info/refs", "info/packs", "info/commit-graph"}

// lookupFunc reports whether a path exists in the upper layer, and in the
// original directory.
type lookupFunc func(path string) (upper, lower bool)

// markLeftOut marks the changes that are not applied though they have no
// conflict. The function linkAt returns the targets of symlinks.
func (s *Changes) markLeftOut(lookUp lookupFunc, linkAt func(path string) (string, bool)) {
	replaced := s.findReplacedRepositories()
	repos := bareRepositories{lookUp: lookUp, known: map[string]bool{}}
	for i := range s.List {
		c := &s.List[i]
		switch {
		case isSpecial(c.Now) && c.Kind != Mode:
			c.LeftOut = leftSpecial
		case c.Path == ".caisson" || strings.HasPrefix(c.Path, ".caisson/"):
			c.LeftOut = leftCaisson
		case isWithin(c.Path, replaced):
			c.LeftOut, c.Git = leftGitDir, true
		default:
			c.LeftOut = findGitReason(c, repos)
			c.Git = c.LeftOut != ""
		}
		if c.Now != workspace.TypeSymlink || c.LeftOut != "" && !c.Git || !workspace.SymlinkEscapes(c.Path, c.Target, linkAt) {
			continue
		}
		c.LinkOut = true
		if c.LeftOut == "" {
			c.LeftOut = leftLinkOut + ", to " + quote(c.Target)
		}
	}
}

// isSpecial reports whether a type is a pipe, a socket, a device or unknown.
func isSpecial(t workspace.Type) bool {
	switch t {
	case workspace.TypeFIFO, workspace.TypeSocket, workspace.TypeDevice, workspace.TypeOther:
		return true
	}
	return false
}

// findGitReason returns the reason for which a change could make a host's git
// do something, or "".
func findGitReason(c *Change, repos bareRepositories) string {
	names := strings.Split(c.Path, "/")
	for i, name := range names {
		if !isGit(name) {
			continue
		}
		if i == len(names)-1 {
			if c.Now == workspace.TypeDir || c.Now == "" && c.Was == workspace.TypeDir {
				return ""
			}
			return leftGitFile
		}
		// Git creates no symlinks in a repository. One could lead to a file
		// that git obeys.
		if isObeyed(names[i+1:]) || c.Now == workspace.TypeSymlink {
			return leftGit
		}
	}
	for i := range names {
		switch {
		case i > 0 && isGit(names[i-1]):
		case isObeyed(names[i:]) && repos.isRepository(joinNames(names[:i])):
			return leftGit
		case slices.Contains(repositorySigns, names[i]) && repos.completesRepository(joinNames(names[:i]), names[i]):
			return leftGitFile
		}
	}
	return ""
}

// joinNames returns the path of a directory from its names.
func joinNames(names []string) string {
	if len(names) == 0 {
		return "."
	}
	return strings.Join(names, "/")
}

// isGit reports whether a name is .git, even on file systems that ignore case.
func isGit(name string) bool { return strings.EqualFold(name, ".git") }

// isGuarded reports whether commands in bind mode may not write to a path. A
// second name of such a file, elsewhere, would let them.
func isGuarded(path string) bool {
	return slices.ContainsFunc(strings.Split(path, "/"), func(name string) bool {
		return isGit(name) || strings.EqualFold(name, ".caisson")
	})
}

// isObeyed reports whether git obeys a path in a repository. Submodules are
// below modules, and their names may contain slashes.
func isObeyed(rest []string) bool {
	if strings.EqualFold(rest[0], "modules") {
		for i := 1; i < len(rest); i++ {
			if isObeyed(rest[i:]) {
				return true
			}
		}
		return false
	}
	if !slices.ContainsFunc(gitObeyed, func(name string) bool { return strings.EqualFold(name, rest[0]) }) {
		return false
	}
	return !slices.Contains(gitKept, strings.Join(rest, "/"))
}

// isWithin reports whether a path is in one of the directories, or is one of
// them.
func isWithin(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") })
}

// findReplacedRepositories returns the .git directories that were removed or
// replaced. Nothing in them is applied: one half would be neither the old
// repository nor the new one.
func (s *Changes) findReplacedRepositories() []string {
	var out []string
	for i := range s.List {
		c := &s.List[i]
		if isGit(base(c.Path)) && c.Was != "" && (c.Kind == Deleted && c.Was == workspace.TypeDir || c.Kind == Typed) {
			out = append(out, c.Path)
		}
	}
	return out
}

// repositorySigns are the names by which git recognizes a repository, apart
// from commondir, which git always obeys; see [isRepository].
var repositorySigns = []string{"HEAD", "objects", "refs"}

// isRepository reports whether git treats a directory as a repository
// (is_git_directory in setup.c). A commondir file may name another directory
// that holds objects and refs.
func isRepository(holds func(name string) bool) bool {
	return holds("HEAD") && (holds("commondir") || holds("objects") && holds("refs"))
}

// bareRepositories finds the directories that git treats as repositories
// because of their content.
type bareRepositories struct {
	lookUp lookupFunc
	known  map[string]bool
}

// isRepository reports whether a directory is a repository once the changes are
// applied.
func (b bareRepositories) isRepository(dir string) bool {
	is, ok := b.known[dir]
	if !ok {
		is = isRepository(func(name string) bool {
			upper, lower := b.lookUp(join(dir, name))
			return upper || lower
		})
		b.known[dir] = is
	}
	return is
}

// completesRepository reports whether sign, which is new in a directory that
// was no repository, makes it one with the configuration or hooks that it
// already contains.
func (b bareRepositories) completesRepository(dir, sign string) bool {
	was := func(name string) bool {
		_, lower := b.lookUp(join(dir, name))
		return lower
	}
	return b.isRepository(dir) && !was(sign) && !isRepository(was) && slices.ContainsFunc(gitObeyed, was)
}

// maxIndexBytes is the size up to which a git index is read: 64 MiB are half a
// million files.
const maxIndexBytes = 64 << 20

// isIndex reports whether a path names the index of a repository.
func isIndex(path string) bool { return base(path) == "index" && isGit(base(parent(path))) }

// hashIndex returns a hash of the names, modes, objects and flags in a git
// index. It ignores the metadata of files, which any "git status", and so any
// prompt, rewrites. It returns "" for an unknown format, for which the bytes
// are compared (gitformat-index(5); versions 2 and 3 with SHA-1 names are
// known).
func hashIndex(data []byte) string {
	const header, statBytes, modeAt, hashBytes = 12, 40, 24, 20
	if len(data) < header+hashBytes || !bytes.HasPrefix(data, []byte("DIRC")) {
		return ""
	}
	version, count := binary.BigEndian.Uint32(data[4:]), binary.BigEndian.Uint32(data[8:])
	if version != 2 && version != 3 {
		return ""
	}
	sum := sha256.New()
	rest := data[header : len(data)-hashBytes]
	for range count {
		fixed := statBytes + hashBytes + 2
		if len(rest) < fixed {
			return ""
		}
		flags := binary.BigEndian.Uint16(rest[fixed-2:])
		if flags&0x4000 != 0 { // an extended entry
			fixed += 2
		}
		end := -1
		if len(rest) > fixed {
			end = bytes.IndexByte(rest[fixed:], 0)
		}
		if end < 0 {
			return ""
		}
		sum.Write(rest[modeAt : modeAt+4])
		sum.Write(rest[statBytes : fixed+end+1]) // object, flags, name and its NUL
		size := (fixed + end + 8) &^ 7
		if len(rest) < size {
			return ""
		}
		rest = rest[size:]
	}
	// Extensions with a capital letter are caches. Others change the meaning of
	// the index.
	for len(rest) >= 8 {
		if rest[0] < 'A' || rest[0] > 'Z' {
			return ""
		}
		size := int64(binary.BigEndian.Uint32(rest[4:])) + 8
		if size > int64(len(rest)) {
			return ""
		}
		rest = rest[size:]
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// findRepository returns the .git directory that contains a path, or is that
// path.
func findRepository(path string) (string, bool) {
	at := 0
	for name := range strings.SplitSeq(path, "/") {
		if isGit(name) {
			return path[:at+len(name)], true
		}
		at += len(name) + 1
	}
	return "", false
}
