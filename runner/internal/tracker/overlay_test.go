package tracker

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/runner/changes"
	"github.com/caisson-run/caisson/runner/internal/livesandbox"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
	"github.com/caisson-run/caisson/tools/workspace"
)

// overlayBench is the tracker of an overlay whose walk waits until walk is closed, or for its own end.
type overlayBench struct {
	*overlayTracker
	original, state string
	walk            chan struct{}
	walks           int
}

func newOverlayBench(t *testing.T, mode sandbox.WorkspaceMode) *overlayBench {
	t.Helper()
	b := &overlayBench{original: t.TempDir(), state: t.TempDir(), walk: make(chan struct{})}
	for _, name := range []string{"both", "session"} {
		write(t, filepath.Join(b.original, name), "old\n")
	}
	dir, err := workspace.OpenDir(b.original)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	reader, err := workspace.NewReader(dir, workspace.ReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !reader.IsLocal() {
		t.Skip("the walk is waited for on this file system")
	}
	o := b.options(t, "ses_1", mode, dir, reader)
	made, err := NewOverlay(o)
	if err != nil {
		t.Fatal(err)
	}
	b.overlayTracker = made.(*overlayTracker)
	b.onWalk = func(ctx context.Context) {
		b.walks++
		select {
		case <-b.walk:
		case <-ctx.Done():
		}
	}
	return b
}

func (b *overlayBench) options(t *testing.T, session string, mode sandbox.WorkspaceMode, dir *os.File, reader *workspace.Reader) Options {
	t.Helper()
	state := sessiondir.Path(b.state, session)
	if err := os.MkdirAll(state, 0o700); err != nil {
		t.Fatal(err)
	}
	box := livesandbox.New(t.Context(), livesandbox.Options{})
	box.MarkTouched()
	return Options{
		CreateOptions: overlay.CreateOptions{Session: session, Path: b.original, Workspace: dir},
		Dir:           state, Original: reader, Sandbox: box, Images: changes.NewPreimages(state), Log: zap.NewNop(), Mode: mode,
	}
}

// start begins the recording and waits until commands may run.
func (b *overlayBench) start(t *testing.T) {
	t.Helper()
	b.StartRecording(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := b.WaitRecorded(ctx); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // a step of the clock of files
}

// change changes two files in the sandbox and one of them in the original directory.
func (b *overlayBench) change(t *testing.T) {
	t.Helper()
	for _, name := range []string{"both", "session"} {
		write(t, filepath.Join(b.layers.Dir(), overlay.UpperDir, name), "agent\n")
	}
	write(t, filepath.Join(b.original, "both"), "user\n")
}

// end ends the session in the background.
func (b *overlayBench) end() (ended chan record.SessionEnded) {
	ended = make(chan record.SessionEnded, 1)
	go func() {
		var end record.SessionEnded
		b.AddChanges(&end, false)
		b.ReleaseState()
		ended <- end
	}()
	return ended
}

// soon returns how a session ended, if that didn't take until the walk's bound.
func soon(t *testing.T, ended chan record.SessionEnded) (end record.SessionEnded) {
	t.Helper()
	select {
	case end = <-ended:
	case <-time.After(ScanTime / 2):
		t.Fatal("the session waits for the walk")
	}
	return end
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func requireConflict(t *testing.T, end record.SessionEnded) {
	t.Helper()
	if o := end.Overlay; o.State != overlay.Kept || o.Changes != 2 || len(o.Conflicts) != 1 || o.Conflicts[0].Path != "both" {
		t.Errorf("ended with %+v", o)
	}
}

// baseOf returns the record of the original directory.
func (b *overlayBench) baseOf(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(b.layers.Dir(), "base.json"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestCommandsDoNotWaitForTheWalk, but the end of a session with changes does, and then knows the user's
// earlier changes.
func TestCommandsDoNotWaitForTheWalk(t *testing.T) {
	b := newOverlayBench(t, sandbox.ModeOverlay)
	b.start(t)
	b.change(t)
	ended := b.end()
	select {
	case end := <-ended:
		t.Fatalf("the session ended without the record: %+v", end.Overlay)
	case <-time.After(50 * time.Millisecond):
	}
	close(b.walk)
	requireConflict(t, <-ended)
	if base := b.baseOf(t); !strings.Contains(base, `"whole":true`) {
		t.Errorf("recorded %s", base)
	}
}

// TestUnchangedSessionEndsTheWalk, whose result is not needed. In a short session it doesn't even begin.
func TestUnchangedSessionEndsTheWalk(t *testing.T) {
	b := newOverlayBench(t, sandbox.ModeOverlay)
	b.start(t)
	if end := soon(t, b.end()); end.Overlay.State != overlay.Empty || b.walks != 0 {
		t.Errorf("ended with %+v after %d walks", end.Overlay, b.walks)
	}
	b = newOverlayBench(t, sandbox.ModeOverlay)
	begun := make(chan struct{})
	b.onWalk = func(ctx context.Context) {
		close(begun)
		<-ctx.Done()
	}
	b.start(t)
	<-begun
	if end := soon(t, b.end()); end.Overlay.State != overlay.Empty {
		t.Errorf("ended with %+v", end.Overlay)
	}
	left, err := os.ReadDir(b.layers.Dir())
	for _, entry := range left {
		if name := entry.Name(); name != "lock" && name != "state.json" {
			t.Errorf("%s is left", name)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// TestFailedWalk: only the time stays.
func TestFailedWalk(t *testing.T) {
	b := newOverlayBench(t, sandbox.ModeOverlay)
	b.onWalk = func(context.Context) {
		if err := os.Mkdir(filepath.Join(b.layers.Dir(), "base.json.new"), 0o700); err != nil {
			t.Error(err)
		}
	}
	b.start(t)
	b.change(t)
	requireConflict(t, <-b.end())
	if base := b.baseOf(t); !strings.Contains(base, `"time_only":true`) {
		t.Errorf("recorded %s", base)
	}
}

// TestForcedEndDoesNotWait: the second request to end a session ends the walk.
func TestForcedEndDoesNotWait(t *testing.T) {
	b := newOverlayBench(t, sandbox.ModeOverlay)
	force := make(chan struct{})
	b.Force = force
	b.start(t)
	b.change(t)
	close(force)
	requireConflict(t, soon(t, b.end()))
}

// TestCopyWaitsForTheWalk: files must not be sent older than recorded.
func TestCopyWaitsForTheWalk(t *testing.T) {
	b := newOverlayBench(t, sandbox.ModeCopy)
	b.start(t)
	if base := b.baseOf(t); b.walks != 0 || !strings.Contains(base, `"whole":true`) {
		t.Errorf("%d walks beside commands, recorded %s", b.walks, base)
	}
}

// TestForkWaitsForTheWalk: forks share the record.
func TestForkWaitsForTheWalk(t *testing.T) {
	b := newOverlayBench(t, sandbox.ModeOverlay)
	b.start(t)
	b.change(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.Freeze(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("frozen during the walk: %v", err)
	}
	close(b.walk)
	if changed, err := b.Freeze(t.Context()); err != nil || !changed {
		t.Fatalf("frozen %v, %v", changed, err)
	}
	forked, err := b.Fork(b.options(t, "ses_2", sandbox.ModeOverlay, b.Workspace, b.Original))
	if err != nil {
		t.Fatal(err)
	}
	var end record.SessionEnded
	forked.AddChanges(&end, false)
	requireConflict(t, end)
}

// TestKilledBeforeTheRecord: a session that was killed during the walk keeps its changes, and all later
// changes by the user conflict.
func TestKilledBeforeTheRecord(t *testing.T) {
	b := newOverlayBench(t, sandbox.ModeOverlay)
	b.start(t)
	b.change(t)
	b.dropWalk()
	dir := b.layers.Dir()
	write(t, filepath.Join(dir, "base.json.new"), `{"version":1`)
	if err := b.layers.Close(); err != nil {
		t.Fatal(err)
	}
	if gone, err := sessiondir.ExpireChanges(b.state, time.Hour); err != nil || len(gone) != 0 {
		t.Errorf("expired %v, %v", gone, err)
	}
	last, err := sessiondir.OpenLastChanges(b.state, b.Workspace, b.original)
	if err != nil {
		t.Fatal(err)
	}
	list, err := last.Changes(t.Context(), b.Workspace, overlay.ReadOptions{})
	if err != nil || len(list.List) != 2 || list.List[0].Conflict == "" || list.List[1].Conflict != "" {
		t.Errorf("%+v, %v", list, err)
	}
	again, state, err := ReopenOverlay(b.options(t, "ses_1", sandbox.ModeOverlay, b.Workspace, b.Original))
	if err != nil || state != overlay.Kept {
		t.Fatalf("reopened %s, %v", state, err)
	}
	again.StartRecording(t.Context())
	if base, err := os.ReadFile(filepath.Join(dir, "base.json")); err != nil || !bytes.Contains(base, []byte(`"time_only":true`)) {
		t.Errorf("recorded %s, %v", base, err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "base.json.new")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was half made is left: %v", err)
	}
	var end record.SessionEnded
	again.AddChanges(&end, false)
	again.ReleaseState()
	requireConflict(t, end)
	if gone, err := sessiondir.ExpireChanges(b.state, 0); err != nil || len(gone) != 1 {
		t.Errorf("expired %v, %v", gone, err)
	}
}
