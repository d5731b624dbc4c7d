package sessiondir

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/sandbox"
)

// PatchMarkFile is a file in a session's directory that exists while apply_patch makes several
// changes. If it outlives the session's process, a patch was interrupted.
const PatchMarkFile = "patch.json"

// PatchMark is the content of PatchMarkFile.
type PatchMark struct {
	Workspace string   `json:"workspace"`
	Mode      string   `json:"mode"`
	Paths     []string `json:"paths"` // of the files being changed
}

// CutOffPatch returns a note about a patch that was interrupted when the process of an overlay
// session was killed, or "".
func CutOffPatch(stateDir, session string) string {
	dir := Path(stateDir, session)
	mark, ok := ReadPatchMark(dir)
	if !ok || LivesIn(dir) {
		return ""
	}
	return CutOffNote("apply_patch", mark.Paths, "the diff")
}

// CutOffNote returns a note that names the first of the paths.
func CutOffNote(what string, paths []string, check string) string {
	const most = 20
	list := strings.Join(paths[:min(len(paths), most)], ", ")
	if more := len(paths) - most; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%s was cut off while changing %s: check them with %s", what, list, check)
}

// ReadPatchMark reads the mark in a session's directory, if there is one.
func ReadPatchMark(dir string) (PatchMark, bool) {
	var mark PatchMark
	text, err := os.ReadFile(filepath.Join(dir, PatchMarkFile))
	if err != nil || json.Unmarshal(text, &mark) != nil {
		return PatchMark{}, false
	}
	return mark, true
}

// hasUnreportedPatch reports whether the session in dir left a patch of which the next session on
// the workspace, if that still exists, has to warn.
func hasUnreportedPatch(dir string) bool {
	mark, ok := ReadPatchMark(dir)
	return ok && mark.Mode == string(sandbox.ModeBind) && mayExist(mark.Workspace)
}

// RemovePatchMark removes the mark in a session's directory, if there is one.
func RemovePatchMark(dir string) error {
	return state.IgnoreMissing(os.Remove(filepath.Join(dir, PatchMarkFile)))
}
