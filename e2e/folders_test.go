package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bombFiles is how many files the widest folder of TestFolderBombs has, and a
// quarter as many links; BOMB_ENTRIES overrides it. The catalogue says 200,000.
const bombFiles = 1500

// TestFolderBombs is acceptance case A13: a session reads and deletes folders of
// very many files, of 400 folders within one another and of links in a circle. Readers
// stop at their bounds and say so, the deletes are whole, and the session's own
// looks at the workspace end. A plain listing gives all.
func TestFolderBombs(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		files := fromEnv(t, "BOMB_ENTRIES", bombFiles)
		m := newMachine(t)
		for name, make := range map[string]func(dir int, i int) error{
			"wide": func(dir, i int) error {
				return unix.Mknodat(dir, fmt.Sprintf("%06d", i*7919%files), unix.S_IFREG|0o644, 0)
			},
			"lattice": func(dir, i int) error {
				if i >= files/4 {
					return nil
				}
				return unix.Symlinkat(fmt.Sprintf("../lattice/%06d", (i*7+1)%(files/4)), dir, fmt.Sprintf("%06d", i))
			},
		} {
			path := filepath.Join(m.workspace, name)
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
			dir, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			for i := range files {
				if err := make(int(dir.Fd()), i); err != nil && !errors.Is(err, unix.EEXIST) {
					t.Fatal(err)
				}
			}
			if err := dir.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if all, err := os.ReadDir(filepath.Join(m.workspace, "wide")); err != nil || len(all) < files/2 {
			t.Fatalf("control: a plain listing gives %d entries, %v", len(all), err)
		}
		if _, err := os.ReadFile(filepath.Join(m.workspace, "lattice", "000000")); !errors.Is(err, unix.ELOOP) {
			t.Fatalf("control: a plain read in the lattice: %v", err)
		}
		m.write(t, "kept.txt", "kept\n")
		const deep = `mkdir deep && cd deep && for i in 1 2 3 4; do d=$(printf 'd/%.0s' $(seq 100)); mkdir -p $d && cd $d || exit 1; done; echo made`
		del := func(path string) scriptCall {
			return call("delete_file", map[string]any{"path": path, "recursive": true})
		}
		out := m.runTask(t, append([]string{"--backend", backend}, m.playing(t,
			[]scriptCall{shell(deep)},
			[]scriptCall{
				call("list_dir", map[string]any{"path": "wide"}), call("glob", map[string]any{"pattern": "**"}),
				call("list_dir", map[string]any{"path": "deep", "depth": 20}), call("read_file", map[string]any{"path": "lattice/000000"}),
				call("grep", map[string]any{"pattern": "kept"}),
			},
			[]scriptCall{del("wide"), del("lattice"), del("deep")},
			[]scriptCall{shell("ls -A | tr '\\n' ' '")},
		)...)...)
		out.want(t, 0)
		results := out.records.results(t)
		if len(results) != 10 {
			t.Fatalf("%d results", len(results))
		}
		for i, want := range map[int]string{0: "made", 1: "1000", 2: "1000", 4: "circle", 5: "kept.txt", 9: "kept.txt"} {
			if !strings.Contains(results[i].text(), want) {
				t.Errorf("call %d lacks %q:\n%.600s", i+1, want, results[i].text())
			}
		}
		if n := strings.Count(results[1].text(), "\n"); n > 1100 {
			t.Errorf("the listing has %d lines", n)
		}
		for _, name := range []string{"wide", "lattice", "deep"} {
			if _, err := os.Lstat(filepath.Join(m.workspace, name)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left: %v", name, err)
			}
		}
		m.wantNothingLeft(t, out.records[0].Session)
	})
}

// stuckMount mounts a FUSE file system that nobody serves: whoever asks it
// anything waits until release, which the end of the test calls too.
func stuckMount(t *testing.T, dir string) (release func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs /dev/fuse: %v", err)
	}
	if err := unix.Mount("stuck", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		_ = unix.Close(fd)
		t.Skipf("needs FUSE mounts: %v", err)
	}
	done := false
	release = func() {
		if !done {
			done = true
			_ = unix.Close(fd)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	}
	t.Cleanup(release)
	return release
}

