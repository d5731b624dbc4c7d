package runner

import (
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Cleared is a file of the workspace that would have run as its owner, or with
// capabilities, and would not when the session began.
type Cleared struct {
	Path         string `json:"path"`
	SetUID       bool   `json:"set_uid,omitempty"`
	SetGID       bool   `json:"set_gid,omitempty"`
	Capabilities bool   `json:"capabilities,omitempty"`
	// Why is why they could not be cleared; absent where they were.
	Why string `json:"why,omitempty"`
}

// privileged holds the files of a snapshot that run with another user's privileges
// than their caller's, by path.
type privileged map[string]workspace.PrivilegedFile

// findPrivileged returns a function that adds the privileged files of a scan to
// found. It does not read the capabilities of files without execute permission:
// they have no effect.
func (s *Session) findPrivileged(found privileged, withSum bool) func(*workspace.ScanEntry) error {
	const (
		executable = 0o111
		setID      = 0o6000
	)
	return func(e *workspace.ScanEntry) error {
		if s.privileges == nil || e.Type != workspace.TypeFile {
			return nil
		}
		st, err := e.Stat()
		if err != nil || st.Mode&(executable|setID) == 0 {
			return err
		}
		p := e.Path()
		f, err := s.privileges.Read(p, withSum)
		if err != nil {
			s.log.Debug("read privileges of file", zap.String("path", p), zap.Error(err))
			return err
		}
		if f.Any() {
			found[p] = f
		}
		return nil
	}
}

// had reports whether a file had all of its privileges when the snapshot p was
// taken: the same file, by any name, with the same content.
func (p privileged) had(now workspace.PrivilegedFile, sum func() string) bool {
	for _, was := range p {
		if was.Inode == now.Inode && !now.Exceeds(was.Privilege) {
			return was.Changed == now.Changed || was.Sum != "" && was.Sum == sum()
		}
	}
	return false
}

// clearPrivileges clears those that were not there when the session began, and
// returns the files. Commands can't make such files; this is for what has got
// past that.
func (s *Session) clearPrivileges(found privileged) []Cleared {
	var out []Cleared
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
		c := Cleared{Path: path, SetUID: now.SetUID, SetGID: now.SetGID, Capabilities: now.Capabilities}
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
