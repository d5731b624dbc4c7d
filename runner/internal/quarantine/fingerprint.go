package quarantine

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// fingerprintBytes bounds what is read of one file. Larger files are compared by their
	// metadata, which includes the change time that programs can't set.
	fingerprintBytes = 1 << 20
	// fingerprintEntries bounds the entries of a repository that count.
	fingerprintEntries = 200_000
	// linkedEntries bounds a directory that a repository's symlink leads to.
	linkedEntries = 10_000
)

// scanner reads repositories. Only open changes something.
type scanner struct {
	reader *workspace.Reader
	mounts []string
	// protected reports whether mounts protect a repository, so that only its configuration
	// needs reading; nil reads everything.
	protected func(p string) bool
	// open makes a closed directory accessible; nil leaves it closed.
	open func(dir string) (restore func(), err error)
	// entries counts the visited entries.
	entries int
	// scripts are configuration keys whose values are shell text; moreScripts counts the rest.
	scripts     []string
	moreScripts int
}

// fingerprint is a hash of everything in a repository that ordinary work doesn't change.
type fingerprint struct {
	lines [][sha256.Size]byte
	whole bool
	// configs are the configuration files found.
	configs []string
	// skip are entries of the repository that don't count. shallow skips the directories that
	// may differ.
	skip    []string
	shallow bool
	// hops counts the repositories on the way to this one.
	hops int
}

// maxHops bounds how far repositories that name each other are followed: a .git file can name a
// directory, and a commondir file another.
const maxHops = 3

func (f *fingerprint) addLine(format string, args ...any) {
	if len(f.lines) >= fingerprintEntries {
		f.whole = false
		return
	}
	f.lines = append(f.lines, sha256.Sum256(fmt.Appendf(nil, format, args...)))
}

