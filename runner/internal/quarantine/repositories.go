package quarantine

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// repositoriesTime is the only bound of a scan for repositories: some 100 million entries.
	repositoriesTime = 10 * time.Minute
	// maxRepositories and maxClosed bound what is kept about the original workspace.
	maxRepositories = 20_000
	maxClosed       = 10_000
)

// repositories are a workspace's repositories when a session begins, and what git or hg on the
// host would obey in them. The zero value knows nothing.
type repositories struct {
	// known are the fingerprints by path: of the directories .git and .hg, of files and
	// symlinks of these names, and of directories that are bare repositories. One is "" if
	// it could not be read in full or a mount protects the repository.
	known map[string]string
	// inodes are the inodes of the known repositories, by path.
	inodes map[string]uint64
	// obeyed are files elsewhere in the workspace that their configuration names.
	obeyed map[string]obeyedFile
	// scripts are configuration keys with commands in shell syntax.
	scripts []string
	// closed are the directories that could not be read.
	closed map[string]closedDirectory
	// unfinished are operations of the workspace's own repository that git can continue.
	unfinished map[string]bool
	// whole reports whether everything else was read.
	whole bool
	// entries counts the visited entries.
	entries int
}

// closedDirectory identifies an unreadable directory, and whether commands could access it.
type closedDirectory struct {
	inode    uint64
	mode     uint32
	uid, gid uint32
	changed  int64
}

// coversPath reports whether the scan saw everything on the way to p. Only then is an unknown
// repository there a new one.
func (r *repositories) coversPath(p string) bool {
	if !r.whole {
		return false
	}
	if len(r.closed) == 0 {
		return true
	}
	for _, dir := range parentDirs(p) {
		if _, closed := r.closed[dir]; closed {
			return false
		}
	}
	return true
}

// The marks of a directory that may be a bare repository.
const (
	markHead uint8 = 1 << iota
	markObjects
	markRefs
	markCommon
)

func markOf(name []byte) uint8 {
	switch string(name) {
	case "HEAD":
		return markHead
	case "objects":
		return markObjects
	case "refs":
		return markRefs
	case "commondir":
		return markCommon
	}
	return 0
}

// IsPart reports whether the names in a path allow the file to be part of a repository.
func IsPart(path string) bool {
	for name := range strings.SplitSeq(path, "/") {
		if isNamed(name, ".git", ".hg", ".caisson") || markOf([]byte(name)) != 0 {
			return true
		}
	}
	return false
}

// isBare reports whether git takes a directory with these entries for a repository
// (is_git_directory in setup.c). A commondir file can say where objects and refs are.
func isBare(marks uint8) bool {
	return marks&markHead != 0 && (marks&markCommon != 0 || marks&markObjects != 0 && marks&markRefs != 0)
}

// isBare reports whether git takes the directory dir for a repository.
func (s *scanner) isBare(ctx context.Context, dir string) bool {
	var marks uint8
	for _, name := range []string{"HEAD", "objects", "refs", "commondir"} {
		if _, err := s.reader.StatEntry(ctx, path.Join(dir, name)); err == nil {
			marks |= markOf([]byte(name))
		}
	}
	return isBare(marks)
}

type repositoryKind int

const (
	noRepository repositoryKind = iota
	aRepository
	// anObstacle is a .caisson that is neither a file nor a directory, so that no session
	// could begin there.
	anObstacle
)

func kindOfEntry(e *workspace.ScanEntry) repositoryKind {
	name := e.Name()
	if len(name) == 0 || name[0] != '.' || len(name) > len(".caisson") {
		return noRepository
	}
	switch s := string(name); {
	case isNamed(s, ".git", ".hg"):
		return aRepository
	case s == ".caisson" && e.Type != workspace.TypeDir && e.Type != workspace.TypeFile:
		return anObstacle
	}
	return noRepository
}

