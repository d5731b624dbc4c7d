package ownership

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Kind is an entry's kind, in the terms of sandbox.Orphan.
type Kind string

// [Sweep] removes mounts, directories and placeholders itself. It passes the
// others to the backend that added them.
const (
	KindContainer   Kind = "container"   // Name
	KindVolume      Kind = "volume"      // Name, the engine's; contains the session's ID
	KindCgroup      Kind = "cgroup"      // Name, contains the session's ID
	KindMount       Kind = "mount"       // Path
	KindDirectory   Kind = "directory"   // Path
	KindPlaceholder Kind = "placeholder" // Placeholder
)

// undoOrder is the order of removal: users of a thing before the thing.
var undoOrder = []Kind{KindContainer, KindVolume, KindCgroup, KindMount, KindDirectory, KindPlaceholder}

// Entry is one entry of a [CleanupList].
type Entry struct {
	Kind Kind `json:"kind"`
	// Name is the name in the engine, the runtime or the cgroup file system.
	Name string `json:"name,omitempty"`
	// Path is relative to [CleanupOptions.Dir].
	Path        string       `json:"path,omitempty"`
	Placeholder *Placeholder `json:"placeholder,omitempty"`
}

// String returns the thing's name, for people and for sandbox.Orphan.Name.
func (e Entry) String() string {
	switch e.Kind {
	case KindMount, KindDirectory:
		return e.Path
	case KindPlaceholder:
		if e.Placeholder != nil {
			return path.Join(e.Placeholder.Workspace, e.Placeholder.Name)
		}
	}
	return e.Name
}

// Validate returns an error if no backend can have added the entry. Lists are
// checked with it when written and when read.
func (e Entry) Validate(session string) error {
	switch e.Kind {
	case KindContainer:
		if !isPlainWord(strings.ReplaceAll(e.Name, ".", "-")) {
			return fmt.Errorf("container name %q", e.Name)
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
			return fmt.Errorf("%s %q is not below the session's directory", e.Kind, e.Path)
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

// isCleanLocal reports whether p is relative, in its shortest form, and below
// its base. The kernel still resolves it beneath that.
func isCleanLocal(p string) bool {
	return p != "." && filepath.IsLocal(p) && path.Clean(p) == p && !strings.ContainsRune(p, 0) && len(p) < 1024
}

// checkSessionDir returns an error unless dir, relative to the state directory,
// belongs to this session alone: one of its elements is the session's ID.
func checkSessionDir(dir, session string) error {
	if !isCleanLocal(dir) || !slices.Contains(strings.Split(dir, "/"), session) {
		return fmt.Errorf("directory %q is not one of session %s below the state directory", dir, session)
	}
	return nil
}