// hashLines returns the hash, or "" if something could not be read.
func (f *fingerprint) hashLines() string {
	if !f.whole {
		return ""
	}
	slices.SortFunc(f.lines, func(a, b [sha256.Size]byte) int { return bytes.Compare(a[:], b[:]) })
	sum := sha256.New()
	for _, s := range f.lines {
		sum.Write(s[:])
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// computeFingerprint returns the fingerprint of a repository: of its directory, or of where a
// .git file or a symlink leads. Even an entry that may differ counts if it is a symlink, a
// special file or a hard link, which ordinary work doesn't make. It only fails if ctx ends.
func (s *scanner) computeFingerprint(ctx context.Context, repo string, skip ...string) (*fingerprint, error) {
	f := &fingerprint{whole: true, skip: skip}
	return f, s.addRepository(ctx, f, repo)
}

func (s *scanner) addRepository(ctx context.Context, f *fingerprint, repo string) error {
	st, err := s.reader.StatEntry(ctx, repo)
	if err != nil {
		f.whole = false
		return contextError(ctx)
	}
	if st.Type == workspace.TypeDir {
		return s.addDirectory(ctx, f, repo)
	}
	f.addLine("itself %s", s.describeEntry(ctx, f, repo, st))
	if dir, ok := s.readNamedDir(ctx, repo, "gitdir:"); ok && st.Type == workspace.TypeFile {
		return s.addNamed(ctx, f, dir)
	}
	return contextError(ctx)
}

func contextError(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (s *scanner) addDirectory(ctx context.Context, f *fingerprint, repo string) error {
	bare := !isNamed(path.Base(repo), ".git", ".hg")
	err := s.reader.Scan(ctx, repo, workspace.ScanOptions{
		Mounts: s.mounts, Open: s.open,
		Visit: func(e *workspace.ScanEntry) (uint8, string) {
			s.entries++
			p := e.Path()
			rest := p
			if repo != "." {
				rest = p[len(repo)+1:]
			}
			return 0, s.addEntry(ctx, f, e, p, rest, repo, bare)
		},
		Unread: func(string, error) { f.whole = false },
	})
	if err != nil {
		return err
	}
	if dir, ok := s.readNamedDir(ctx, path.Join(repo, "commondir"), ""); ok && dir != repo && !strings.HasPrefix(repo, dir+"/") {
		return s.addNamed(ctx, f, dir)
	}
	return contextError(ctx)
}

// addEntry adds one entry, and returns the directory to enter.
func (s *scanner) addEntry(ctx context.Context, f *fingerprint, e *workspace.ScanEntry, p, rest, repo string, bare bool) (enter string) {
	top, _, below := strings.Cut(rest, "/")
	if strings.Contains(top, quarantinedMark) {
		return "" // quarantined earlier; nothing obeys it
	}
	if slices.Contains(f.skip, top) || bare && !below && !bareEntry(top) {
		return "" // other content of a directory that is a bare repository
	}
	free := mayDiffer(repo, rest, e.Type == workspace.TypeDir) || e.Type == workspace.TypeSymlink && mayDiffer(repo, rest, true)
	if e.Type == workspace.TypeDir {
		if !free {
			f.addLine("%q dir", rest)
		} else if f.shallow {
			return ""
		}
		return p
	}
	if e.Type == workspace.TypeSymlink && isNamed(path.Base(repo), ".hg") && slices.Contains(hgLinks, rest) {
		return ""
	}
	st, err := e.Stat()
	switch {
	case err != nil:
		f.whole = f.whole && errors.Is(err, fs.ErrNotExist)
		return ""
	case free && st.Type == workspace.TypeFile && (st.Links == 1 || isNamed(path.Base(repo), ".hg")):
		return "" // hg makes hard links itself, and never writes to one
	case free && st.Type == workspace.TypeFile:
		f.addLine("%q linked %d", rest, st.Inode)
		return ""
	case free && st.Type == workspace.TypeSymlink: // its target may differ too
		f.addLine("%q link %q", rest, st.Target)
		return ""
	case strings.HasPrefix(rest, "fsmonitor--daemon") && st.Type == workspace.TypeSocket:
		return "" // git's own, which a git on the host starts
	}
	if name := path.Base(rest); name == "config" || name == "config.worktree" {
		f.configs = append(f.configs, p)
	}
	f.addLine("%q %s", rest, s.describeEntry(ctx, f, p, st))
	return ""
}

// bareEntry reports whether an entry of a bare repository's directory belongs to the
// repository.
func bareEntry(name string) bool {
	return slices.Contains(gitObeyed, name) || slices.Contains([]string{"HEAD", "objects", "refs", "logs", "packed-refs", "index", "attributes"}, name)
}

// describeEntry describes an entry's type, mode, whether it has other names, and its content or
// target.
func (s *scanner) describeEntry(ctx context.Context, f *fingerprint, p string, st workspace.ScanStat) string {
	text := fmt.Sprintf("%s %o %v ", st.Type, st.Mode, st.Links > 1)
	switch {
	case st.Type == workspace.TypeFile && st.Size <= fingerprintBytes:
		return text + s.hashContent(ctx, f, p)
	case st.Type == workspace.TypeFile:
		return text + fmt.Sprintf("%d %d %d %d", st.Size, st.Inode, st.ModTime.UnixNano(), st.ChangeTime.UnixNano())
	case st.Type == workspace.TypeSymlink:
		return text + fmt.Sprintf("%q %s", st.Target, s.describeTarget(ctx, f, p))
	}
	return text
}

// hashContent returns a hash of a file. It follows symlinks.
func (s *scanner) hashContent(ctx context.Context, f *fingerprint, p string) string {
	file, err := s.reader.ReadFile(ctx, p, 0, fingerprintBytes+1)
	if err != nil || file.Truncated {
		f.whole = false
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(file.Data))
}

// describeTarget describes the target of a symlink within the workspace: outside, commands can
// change nothing.
func (s *scanner) describeTarget(ctx context.Context, f *fingerprint, p string) string {
	info, err := s.reader.Stat(ctx, p)
	if e, ok := errors.AsType[*workspace.Error](err); ok {
		return string(e.Kind)
	}
	switch {
	case err != nil:
		f.whole = false
		return ""
	case info.Type == workspace.TypeFile && info.Size <= fingerprintBytes:
		return s.hashContent(ctx, f, p)
	case info.Type != workspace.TypeDir:
		return fmt.Sprintf("%s %d %d", info.Type, info.Size, info.ModTime.UnixNano())
	}
	list, err := s.reader.List(ctx, p, workspace.DefaultMaxDepth+1) // more, so that deeper directories are incomplete
	f.whole = f.whole && err == nil && !list.Truncated && len(list.Incomplete) == 0 && len(list.Entries) <= linkedEntries
	var text strings.Builder
	for _, e := range list.Entries[:min(len(list.Entries), linkedEntries)] {
		fmt.Fprintf(&text, "%q %s %o %q\n", e.Path, e.Type, e.Mode, e.Target)
		switch e.Type {
		case workspace.TypeFile:
			text.WriteString(s.hashContent(ctx, f, e.Path))
		case workspace.TypeMount:
			f.whole = false
		}
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(text.String())))
}

// addNamed adds a repository that another one names: where its .git file leads, or where its
// configuration is. A mount protects the workspace's own.
func (s *scanner) addNamed(ctx context.Context, f *fingerprint, dir string) error {
	f.addLine("names %q", dir)
	if dir == ".git" || strings.HasPrefix(dir, ".git/") || f.hops == maxHops {
		return nil
	}
	other := &fingerprint{whole: true, shallow: f.shallow, hops: f.hops + 1}
	err := s.addRepository(ctx, other, dir)
	f.whole = f.whole && other.whole
	f.lines, f.configs = append(f.lines, other.lines...), append(f.configs, other.configs...)
	return err
}

// readNamedDir returns the directory of the workspace that a small file names after prefix. ok
// is false if it names none.
func (s *scanner) readNamedDir(ctx context.Context, file, prefix string) (dir string, ok bool) {
	content, err := s.reader.ReadFile(ctx, file, 0, workspace.MaxPathBytes)
	if err != nil {
		return "", false
	}
	text, ok := strings.CutPrefix(strings.TrimRight(string(content.Data), "\r\n"), prefix)
	text = strings.TrimSpace(text)
	if !ok || text == "" {
		return "", false
	}
	if !path.IsAbs(text) {
		text = path.Join(path.Dir(file), text)
	}
	dir, err = s.reader.Relative(text)
	if err != nil {
		return "", false
	}
	info, err := s.reader.Stat(ctx, dir)
	return dir, err == nil && info.Type == workspace.TypeDir && dir != "."
}
