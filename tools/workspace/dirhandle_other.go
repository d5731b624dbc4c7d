//go:build !linux

package workspace

// dirHandle stands for a directory, whose path is resolved anew for each call:
// os.Root confines that.
type dirHandle struct{ follow bool }

func newDirHandle() *dirHandle { return &dirHandle{} }

func (h *dirHandle) acquire() bool { return true }

func (h *dirHandle) release() {}

func (h *dirHandle) openDir(_ *tree, above *dirHandle, _, _ string) error {
	h.follow = above == nil
	return nil
}

func (h *dirHandle) readNames(t *tree, rel string, most int64) ([]dirName, bool, error) {
	entries, more, err := t.readDir(rel, h.follow, Room{Entries: maxDirNames, Bytes: most})
	return namesOf(entries), more, err
}

func (h *dirHandle) openFile(t *tree, rel, name string) (node, Info, error) {
	return t.openFile(below(rel, name))
}
