package workspace

import (
	"cmp"
	"slices"
)

// maxDirNames bounds the names that are held of one directory, as [Capacity] does
// their bytes. Within both the order of a listing is that of the names,
// whatever the file system's is; beyond, which names are seen is the file
// system's choice.
const maxDirNames = 1 << 18

// maxIncomplete bounds the directories that a result names as incomplete.
const maxIncomplete = 20

// dirName is one name of a directory, with its type if the directory has it.
type dirName struct {
	name string
	typ  Type
}

// dirNameBytes is about how much memory a dirName takes, its name aside.
const dirNameBytes = 32

// hasName reports whether names, which are sorted, hold name.
func hasName(names []dirName, name string) bool {
	_, ok := slices.BinarySearchFunc(names, name, func(d dirName, name string) int { return cmp.Compare(d.name, name) })
	return ok
}

// firstNames sorts names and keeps the first keep of them.
func firstNames(names []dirName, keep int) (first []dirName, cut bool) {
	slices.SortFunc(names, func(a, b dirName) int { return cmp.Compare(a.name, b.name) })
	if len(names) > keep {
		return names[:keep], true
	}
	return names, false
}

// TreeOrder compares paths name by name, so that a directory is followed by what
// is in it ("a", "a/b", "a.b") where plain strings would not be.
func TreeOrder(a, b string) int {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	switch {
	case i == len(a) || i == len(b):
		return cmp.Compare(len(a), len(b))
	case a[i] == '/':
		return -1
	case b[i] == '/':
		return 1
	}
	return cmp.Compare(a[i], b[i])
}

// addIncomplete adds a directory to an incomplete list.
func addIncomplete(list []string, directory string) []string {
	if len(list) < maxIncomplete {
		list = append(list, directory)
	}
	return list
}
