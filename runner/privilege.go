package runner

import (
	"context"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/workspace"
)

// privileged holds, by path, the files of a snapshot that run with another user's
// privileges than their caller's, and its set-user-ID directories.
type privileged map[string]workspace.PrivilegedFile

// findPrivileged scans the workspace for privileged files; withSum also reads
// their contents.
func (s *Session) findPrivileged(ctx context.Context, withSum bool) (privileged, *snapshot, error) {
	found := privileged{}
	if err := s.addPrivileged(found, ".", withSum); err != nil {
		return nil, nil, err
	}
	// Capabilities of files without execute permission have no effect.
	const executable, setUID, setID = 0o111, 0o4000, 0o6000
	snap, err := takeSnapshot(ctx, s.original, func(e *workspace.ScanEntry) error {
		var mode uint32
		switch e.Type {
		case workspace.TypeFile:
			mode = executable | setID
		case workspace.TypeDir:
			mode = setUID
		default:
			return nil
		}
		if s.privileges == nil {
			return nil
		}
		st, err := e.Stat()
		if err != nil || st.Mode&mode == 0 {
			return err
		}
		return s.addPrivileged(found, e.Path(), withSum)
	})
	return found, snap, err
}

// addPrivileged adds the file or directory at path to found if it has privileges.
func (s *Session) addPrivileged(found privileged, path string, withSum bool) error {
	if s.privileges == nil {
		return nil
	}
	f, err := s.privileges.Read(path, withSum)
	if err != nil {
		s.log.Debug("read privileges of file", zap.String("path", path), zap.Error(err))
		return err
	}
	if f.Any() {
		found[path] = f
	}
	return nil
}

// had reports whether a file had all of its privileges when the snapshot p was
// taken: the same directory, or the same file, by any name, with the same content.
func (p privileged) had(now workspace.PrivilegedFile, sum func() string) bool {
	for _, was := range p {
		if was.Inode == now.Inode && !now.Exceeds(was.Privilege) {
			return now.Dir || was.Changed == now.Changed || was.Sum != "" && was.Sum == sum()
		}
	}
	return false
}

// clearPrivileges clears those that were not there when the session began, and
// returns the files. Commands can't make such files; this is for what has got
// past that.
func (s *Session) clearPrivileges(found privileged) []record.Cleared {
	var out []record.Cleared
	for _, path := range slices.Sorted(maps.Keys(found)) {
		now := found[path]
		sum := func() string {
			f, err := s.privileges.Read(path, true)
			if err != nil || f.Inode != now.Inode {
				return ""
			}
			return f.Sum
		}
		if s.privileged.had(now, sum) {
			continue
		}
		c := record.Cleared{Path: path, SetUID: now.SetUID, SetGID: now.SetGID, Capabilities: now.Capabilities}
		if !s.before.knows(path) {
			c.Why = "it may have been there before: the workspace could not be looked at whole when the session began"
		} else if _, err := s.privileges.Clear(path, now.Inode); err != nil {
			s.log.Warn("clear privileges of file", zap.String("path", path), zap.Error(err))
			c.Why = err.Error()
		}
		out = append(out, c)
	}
	return out
}
