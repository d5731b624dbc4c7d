package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/policy"
)

// countingBackend counts the sandboxes of a backend that exist at once.
type countingBackend struct {
	sandbox.Backend
	mu        sync.Mutex
	now, most int
	all       int
}

func (c *countingBackend) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	s, err := c.Backend.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.all = c.now+1, c.all+1
	c.most = max(c.most, c.now)
	return &countedSandbox{Sandbox: s, backend: c}, nil
}

// countedSandbox is a sandbox of a countingBackend.
type countedSandbox struct {
	sandbox.Sandbox
	backend *countingBackend
	once    sync.Once
}

func (s *countedSandbox) Destroy(ctx context.Context) error {
	s.once.Do(func() { // it exists until then
		s.backend.mu.Lock()
		defer s.backend.mu.Unlock()
		s.backend.now--
	})
	return s.Sandbox.Destroy(ctx)
}

// forkBench is a session on an overlay of a workspace, on a backend of its own.
type forkBench struct {
	*bench
	workspace string
	counted   *countingBackend
	opts      runner.Options
}

func newForkBench(t *testing.T, backend, turns string) *forkBench {
	t.Helper()
	f := &forkBench{bench: benchSandbox(t, backend)}
	f.workspace = f.dir.Name()
	f.counted = &countingBackend{Backend: f.backend}
	w, err := runner.OpenWorkspace(f.workspace, runner.Protected{State: f.state})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	dir, err := sessiondir.Create(f.state, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	rules, err := policy.Preset("ci")
	if err != nil {
		t.Fatal(err)
	}
	f.opts = runner.Options{
		Dir: dir, Task: "work", Workspace: w,
		SandboxOptions: runner.SandboxOptions{Backend: f.counted, Setup: sandbox.Setup{Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()}, Mode: sandbox.ModeOverlay},
		ModelOptions:   runner.ModelOptions{Budget: limits.Budget{Rounds: new(int64(20))}},
		PolicyOptions:  runner.PolicyOptions{Policy: rules},
	}
	if turns != "" {
		script := filepath.Join(filepath.Dir(f.state), "script.yaml")
		writeFile(t, script, "version: 1\nname: test\nturns:\n"+turns, 0o600)
		model, err := replay.Open(script, replay.Options{})
		if err != nil {
			t.Fatal(err)
		}
		f.opts.Profiles = []loop.Profile{{Model: model}}
	}
	return f
}

// open opens the session.
func (f *forkBench) open(t *testing.T) *runner.Session {
	t.Helper()
	s, err := runner.Open(t.Context(), f.opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// execIn runs a shell command in a session, and returns its output.
func execIn(t *testing.T, s *runner.Session, script string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	result, err := s.Exec(t.Context(), runner.UserCommand{Argv: []string{"/bin/sh", "-ec", script}, Stdout: &out, Stderr: &out})
	if err == nil && !result.Status.Success() {
		err = fmt.Errorf("%+v", result.Status)
	}
	return out.String(), err
}

// requireNothingLeft fails unless all sandboxes and frozen layers are gone once the
// changes of sessions are discarded.
func (f *forkBench) requireNothingLeft(t *testing.T, closed []string) {
	t.Helper()
	var sessions []string
	for _, dir := range closed {
		if err := sessiondir.DiscardChanges(dir, ""); err != nil {
			t.Error(err)
		}
		sessions = append(sessions, filepath.Base(dir))
	}
	var left []string
	defer func() {
		if len(left) > 0 {
			t.Logf("left behind: %q", left)
		}
	}()
	eventually(t, "nothing is left", time.Minute, func() bool {
		left = slices.Concat(processesNaming(t, sessions...), mountsNaming(t, filepath.Dir(f.state)), cgroupsNaming(t, sessions...))
		list, err := f.backend.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list {
			if slices.Contains(sessions, l.Session) {
				left = append(left, fmt.Sprintf("%+v", l))
			}
		}
		return len(left) == 0
	})
	names, err := os.ReadDir(sessiondir.FrozenLayers(closed[0]))
	if err != nil || len(names) > 0 {
		t.Errorf("%d frozen layers are left, %v", len(names), err)
	}
}

// TestForksStartByAdmission: the sandboxes of 50 forks, whose first commands come at
// once, wait for memory, and never more exist than there is room for.
func TestForksStartByAdmission(t *testing.T) {
	const forks, room = 50, 6
	f := newForkBench(t, "runc", "")
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		t.Fatal(err)
	}
	// An eighth of a limit is set aside for a sandbox, and a sixteenth of the memory
	// for everything else.
	f.opts.Resources.MemoryBytes = int64(info.Totalram) * int64(info.Unit) * 15 / 16 * 8 / (room + 1) * 100 / 99
	// Sandboxes stay until another one waits for memory, or all exist.
	full := make(chan struct{})
	fill := sync.OnceFunc(func() { close(full) })
	var ran atomic.Int32
	f.opts.Notify = func(text string) {
		if strings.Contains(text, "for memory") {
			fill()
		}
	}
	s := f.open(t)
	if out, err := execIn(t, s, "echo common > common"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	all, err := s.Fork(t.Context(), forks)
	if err != nil {
		t.Fatal(err)
	}
	if f.counted.now != 0 || f.counted.all != 1 {
		t.Fatalf("%d sandboxes of %d after the fork", f.counted.now, f.counted.all)
	}
	errs := make([]error, forks)
	dirs := make([]string, forks)
	var group sync.WaitGroup
	for i, fork := range all {
		group.Go(func() {
			out, err := execIn(t, fork, fmt.Sprintf("cat common; ls | wc -l; echo %d > own", i))
			if out != "common\n1\n" {
				err = errors.Join(err, fmt.Errorf("it sees %q", out))
			}
			if ran.Add(1) == forks {
				fill()
			}
			<-full
			r := fork.Close()
			if len(r.Changed) != 2 {
				err = errors.Join(err, fmt.Errorf("it changed %+v", r.Changed))
			}
			errs[i], dirs[i] = err, r.Dir
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
	t.Logf("%d sandboxes at once at most", f.counted.most)
	if f.counted.most > room || f.counted.most < 2 || f.counted.all != forks+1 {
		t.Errorf("at most %d of %d sandboxes at once, room is for %d", f.counted.most, f.counted.all, room)
	}
	f.requireNothingLeft(t, append(dirs, s.Close().Dir))
}

// describeLayer returns all that a frozen layer is: names, metadata, times of change,
// contents.
func describeLayer(t *testing.T, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%s %o %d:%d %d links %d size %d %d", path, st.Mode, st.Uid, st.Gid, st.Rdev, st.Nlink, st.Size, st.Ctim.Nano())
		if d.Type().IsRegular() {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %x", sha256.Sum256(text))
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// TestFrozenLayerDoesNotChange: processes that write while their session is forked,
// by descriptors of deleted files too, and whatever the session and its forks do
// later, change nothing of the frozen layer.
func TestFrozenLayerDoesNotChange(t *testing.T) {
	const files = 500
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		// The command goes on in the background; its children are daemons.
		const attack = `rm -r deleted; mv kept renamed; exec 9> open; rm open
for i in 1 2 3 4; do setsid sh -c "trap '' TERM HUP; while :; do echo \$\$ >> log$i; echo x > tmp$i; mv tmp$i moved$i; ln -f log$i linked$i; echo x >&9; done" & done; wait`
		f := newForkBench(t, backend, "  - calls: [{tool: shell, input: {command: "+fmt.Sprintf("%q", attack)+", background: true}}]\n  - text: Started.\n")
		for _, dir := range []string{"deleted", "kept"} {
			if err := os.Mkdir(filepath.Join(f.workspace, dir), 0o700); err != nil {
				t.Fatal(err)
			}
			for i := range files {
				writeFile(t, filepath.Join(f.workspace, dir, fmt.Sprint(i)), "original\n", 0o600)
			}
		}
		s := f.open(t)
		turn, err := s.Start("go")
		if err != nil {
			t.Fatal(err)
		}
		turn.Report()
		upper := filepath.Join(f.opts.Dir.Path, sessiondir.OverlayDir, "upper")
		for i := 1; i <= 4; i++ { // in any order
			eventually(t, "the daemons write", time.Minute, func() bool {
				info, err := os.Lstat(filepath.Join(upper, fmt.Sprintf("linked%d", i)))
				return err == nil && info.Size() > 0
			})
		}
		// The control: without a fork the layer changes.
		before, _ := os.ReadFile(filepath.Join(upper, "log1"))
		eventually(t, "the layer changes", time.Minute, func() bool {
			now, err := os.ReadFile(filepath.Join(upper, "log1"))
			return err == nil && !bytes.Equal(before, now)
		})
		forks, err := s.Fork(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		frozen := sessiondir.FrozenLayers(f.opts.Dir.Path)
		want := describeLayer(t, frozen)
		if len(want) < files {
			t.Errorf("%d entries in the frozen layer", len(want))
		}
		var closed []string
		for i, session := range append(forks, s) {
			out, err := execIn(t, session, fmt.Sprintf(`! pgrep -f setsid; test ! -e deleted; test $(ls renamed | wc -l) = %d
echo %d >> log1; rm linked2; chmod 600 log3; mv renamed again; mkdir deleted; echo new > deleted/1; touch log4`, files, i))
			if err != nil {
				t.Errorf("session %d: %v: %s", i, err, out)
			}
		}
		for _, session := range append(forks, s) {
			r := session.Close()
			if r.Incomplete || r.ChangedCount.Files < files {
				t.Errorf("changed: %+v, incomplete %v", r.ChangedCount, r.Incomplete)
			}
			closed = append(closed, r.Dir)
		}
		if got := describeLayer(t, frozen); !slices.Equal(want, got) {
			for i := range min(len(want), len(got)) {
				if want[i] != got[i] {
					t.Errorf("the frozen layer changed:\n%s\n%s", want[i], got[i])
					break
				}
			}
			t.Errorf("%d entries, then %d", len(want), len(got))
		}
		f.requireNothingLeft(t, closed)
	})
}
