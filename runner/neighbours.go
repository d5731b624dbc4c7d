package runner

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// warnOfNeighbours warns of other sessions that live and have this workspace in
// bind mode: each sees, and lists as its own, what the other writes. A session
// keeps its inventory while it lives, in bind mode alone.
func (s *Session) warnOfNeighbours() {
	folders, err := os.ReadDir(filepath.Dir(s.dir))
	if err != nil {
		return
	}
	slices.Reverse(folders) // ids sort by time
	for _, folder := range folders[:min(len(folders), inventories)] {
		dir := filepath.Join(filepath.Dir(s.dir), folder.Name())
		if dir == s.dir {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, inventoryFile))
		if err != nil {
			continue
		}
		var other inventory
		if json.Unmarshal(text, &other) != nil || other.Workspace != s.opts.Workspace.Path || !lives(dir) {
			continue
		}
		s.warn(fmt.Sprintf("The session %s works on this workspace too, in bind mode: what either of them changes is seen, and listed, by both.", folder.Name()))
	}
}
