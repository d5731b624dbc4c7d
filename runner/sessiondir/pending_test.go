package sessiondir

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/overlay"
)

// privateDir returns a directory that can be a state directory.
func privateDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// newSession makes the directory of a session, with records.
func newSession(t *testing.T, state string) *Dir {
	t.Helper()
	d, err := Create(state, nil)
	if err == nil {
		err = os.WriteFile(filepath.Join(d.Path, record.TraceFile), []byte("{}\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// kill releases a session's log, as the kernel does for a killed process.
func (f *Dir) kill(t *testing.T) {
	t.Helper()
	if err := f.file.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantMarks checks where a session is marked.
func wantMarks(t *testing.T, state, session, when string, want ...string) {
	t.Helper()
	var got []string
	for _, in := range []string{pendingDir, keptDir} {
		names, err := marked(state, in)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(names, session) {
			got = append(got, in)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: marked in %q, want %q", when, got, want)
	}
}

// keepChanges gives a session changes of a workspace.
func keepChanges(t *testing.T, d *Dir, work string) {
	t.Helper()
	dir, err := os.Open(work)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	l, err := overlay.Create(filepath.Join(d.Path, OverlayDir), overlay.CreateOptions{Session: d.Session, Path: work, Workspace: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.Record(t.Context(), dir), l.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestMarks: a session is marked while it is alive or has left something.
func TestMarks(t *testing.T) {
	state, work := privateDir(t), t.TempDir()
	sweep := func() {
		t.Helper()
		if _, err := SweepPending(state); err != nil {
			t.Error(err)
		}
	}
	patch := func(dir, workspace, mode string) {
		text := fmt.Sprintf(`{"workspace":%q,"mode":%q,"paths":["a"]}`, workspace, mode)
		if err := os.WriteFile(filepath.Join(dir, PatchMarkFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name  string
		leave func(d *Dir)
		want  []string
	}{
		{"nothing", func(*Dir) {}, nil},
		{"changes", func(d *Dir) { keepChanges(t, d, work) }, []string{keptDir}},
		{"what a backend could not remove", func(d *Dir) { patch(filepath.Join(d.Path, SandboxDir), work, "") }, []string{pendingDir}},
		{"a patch that was cut off", func(d *Dir) { patch(d.Path, work, string(sandbox.ModeBind)) }, []string{pendingDir}},
		{"a patch in an overlay", func(d *Dir) { patch(d.Path, work, string(sandbox.ModeOverlay)) }, nil},
		{"a patch of a workspace that is gone", func(d *Dir) { patch(d.Path, work+"gone", string(sandbox.ModeBind)) }, nil},
	} {
		d := newSession(t, state)
		wantMarks(t, state, d.Session, c.name+": it lives", pendingDir)
		c.leave(d)
		sweep()
		wantMarks(t, state, d.Session, c.name+": it lives", pendingDir)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		wantMarks(t, state, d.Session, c.name+": closed", c.want...)
		killed := newSession(t, state)
		c.leave(killed)
		killed.kill(t)
		wantMarks(t, state, killed.Session, c.name+": killed", pendingDir)
		sweep()
		wantMarks(t, state, killed.Session, c.name+": swept", c.want...)
		// As of an earlier version.
		for _, in := range c.want {
			if err := os.Remove(filepath.Join(state, in, killed.Session)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Sweep(state); err != nil {
			t.Error(err)
		}
		wantMarks(t, state, killed.Session, c.name+": found by a whole sweep", c.want...)
	}

	begun, err := Create(state, nil) // and nothing more
	if err != nil {
		t.Fatal(err)
	}
	if err := begun.Close(); err != nil {
		t.Error(err)
	}
	wantMarks(t, state, begun.Session, "it never began")

	again := newSession(t, state)
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	resumed, err := Reopen(state, again.Session, nil)
	if err != nil {
		t.Fatal(err)
	}
	sweep()
	wantMarks(t, state, again.Session, "resumed", pendingDir)
	if err := resumed.Close(); err != nil {
		t.Error(err)
	}
	wantMarks(t, state, again.Session, "closed again")
}

// TestKeptMarks: a session is marked while it keeps changes, and the next start looks at touched ones.
func TestKeptMarks(t *testing.T) {
	state, work := privateDir(t), t.TempDir()
	var sessions []*Dir
	for range 3 {
		d := newSession(t, state)
		keepChanges(t, d, work)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, d)
	}
	expire := func(keep time.Duration, want ...string) {
		t.Helper()
		if gone, err := ExpireChanges(state, keep); err != nil || !slices.Equal(gone, want) {
			t.Errorf("expired %q, %v; want %q", gone, err, want)
		}
		if _, err := SweepPending(state); err != nil {
			t.Error(err)
		}
	}
	shown, discarded, last := sessions[0].Session, sessions[1].Session, sessions[2].Session
	l, err := OpenChanges(state, shown)
	if err != nil {
		t.Fatal(err)
	}
	wantMarks(t, state, shown, "opened", pendingDir, keptDir)
	if err := errors.Join(l.Close(), DiscardChanges(Path(state, discarded), "me")); err != nil {
		t.Fatal(err)
	}
	expire(time.Hour)
	wantMarks(t, state, shown, "only shown", keptDir)
	wantMarks(t, state, discarded, "discarded")
	wantMarks(t, state, last, "not touched", keptDir)
	expire(0, shown, last)
	wantMarks(t, state, shown, "expired")
	wantMarks(t, state, last, "expired")
}

// TestInventoryMarks: the next session on the workspace is told what appeared during a killed one, however
// many starts on other workspaces come between.
func TestInventoryMarks(t *testing.T) {
	state, work := privateDir(t), t.TempDir()
	killed := newSession(t, state)
	list := filepath.Join(killed.Path, inventoryFile(work))
	if err := os.WriteFile(list, fmt.Appendf(nil, `{"workspace":%q,"repositories":null}`, work), 0o600); err != nil {
		t.Fatal(err)
	}
	killed.kill(t)
	for range 2 {
		if _, err := SweepPending(state); err != nil {
			t.Fatal(err)
		}
		wantMarks(t, state, killed.Session, "not told of", pendingDir)
	}
	next := newSession(t, state)
	if found, err := TakeNewRepositories(next.Path, work, []string{"new"}); err != nil || len(found) != 1 || found[0].Session != killed.Session {
		t.Errorf("found %+v, %v", found, err)
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	if _, err := SweepPending(state); err != nil {
		t.Fatal(err)
	}
	wantMarks(t, state, killed.Session, "told of")
}

// TestSweepPendingIsBounded: a start sweeps some of many dead sessions. Sessions that must stay, or are
// alive, don't keep others from their turn.
func TestSweepPendingIsBounded(t *testing.T) {
	const dead, waiting = 200, 50
	state, work := privateDir(t), t.TempDir()
	for i := range dead + waiting {
		d := newSession(t, state)
		if i < waiting {
			text := fmt.Sprintf(`{"workspace":%q,"mode":"bind","paths":["a"]}`, work)
			if err := os.WriteFile(filepath.Join(d.Path, PatchMarkFile), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		d.kill(t)
	}
	left := func() int {
		names, err := marked(state, pendingDir)
		if err != nil {
			t.Fatal(err)
		}
		return len(names) - waiting
	}
	boxes := func() int { // including waiting sessions
		names, err := filepath.Glob(Path(state, "*/"+SandboxDir))
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	starts := 0
	for left() > 0 || boxes() > 0 {
		before := left()
		if _, err := SweepPending(state); err != nil {
			t.Fatal(err)
		}
		if starts++; starts == 1 && left() == 0 {
			t.Fatal("one start tidied everything")
		}
		if starts > 10*(dead+waiting)/sweptAlways {
			t.Fatalf("after %d starts, %d are left, %d before the last, and %d directories of sandboxes", starts, left(), before, boxes())
		}
	}
	t.Logf("%d starts tidied %d sessions", starts, dead)
}

// loopState is the environment variable with the state directory of TestSessionLoop, the child process of
// TestKilledAnywhere.
const loopState = "CAISSON_TEST_STATE"

// TestSessionLoop makes and closes sessions, of which some begin, until it is killed.
func TestSessionLoop(t *testing.T) {
	state := os.Getenv(loopState)
	if state == "" {
		return
	}
	for i := 0; ; i++ {
		d, err := Create(state, nil)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			fmt.Println("{begun")
		}
		output := filepath.Join(d.Path, OutputDir)
		if i%2 == 0 {
			err = errors.Join(os.WriteFile(filepath.Join(d.Path, record.TraceFile), []byte("{}\n"), 0o600), os.Mkdir(output, 0o700), os.Remove(output))
		}
		if err := errors.Join(err, d.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKilledAnywhere kills processes at random moments of making and closing sessions. Unmarked sessions
// have nothing left to sweep, and starts sweep the others.
func TestKilledAnywhere(t *testing.T) {
	state := privateDir(t)
	kills := 100
	if testing.Short() {
		kills = 20
	}
	for range kills {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSessionLoop$")
		cmd.Env = append(os.Environ(), loopState+"="+state)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Millisecond))))
		if err := errors.Join(err, cmd.Process.Kill()); err != nil || cmd.Wait() == nil {
			t.Fatalf("the child process: %q, %v", line, err)
		}
	}
	tidy := func(session string) error {
		for _, name := range []string{SandboxDir, OutputDir} {
			if _, err := os.Lstat(filepath.Join(Path(state, session), name)); err == nil {
				return fmt.Errorf("%s has %s", session, name)
			}
		}
		if !hasRecords(Path(state, session)) {
			return fmt.Errorf("%s has no records", session)
		}
		return nil
	}
	sessions, err := List(state)
	pending, pendingErr := marked(state, pendingDir)
	if err := errors.Join(err, pendingErr); err != nil || len(pending) == 0 {
		t.Fatalf("control: %d are marked, %v", len(pending), err)
	}
	untidy := 0
	for _, session := range sessions {
		if err := tidy(session); err != nil {
			untidy++
			if !slices.Contains(pending, session) {
				t.Errorf("not marked: %v", err)
			}
		}
	}
	t.Logf("%d sessions, of which %d are marked and %d untidy", len(sessions), len(pending), untidy)
	if untidy == 0 {
		t.Error("control: no session is untidy")
	}
	long := time.Now().Add(-time.Hour)
	for _, path := range append(mustGlob(t, Path(state, "*")), mustGlob(t, filepath.Join(state, pendingDir, "*"))...) {
		if err := os.Chtimes(path, long, long); err != nil { // the sweep leaves what may be in the making
			t.Fatal(err)
		}
	}
	for range kills {
		if _, err := SweepPending(state); err != nil {
			t.Error(err)
		}
	}
	if sessions, err = List(state); err != nil {
		t.Fatal(err)
	}
	for _, session := range sessions {
		if err := tidy(session); err != nil {
			t.Error("after starts: ", err)
		}
		wantMarks(t, state, session, "after starts")
	}
	if left := mustGlob(t, filepath.Join(state, pendingDir, "*")); len(left) > 0 {
		t.Errorf("marks are left: %q", left)
	}
}

func mustGlob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
