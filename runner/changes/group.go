package changes

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/runner/record"
)

// HostGroup is files that programs on the host would run, obey or follow, and that a person can
// be told of in one line: a single file, or all files of one kind in a directory that the same
// program reads. Symlinks of a group have the same target.
type HostGroup struct {
	// Dir is the directory, or "" for a single file.
	Dir   string
	Files []record.HostExecuted
}

// groupFrom is the number of files in a directory that makes them a group.
const groupFrom = 4

// dependencyDirs are the directories that package managers fill. Each forms one group per
// program. Directories that a tool obeys, such as .cargo, are not among them.
var dependencyDirs = []string{"node_modules", "vendor", ".venv", "venv", "site-packages", "target", ".tox"}

// GroupHostExecuted groups files. Changes of existing files come before new ones, the project's
// before its dependencies', and the topmost first.
func GroupHostExecuted(list []record.HostExecuted) []HostGroup {
	type key struct{ kind, dir, by, target string }
	keyOf := func(h record.HostExecuted) key {
		dir, _ := groupDir(h.Path)
		return key{kindOf(h), dir, h.By, h.Target}
	}
	sorted := slices.Clone(list)
	slices.SortStableFunc(sorted, func(a, b record.HostExecuted) int {
		_, dependencyA := groupDir(a.Path)
		_, dependencyB := groupDir(b.Path)
		return cmp.Or(compareDanger(a, b), compareFlags(dependencyA, dependencyB), cmp.Compare(strings.Count(a.Path, "/"), strings.Count(b.Path, "/")), strings.Compare(a.Path, b.Path))
	})
	count := map[key]int{}
	for _, h := range sorted {
		count[keyOf(h)]++
	}
	var groups []HostGroup
	at := map[key]int{}
	for _, h := range sorted {
		k := keyOf(h)
		i, begun := at[k]
		switch {
		case k.dir == "" || count[k] < groupFrom:
			groups = append(groups, HostGroup{Files: []record.HostExecuted{h}})
		case !begun:
			at[k] = len(groups)
			groups = append(groups, HostGroup{Dir: k.dir, Files: []record.HostExecuted{h}})
		default:
			groups[i].Files = append(groups[i].Files, h)
		}
	}
	return groups
}

// groupDir returns the directory in which a file is grouped, or "" for the top, and whether a
// package manager fills it.
func groupDir(name string) (dir string, dependencies bool) {
	parts := strings.Split(path.Dir(name), "/")
	if i := slices.IndexFunc(parts, func(p string) bool { return slices.Contains(dependencyDirs, p) }); i >= 0 {
		return strings.Join(parts[:i+1], "/"), true
	}
	if len(parts) == 1 && parts[0] == "." {
		return "", false
	}
	return strings.Join(parts, "/"), false
}

func kindOf(h record.HostExecuted) string {
	switch {
	case h.Target != "":
		return "symlinks"
	case h.Deleted:
		return "deleted files"
	case h.Added:
		return "new files"
	}
	return "changed files"
}

// String tells a person what to look at, and why.
func (g HostGroup) String() string {
	h := g.Files[0]
	if g.Dir == "" {
		switch {
		case h.Target != "":
			return h.Path + " is a symlink that leads out of the workspace, to " + h.Target
		case h.Deleted:
			return h.Path + " was deleted: what it asked of " + h.By + " no longer matters"
		}
		return "read " + h.Path + " before you go on: " + h.By + " may run or obey it"
	}
	files := fmt.Sprintf("%d %s in %s", len(g.Files), kindOf(h), g.Dir)
	switch {
	case h.Target != "":
		return files + " lead out of the workspace, to " + h.Target
	case h.Deleted:
		return files + ": what they asked of " + h.By + " no longer matters"
	}
	return "read " + files + " before you go on: " + h.By + " may run or obey them"
}

// compareFlags orders false before true.
func compareFlags(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
