package tracker

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/workspace"
)

// privileged holds, by path, files that run with other privileges than their caller's, and
// set-user-ID directories.
type privileged map[string]workspace.PrivilegedFile

// privilegeCheck finds files of a workspace with new privileges.
type privilegeCheck struct {
	reader *workspace.Reader
	// files reads privileges; nil if that is not possible.
	files *workspace.Privileges
	log   *zap.Logger
	// was are the privileged files at the session's start, and before tells how much of the
	// workspace was scanned then.
	was    privileged
	before snapshot
}

// privilegeLook finds the privileged files in a pass.
type privilegeLook struct {
	check   *privilegeCheck
	withSum bool

	mu    sync.Mutex
	found privileged
	// snap tells how much of the workspace the pass met, if it finished.
	snap snapshot
}

// newLook returns a look that has seen the workspace's own directory. With withSum it also hashes
// privileged files.
func (c *privilegeCheck) newLook(withSum bool) (*privilegeLook, error) {
	l := &privilegeLook{check: c, withSum: withSum, found: privileged{}, snap: snapshot{whole: true}}
	return l, l.addFile(".")
}

// visit looks at one entry. It skips repositories; see package quarantine.
func (l *privilegeLook) visit(e *workspace.ScanEntry) {
	// Capabilities of files without execute permission have no effect.
	const executable, setUID, setID = 0o111, 0o4000, 0o6000
	var mode uint32
	switch e.Type {
	case workspace.TypeFile:
		mode = executable | setID
	case workspace.TypeDir:
		mode = setUID
	default:
		return
	}
	st, err := e.Stat()
	if err == nil && (st.Mode&mode == 0 || inRepository(e.Dir.Path)) {
		return
	}
	if err == nil {
		err = l.addFile(e.Path())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.snap.whole = false
	}
}

func (l *privilegeLook) skip(dir string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.snap.unread) < unreadDirectories && !inRepository(dir) {
		l.snap.unread = append(l.snap.unread, dir)
	}
}

func (l *privilegeLook) addFile(path string) error {
	if l.check.files == nil {
		return nil
	}
	f, err := l.check.files.Read(path, l.withSum)
	if err != nil {
		l.check.log.Debug("read privileges of file", zap.String("path", path), zap.Error(err))
		return err
	}
	if f.Any() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.found[path] = f
	}
	return nil
}

// findPrivileged looks for privileged files in a separate pass. After an error it returns the ones
// that it found.
func (c *privilegeCheck) findPrivileged(ctx context.Context, withSum bool) (*privilegeLook, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ScanTime, errScanSlow)
	defer cancel()
	l, err := c.newLook(withSum)
	if err != nil {
		return l, err
	}
	return l, c.reader.Scan(ctx, ".", workspace.ScanOptions{
		Stat: true, Parallel: true,
		Visit: func(e *workspace.ScanEntry) (uint8, string) {
			l.visit(e)
			if e.Type == workspace.TypeDir && !isRepository(string(e.Name())) {
				return 0, e.Path()
			}
			return 0, ""
		},
		Unread: func(dir string, _ error) { l.skip(dir) },
	})
}

// listWritable lists the files of found that commands could write to: the workspace owner's (with
// anyOwner, anyone's), and files that others may write.
func (c *privilegeCheck) listWritable(ctx context.Context, found privileged, anyOwner bool) []string {
	top, topErr := c.reader.StatEntry(ctx, ".")
	var out []string
	for _, path := range slices.Sorted(maps.Keys(found)) {
		const othersWrite = 0o022
		st, err := c.reader.StatEntry(ctx, path)
		if !found[path].Dir && (anyOwner || err != nil || topErr != nil || st.UID == top.UID || st.Mode&othersWrite != 0) {
			out = append(out, path)
		}
	}
	return out
}

// hadBefore reports whether a file had all of its privileges in the snapshot p: the same
// directory, or the same file, by any name, with the same content.
func (p privileged) hadBefore(now workspace.PrivilegedFile, sum func() string) bool {
	for _, was := range p {
		if was.Inode == now.Inode && !now.Exceeds(was.Privilege) {
			return now.Dir || was.Changed == now.Changed || was.Sum != "" && was.Sum == sum()
		}
	}
	return false
}

// clearNew clears privileges that did not exist when the session began, and returns the files.
// Commands can't make such files; this is a second line of defence.
func (c *privilegeCheck) clearNew(found privileged) []record.Cleared {
	var out []record.Cleared
	for _, path := range slices.Sorted(maps.Keys(found)) {
		now := found[path]
		sum := func() string {
			f, err := c.files.Read(path, true)
			if err != nil || f.Inode != now.Inode {
				return ""
			}
			return f.Sum
		}
		if c.was.hadBefore(now, sum) {
			continue
		}
		cleared := record.Cleared{Path: path, SetUID: now.SetUID, SetGID: now.SetGID, Capabilities: now.Capabilities}
		if !c.before.knowsPath(path) {
			cleared.Why = "it may have been there before: the workspace could not be looked at whole when the session began"
		} else if _, err := c.files.Clear(path, now.Inode); err != nil {
			c.log.Warn("clear privileges of file", zap.String("path", path), zap.Error(err))
			cleared.Why = err.Error()
		}
		out = append(out, cleared)
	}
	return out
}

const unreadDirectories = 20

// snapshot tells how much of the workspace a scan met. The zero value knows nothing.
type snapshot struct {
	// whole reports that the scan finished and could read every entry that it met. unread are
	// the directories that it could not read; the list is complete if it is shorter than
	// unreadDirectories.
	whole  bool
	unread []string
}

// isIncomplete reports whether there may be files that the scan did not meet.
func (s *snapshot) isIncomplete() bool { return !s.whole || len(s.unread) > 0 }

// knowsPath reports whether the scan saw everything on the way to p. Only then is an unknown file
// there a new one.
func (s *snapshot) knowsPath(p string) bool {
	if !s.whole || len(s.unread) >= unreadDirectories {
		return false
	}
	return !slices.ContainsFunc(s.unread, func(dir string) bool { return dir == "." || strings.HasPrefix(p, dir+"/") })
}

func inRepository(dir string) bool {
	for name := range strings.SplitSeq(dir, "/") {
		if isRepository(name) {
			return true
		}
	}
	return false
}

// isRepository reports whether a name is a repository's. It ignores case, because some file systems
// do.
func isRepository(name string) bool {
	return strings.EqualFold(name, ".git") || strings.EqualFold(name, ".hg")
}
