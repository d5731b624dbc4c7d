package workmount

import "slices"

// Layout says how a workspace would be mounted at one moment: which folder it is
// and whose, which mounts are in it, what of it is guarded and which file or
// folder that is. A sandbox that was started when it said the same guards what one
// that is started now would guard. See [LayoutOf].
type Layout struct {
	folder string
	lost   string
	guards []guardState
}

// seen is one guard, and what has its name.
type guardState struct {
	name    string
	binding string // it would be bound
	// which tells the file or folder from every other; "" is a name that would be
	// reserved.
	fileID string
	// empty says that it holds nothing, as a placeholder does.
	empty bool
}

// Equal says whether two layouts are the same.
func (l Layout) Equal(other Layout) bool {
	return l.folder == other.folder && l.lost == other.lost && slices.EqualFunc(l.guards, other.guards, func(a, b guardState) bool {
		return a.name == b.name && a.binding == b.binding && a.fileID == b.fileID
	})
}

// Reserves says whether nothing but a sandbox's own placeholders is in after that
// was not in l. What was guarded when after was taken was then guarded all the
// time between the two.
func (l Layout) AllowsFrom(after Layout) bool {
	if l.Equal(after) {
		return true
	}
	if l.folder != after.folder {
		return false
	}
	if g, ok := l.findGuard(gitName); (!ok || g.fileID != "") && l.lost != after.lost {
		return false // an own, empty .git loses other things than none does
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