// findRepositories finds the repositories of a workspace as it is now, and keeps its directories
// in seen.
func findRepositories(ctx context.Context, s *scanner, git sandbox.GitMode, seen *workspace.SeenDirs) (*repositories, error) {
	r := &repositories{known: map[string]string{}, inodes: map[string]uint64{}, obeyed: map[string]obeyedFile{}, closed: map[string]closedDirectory{}, unfinished: map[string]bool{}, whole: true}
	var mu sync.Mutex
	var entries atomic.Int64
	add := func(p string) {
		mu.Lock()
		defer mu.Unlock()
		r.addRepository(p)
	}
	err := s.reader.Scan(ctx, ".", workspace.ScanOptions{
		Mounts: s.mounts, Since: seen, Parallel: true,
		Visit: func(e *workspace.ScanEntry) (uint8, string) {
			entries.Add(1)
			if kindOfEntry(e) != noRepository {
				add(e.Path())
				return 0, ""
			}
			return markOf(e.Name()), enterDirectory(e)
		},
		Leave: func(dir *workspace.ScanDirectory) {
			if isBare(dir.Marks) {
				add(dir.Path)
			}
		},
		Unread: func(dir string, _ error) {
			st, err := s.reader.StatEntry(ctx, dir)
			mu.Lock()
			defer mu.Unlock()
			r.addClosed(dir, st, err)
		},
	})
	if err != nil {
		return nil, err
	}
	s.entries += int(entries.Load())
	for _, p := range r.listPaths() {
		if st, err := s.reader.StatEntry(ctx, p); err == nil {
			r.inodes[p] = st.Inode
		}
		f := &fingerprint{}
		if s.protected == nil || !s.protected(p) {
			var err error
			if f, err = s.computeFingerprint(ctx, p, skippedEntries(p, git)...); err != nil {
				return nil, err
			}
			r.known[p] = f.hashLines()
		}
		if isNamed(path.Base(p), ".hg", ".caisson") {
			continue
		}
		if p == ".git" {
			// Its configuration is protected, but not the files that it names.
			f = &fingerprint{shallow: true}
			if err := s.addRepository(ctx, f, p); err != nil {
				return nil, err
			}
		}
		s.addObeyed(ctx, p, f.configs, r.obeyed)
	}
	for _, name := range gitUnfinished {
		p := path.Join(".git", name)
		if _, err := s.reader.StatEntry(ctx, p); err == nil {
			r.unfinished[p] = true
		}
	}
	r.entries = s.entries
	r.scripts = s.scripts
	if s.moreScripts > 0 {
		r.scripts = append(r.scripts, fmt.Sprintf("%d more", s.moreScripts))
	}
	return r, nil
}

func (r *repositories) addRepository(p string) {
	if len(r.known) >= maxRepositories {
		r.whole = false
		return
	}
	r.known[p] = ""
}

// addClosed adds a directory that could not be read. err is why st is unknown.
func (r *repositories) addClosed(dir string, st workspace.ScanStat, err error) {
	if err != nil || len(r.closed) >= maxClosed {
		r.whole = false
		return
	}
	r.closed[dir] = closedOf(st)
}

func enterDirectory(e *workspace.ScanEntry) string {
	if e.Type == workspace.TypeDir {
		return e.Path()
	}
	return ""
}

func closedOf(st workspace.ScanStat) closedDirectory {
	return closedDirectory{inode: st.Inode, mode: st.Mode, uid: st.UID, gid: st.GID, changed: st.ChangeTime.UnixNano()}
}

// isGuarded reports whether mounts protect an entry of the workspace: all of it or, with
// [sandbox.GitCommit], all but what ordinary work writes.
func isGuarded(p string) bool { return p == ".git" || p == ".hg" }

// skippedEntries returns the entries of a repository that its mounts protect from commands, so
// that any change is the user's.
func skippedEntries(p string, git sandbox.GitMode) []string {
	if p != ".git" || git != sandbox.GitCommit {
		return nil
	}
	return slices.Concat([]string{"config", "config.worktree", "commondir", "hooks", "info", "modules", "worktrees"}, gitUnfinished)
}

// listNested lists the repositories that the sandbox must guard separately, the topmost
// first.
func (r *repositories) listNested() []string {
	var out []string
	for p := range r.known {
		if !isGuarded(p) && path.Base(p) != ".caisson" && p != "." {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b string) int {
		if d := strings.Count(a, "/") - strings.Count(b, "/"); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return out
}

func (r *repositories) listPaths() []string { return slices.Sorted(maps.Keys(r.known)) }
