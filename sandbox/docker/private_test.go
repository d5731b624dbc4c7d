package docker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/caisson-run/caisson/sandbox/sandboxtest/privateengine"
)

func privateBed(t *testing.T, e *privateengine.Engine, o Options) *bed {
	t.Helper()
	base := t.TempDir()
	b := &bed{state: filepath.Join(base, "state"), workspace: filepath.Join(base, "workspace")}
	must(t, os.MkdirAll(b.state, 0o700))
	must(t, os.Mkdir(b.workspace, 0o755))
	o.Host = e.Host()
	b.backend = b.open(t, o)
	return b
}
