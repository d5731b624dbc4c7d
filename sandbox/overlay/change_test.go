package overlay

import (
	"testing"

	"github.com/caisson-run/caisson/tools/workspace"
)

// TestCountText: directories are counted beside the files, as a diff shows them.
func TestCountText(t *testing.T) {
	file, dir := Change{Now: workspace.TypeFile}, Change{Now: workspace.TypeDir}
	for want, list := range map[string][]Change{
		"0 files": nil, "1 file": {file}, "2 files": {file, file}, "1 directory": {dir}, "2 directories": {dir, dir},
		"3 files and 1 directory": {file, dir, file, file}, "1 file and 2 directories": {dir, dir, file},
	} {
		if got := CountText(list); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
