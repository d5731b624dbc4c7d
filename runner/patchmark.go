package runner

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/sandbox"
)

// patchMarkFile is the name, in a session's directory, of the file that exists
// while apply_patch makes several changes. Where it outlives the session's
// process, a patch was cut off.
const patchMarkFile = "patch.json"

// patchMark is the content of that file.
type patchMark struct {
	Workspace string   `json:"workspace"`
	Mode      string   `json:"mode"`
	Paths     []string `json:"paths"` // of the files that were being changed
}

// CutOffPatch returns a note about the patch that was cut off when the process
// of a session in overlay mode was killed, or "".
func CutOffPatch(stateDir, session string) string {
	dir := SessionDir(stateDir, session)
	mark, ok := readPatchMark(dir)
	if !ok || LivesIn(dir) {
		return ""
	}
	return cutOffNote("apply_patch", mark.Paths, "the diff")
}

// cutOffNote returns a note that names the first of the paths.
func cutOffNote(what string, paths []string, check string) string {
	const most = 20
	list := strings.Join(paths[:min(len(paths), most)], ", ")
	if more := len(paths) - most; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%s was cut off while changing %s: check them with %s", what, list, check)
}

// readPatchMark reads the mark in a session's directory, if there is one.
func readPatchMark(dir string) (patchMark, bool) {
	var mark patchMark
	text, err := os.ReadFile(filepath.Join(dir, patchMarkFile))
	if err != nil || json.Unmarshal(text, &mark) != nil {
		return patchMark{}, false
	}
	return mark, true
}

// hasUnreportedPatch reports whether the next session on a workspace that still
// exists has to warn of a patch that the session in dir left.
func hasUnreportedPatch(dir string) bool {
	mark, ok := readPatchMark(dir)
	if !ok || mark.Mode != string(sandbox.ModeBind) {
		return false
	}
	_, err := os.Stat(mark.Workspace)
	return err == nil
}
