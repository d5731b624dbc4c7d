package tracker

import (
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// newTestBind returns the tracker of a workspace with a set-user-ID file, with its state in dir.
func newTestBind(t *testing.T, dir string) (path string, b *bindTracker) {
	t.Helper()
	path = t.TempDir()
	makeFile(t, path, "mine", 0o4755)
	opened, err := workspace.OpenDir(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = opened.Close() })
	reader, err := workspace.NewReader(opened, workspace.ReaderOptions{HostPath: path})
	if err != nil {
		t.Fatal(err)
	}
	box := livesandbox.New(t.Context(), livesandbox.Options{})
	box.MarkTouched()
	b = newBind(Options{
		CreateOptions: overlay.CreateOptions{Session: "ses_1", Path: path, Workspace: opened},
		Dir:           dir, Original: reader, Sandbox: box, Log: zap.NewNop(), Warn: func(string) {},
	}, func() error { return nil })
	return path, b
}

// TestPrivilegesAfterASlowStart: privileged files are found for protection even if the time for file
// states is over.
func TestPrivilegesAfterASlowStart(t *testing.T) {
	_, b := newTestBind(t, t.TempDir())
	b.passTime = time.Nanosecond
	b.lookAtFiles(t.Context())
	if _, ok := b.privileges.was["mine"]; !ok || len(b.privileges.was) != 1 {
		t.Errorf("found %v", b.privileges.was)
	}
}

// TestPrivilegesAfterASlowComparison: new privileges are cleared, and old ones kept, even if the time for
// the comparison is over.
func TestPrivilegesAfterASlowComparison(t *testing.T) {
	path, b := newTestBind(t, t.TempDir())
	b.lookAtFiles(t.Context())
	close(b.done)
	b.passTime = time.Nanosecond
	makeFile(t, path, "new", 0o4755)
	var end record.SessionEnded
	b.AddChanges(&end, false)
	if len(end.Cleared) != 1 || end.Cleared[0].Path != "new" || end.Cleared[0].Why != "" || !end.Incomplete {
		t.Errorf("cleared %+v, incomplete %v", end.Cleared, end.Incomplete)
	}
	if mode := modeOf(t, filepath.Join(path, "new")); mode&0o4000 != 0 {
		t.Errorf("the new file has mode %o", mode)
	}
	if mode := modeOf(t, filepath.Join(path, "mine")); mode != 0o4755 {
		t.Errorf("the old file has mode %o", mode)
	}
}
