package ownership

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Kind is the kind of a thing that a session made; the words are those of
// sandbox.Orphan.
type Kind string

// The kinds. [Sweep] undoes mounts, folders and placeholders itself and hands
// the others to the backend that noted them.
const (
	KindContainer   Kind = "container"   // Name
	KindProcess     Kind = "process"     // PID, Start
	KindVolume      Kind = "volume"      // Name, holds the session's id; of the engine
	KindCgroup      Kind = "cgroup"      // Name, holds the session's id
	KindMount       Kind = "mount"       // Path
	KindDirectory   Kind = "directory"   // Path
	KindPlaceholder Kind = "placeholder" // Placeholder
)

// undoOrder is the order in which a session is undone: what uses before what
// is used.
var undoOrder = []Kind{KindContainer, KindProcess, KindVolume, KindCgroup, KindMount, KindDirectory, KindPlaceholder}

// Entry is one thing in a [CleanupList].
type Entry struct {
	Kind Kind `json:"kind"`
	// Name is what the engine, runtime or cgroup file system calls it.
	Name string `json:"name,omitempty"`
	// Path is relative to the session's folder ([CleanupList.Dir]), with slashes.
	Path string `json:"path,omitempty"`
	// PID and Start name a process, as in [Identity].
	PID   int    `json:"pid,omitempty"`
	Start uint64 `json:"start_time,omitempty"`
	// Placeholder is what was put into the workspace.
	Placeholder *Placeholder `json:"placeholder,omitempty"`
}

// String is for people and for sandbox.Orphan.Name.
func (e Entry) String() string {
	switch e.Kind {
	case KindMount, KindDirectory:
		return e.Path
	case KindProcess:
		return fmt.Sprintf("pid %d", e.PID)
	case KindPlaceholder:
		if e.Placeholder != nil {
			return path.Join(e.Placeholder.Workspace, e.Placeholder.Name)
		}
	}
	return e.Name
}

// Validate reports an entry that this package can't have been given by a
// backend of Caisson. Cleanup lists are checked when they are written and when they
// are read, by this one function.
func (e Entry) Validate(session string) error {
	switch e.Kind {
	case KindContainer:
		if !isPlainWord(strings.ReplaceAll(e.Name, ".", "-")) {
			return fmt.Errorf("container name %q", e.Name)
		}
	case KindProcess:
		if e.PID <= 1 || e.Start == 0 {
			return fmt.Errorf("process %d started %d", e.PID, e.Start)
		}
	case KindVolume:
		if !isPlainWord(strings.ReplaceAll(e.Name, ".", "-")) || !strings.Contains(e.Name, session) {
			return fmt.Errorf("volume %q is not one of session %s", e.Name, session)
		}
	case KindCgroup:
		if !isCleanLocal(e.Name) || !strings.Contains(path.Base(e.Name), session) {
			return fmt.Errorf("cgroup %q is not one of session %s", e.Name, session)
		}
	case KindMount, KindDirectory:
		if !isCleanLocal(e.Path) {
			return fmt.Errorf("%s %q is not below the session's folder", e.Kind, e.Path)
		}
	case KindPlaceholder:
		if e.Placeholder == nil {
			return fmt.Errorf("placeholder without a description")
		}
		return e.Placeholder.validateFields()
	default:
		return fmt.Errorf("kind %q", e.Kind)
	}
	return nil
}

// cleanLocal says that p is relative, in its shortest form, below its base and
// not the base itself. Resolving it is nevertheless left to the kernel.
func isCleanLocal(p string) bool {
	return p != "." && filepath.IsLocal(p) && path.Clean(p) == p && !strings.ContainsRune(p, 0) && len(p) < 1024
}

// validDir says that dir, relative to the state folder, is a folder of this
// session alone: one of its elements is the session's id.
func checkSessionDir(dir, session string) error {
	if !isCleanLocal(dir) || !slices.Contains(strings.Split(dir, "/"), session) {
		return fmt.Errorf("folder %q is not one of session %s below the state folder", dir, session)
	}
	return nil
}
