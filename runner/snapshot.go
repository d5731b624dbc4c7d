package runner

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools/workspace"
)

const (
	// readerEntries bounds the entries that one call of a tool reads.
	readerEntries = 500_000
	// unreadDirectories bounds the directories that a snapshot names.
	unreadDirectories = 20
)

// snapshot records how much of the workspace a scan met. The zero value knows nothing.
type snapshot struct {
	// whole reports whether the scan came to its end and could look at every entry
	// that it met; unread are directories that it could not read, all of them
	// unless there are unreadDirectories.
	whole  bool
	unread []string
}

// incomplete reports whether there may be files that the scan did not meet.
func (s *snapshot) incomplete() bool { return !s.whole || len(s.unread) > 0 }

// knows reports whether the scan saw everything there was on the way to p: only
// then is a file that it did not meet a new one.
func (s *snapshot) knows(p string) bool {
	if !s.whole || len(s.unread) >= unreadDirectories {
		return false
	}
	return !slices.ContainsFunc(s.unread, func(dir string) bool { return dir == "." || strings.HasPrefix(p, dir+"/") })
}

// takeSnapshot scans the workspace and calls visit for each entry, whose error
// reports that it could not be looked at. What lies in repositories is left out:
// see [repositories]. It keeps nothing of an entry, however many there are.
func takeSnapshot(ctx context.Context, r *workspace.Reader, visit func(*workspace.ScanEntry) error) (*snapshot, error) {
	s := &snapshot{whole: true}
	err := r.Scan(ctx, ".", workspace.ScanOptions{
		Visit: func(e *workspace.ScanEntry) (uint8, string) {
			if err := visit(e); err != nil && !errors.Is(err, fs.ErrNotExist) {
				s.whole = false
			}
			if e.Type == workspace.TypeDir && !isNamed(string(e.Name()), ".git", ".hg") {
				return 0, e.Path()
			}
			return 0, ""
		},
		Unread: func(dir string, _ error) {
			if len(s.unread) < unreadDirectories {
				s.unread = append(s.unread, dir)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}