// TestStuckFileSystem is acceptance case A17: a file system gets stuck in the
// workspace while a session runs, and stays so beyond its end. No call waits for
// it, another session works meanwhile, and this one takes everything down and
// reports that it could not look at the whole workspace. A plain read waits all
// the while.
func TestStuckFileSystem(t *testing.T) {
	onEachBackend(t, func(t *testing.T, backend string) {
		m, other := newMachine(t), newMachine(t)
		m.write(t, "f", "all is well\n")
		dir := filepath.Join(m.workspace, "stuck")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		run := m.start(t, taskArgs(m, append([]string{"--backend", backend}, m.playing(t,
			[]scriptCall{shell("touch ready; while [ ! -e go ]; do sleep 0.05; done")},
			[]scriptCall{
				call("read_file", map[string]any{"path": "stuck/f"}), call("list_dir", map[string]any{"path": "stuck"}),
				call("list_dir", map[string]any{"path": ".", "depth": 3}), call("glob", map[string]any{"pattern": "**"}),
				call("grep", map[string]any{"pattern": "well"}), call("read_file", map[string]any{"path": "f"}),
			},
			[]scriptCall{shell("rm go; echo still here")},
		)...)...)...)
		m.awaitFile(t, run, "ready")
		release := stuckMount(t, dir)
		plain := make(chan error, 1)
		go func() {
			_, err := os.ReadDir(dir)
			plain <- err
		}()
		beside := other.runTask(t, append([]string{"--backend", backend}, other.playing(t, []scriptCall{shell("echo beside")})...)...)
		beside.want(t, 0)
		m.write(t, "go", "")
		out := run.wait(t, deadline)
		select {
		case err := <-plain:
			t.Errorf("control: the plain read came back: %v", err)
		default:
		}
		out.records = readRecords(t, out.stdout)
		out.want(t, 58) // nothing can be said of the stuck directory
		results := out.records.results(t)
		if len(results) != 8 {
			t.Fatalf("%d results", len(results))
		}
		for i, want := range map[int]string{1: "another mount", 2: "another mount", 3: "stuck", 5: "all is well", 6: "all is well", 7: "still here"} {
			if !strings.Contains(results[i].text(), want) {
				t.Errorf("call %d lacks %q:\n%s", i+1, want, results[i].text())
			}
		}
		if left := out.records.end(t).Left; len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		release()
		select {
		case <-plain:
		case <-time.After(deadline):
			t.Error("the plain read does not end")
		}
		m.wantNothingLeft(t, out.records[0].Session) // which took the mount itself for something left
	})
}

// TestWorkspaceReplaced is acceptance case A20: while a session runs, its folder
// is moved away and a link to another one takes the name. Commands, reads and
// writes stay with the folder that the session began with. By its path the other
// one is reached, which is the control.
func TestWorkspaceReplaced(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		elsewhere, canary := t.TempDir(), secret()
		writeFile(t, filepath.Join(elsewhere, "canary"), canary, 0o644)
		m.write(t, "f", "of the workspace\n")
		run := m.start(t, taskArgs(m, append([]string{"--backend", backend}, m.playing(t,
			[]scriptCall{shell("touch ready; while [ ! -e go ]; do sleep 0.05; done")},
			[]scriptCall{
				shell("cat f; cat canary; touch by-command"), call("read_file", map[string]any{"path": "f"}),
				call("read_file", map[string]any{"path": "canary"}), call("list_dir", map[string]any{}),
				call("write_file", map[string]any{"path": "by-tool", "content": "x"}),
			},
		)...)...)...)
		m.awaitFile(t, run, "ready")
		moved := m.workspace + ".old"
		if err := errors.Join(os.Rename(m.workspace, moved), os.Symlink(elsewhere, m.workspace)); err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(filepath.Join(m.workspace, "canary")); err != nil || string(text) != canary {
			t.Fatalf("control: by its path the folder holds %q, %v", text, err)
		}
		writeFile(t, filepath.Join(moved, "go"), "", 0o644)
		out := run.wait(t, deadline)
		out.records = readRecords(t, out.stdout)
		out.want(t, 0)
		if strings.Contains(out.stdout+out.stderr, canary) {
			t.Error("the other folder's content came out")
		}
		results := out.records.results(t)
		if len(results) != 6 {
			t.Fatalf("%d results", len(results))
		}
		for i, want := range map[int]string{1: "of the workspace", 2: "of the workspace", 4: "ready", 5: "Created by-tool"} {
			if !strings.Contains(results[i].text(), want) {
				t.Errorf("call %d lacks %q:\n%s", i+1, want, results[i].text())
			}
		}
		for _, name := range []string{"by-command", "by-tool"} {
			if _, err := os.Lstat(filepath.Join(moved, name)); err != nil {
				t.Errorf("%s is not in the workspace: %v", name, err)
			}
		}
		entries, err := os.ReadDir(elsewhere)
		if err != nil || len(entries) != 1 {
			t.Errorf("the other folder holds %v, %v", entries, err)
		}
		m.wantNothingLeft(t, out.records[0].Session)
		if _, err := os.Lstat(filepath.Join(moved, ".git")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a placeholder is left: %v", err)
		}
	})
}
