package workmount

import "slices"

// Layout is a fingerprint of how a workspace is mounted: its directory and
// owner, the mounts inside it, and each guarded name with its inode. Equal
// layouts need equal guards, so a sandbox that was started with an equal one
// may be used. See [LayoutOf].
type Layout struct {
	dir    string
	lost   string
	guards []guardState
}

// guardState is one guard and the file with its name.
type guardState struct {
	name    string
	binding string // it would be bound
	// fileID identifies the file or directory among all others; "" is a name
	// that would be reserved.
	fileID string
	// empty reports that it contains nothing, as a placeholder does.
	empty bool
}

// Equal reports whether two layouts are the same.
func (l Layout) Equal(other Layout) bool {
	return l.dir == other.dir && l.lost == other.lost && slices.EqualFunc(l.guards, other.guards, func(a, b guardState) bool {
		return a.name == b.name && a.binding == b.binding && a.fileID == b.fileID
	})
}

// AllowsFrom reports whether after differs from l at most by a sandbox's own
// placeholders. What was guarded when after was taken was then guarded all the
// time in between.
func (l Layout) AllowsFrom(after Layout) bool {
	if l.Equal(after) {
		return true
	}
	if l.dir != after.dir {
		return false
	}
	if g, ok := l.findGuard(gitName); (!ok || g.fileID != "") && l.lost != after.lost {
		return false // an empty .git of the workspace loses other protections than a missing one
	}
	for _, g := range l.guards {
		now, ok := after.findGuard(g.name)
		switch {
		case !ok:
			return false
		case g.fileID != "" && (g.fileID != now.fileID || g.binding != now.binding):
			return false
		case g.fileID == "" && now.fileID != "" && !now.empty:
			return false
		}
	}
	for _, g := range after.guards {
		if _, ok := l.findGuard(g.name); !ok && g.fileID != "" {
			return false
		}
	}
	return true
}

func (l Layout) findGuard(name string) (guardState, bool) {
	i := slices.IndexFunc(l.guards, func(g guardState) bool { return g.name == name })
	if i < 0 {
		return guardState{}, false
	}
	return l.guards[i], true
}
