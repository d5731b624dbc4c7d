package overlay

import (
	"slices"

	"github.com/caisson-run/caisson/tools/workspace"
)

// Descriptions of conflicts, for messages.
const (
	conflictAppeared = "it appeared in the workspace since the session began"
	conflictVanished = "it was deleted in the workspace since the session began"
	conflictDiffers  = "it was changed in the workspace since the session began"
	conflictUnknown  = "it is not known whether it changed in the workspace: there was too much to record when the session began"
	conflictParent   = "its directory was changed in the workspace since the session began"
	conflictContent  = "something in it was changed in the workspace since the session began"
)

// markConflicts marks the changes of a list in tree order whose originals, in
// lower, have changed since the start of the session.
func markConflicts(l *Layers, list []Change, lower tree) error {
	at := make(map[string]*Change, len(list))
	for i := range list {
		at[list[i].Path] = &list[i]
	}
	end, err := l.readStamps(at)
	if err != nil {
		return err
	}
	known := func(path string) bool {
		if !end.End || !end.Whole {
			return false
		}
		for dir := parent(path); dir != "."; dir = parent(dir) {
			if slices.ContainsFunc(end.Unread, func(u []byte) bool { return string(u) == dir }) {
				return false
			}
		}
		return true
	}
	touched, err := readApplyLog(l)
	if err != nil {
		return err
	}
	for i := range list {
		c := &list[i]
		c.Conflict = findConflict(c, touched.paths[c.Path], known, l.info.recordedAt().UnixNano())
		if c.Conflict == conflictUnknown && end.TimeOnly {
			c.Conflict = ""
		}
		if c.Conflict == conflictDiffers && c.base.Index != "" && c.base.Index == lower.hashIndexAt(c.Path) {
			c.Conflict = "" // git only refreshed its metadata of files
		}
		if c.Conflict == conflictDiffers && c.Kind == Mode && !c.base.Late && c.base.Type == c.was.typ && c.base.Mode == c.was.mode {
			c.Conflict = "" // it was rewritten with the content that the session also has
		}
		if c.Conflict != "" {
			continue
		}
		// In tree order, the directory was checked before.
		if up := at[parent(c.Path)]; up != nil && up.Conflict != "" && up.Path != c.Path && up.Kind != Deleted {
			c.Conflict = conflictParent
		}
	}
	// A directory is only removed with all of its content.
	for i := range slices.Backward(list) {
		c := &list[i]
		up := at[parent(c.Path)]
		if c.Conflict != "" && up != nil && up.Conflict == "" && up.was != nil && up.was.typ == workspace.TypeDir &&
			(up.Kind == Deleted || up.Kind == Typed) {
			up.Conflict = conflictContent
		}
	}
	return nil
}

// findConflict describes how the original of a change differs from its recorded
// state, or returns "". The parameter touched reports whether a killed apply
// had begun with the change, and since is when the recording began.
func findConflict(c *Change, touched bool, known func(string) bool, since int64) string {
	isDirectory := c.was != nil && c.was.typ == workspace.TypeDir
	switch {
	case c.Path == ".":
		return "" // its mode is not content
	case c.base != nil && c.was == nil:
		if touched {
			return "" // our own apply removed it
		}
		return conflictVanished
	case c.base != nil:
		if !c.base.Late && c.base.matches(c.was, touched) || touched && isDirectory {
			return ""
		}
		return conflictDiffers
	case c.was == nil, touched && isDirectory: // our own apply created the directory
		return ""
	case known(c.Path):
		if isDirectory && c.Kind != Deleted && c.Kind != Typed {
			return "" // both created the directory; its content is checked by itself
		}
		return conflictAppeared
	case isLater(c.was.ctime, since):
		return conflictAppeared
	}
	return conflictUnknown
}
