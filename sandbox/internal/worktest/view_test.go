package worktest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-run/caisson/tools/workspace"
)

// TestReader checks that a Reader passes the same as every view.
func TestReader(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ws")
	must(t, os.Mkdir(dir, 0o755))
	Layout(t, dir)
	Control(t, dir)
	held, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { held.Close() })
	r, err := workspace.NewReader(held, workspace.ReaderOptions{HostPath: dir, ContainerPath: "/workspace"})
	must(t, err)
	View(t, dir, r)
}
