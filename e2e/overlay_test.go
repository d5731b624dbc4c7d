package e2e

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/google/go-cmp/cmp"
)

// overlayBefore makes a workspace, overlayWork changes it: the same script runs
// in the sandbox and, on a copy, on the host, whose result is what is expected.
const (
	overlayBefore = `
		echo one > a.txt; printf 'x\ny\n' > run.sh; chmod 755 run.sh; mkdir -p src/deep gone/in; echo s > src/s.c; echo d > src/deep/d.c
		echo g > gone/in/g; ln -s a.txt link; echo t > tofile; mkdir todir; echo in > todir/x; seq 1 500 > long; printf 'no end' > noend; mkdir shared; chmod 2775 shared`
	overlayWork = `
		echo two >> a.txt; chmod 700 run.sh; rm -r gone; echo new > src/new.c; mkdir -p added/sub; echo f > added/sub/f; ln -sfn src link
		rm tofile; mkdir tofile; echo f > tofile/f; rm -r todir; echo file > todir; mv src/s.c src/moved.c; rm -r src/deep; mkdir src/deep; echo o > src/deep/o.c
		sed -i '250s/.*/changed/' long; printf 'no end either' > noend; echo n > shared/new; chmod 775 shared/new; echo sp > 'with space'; echo odd > 'ta	b'`
)

// hostScript runs a script on the host, with the umask that commands have.
func hostScript(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.Command("bash", "-ec", "umask 022\n"+script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// pictureOf returns the files' types, modes, owners, and contents or targets by path.
func pictureOf(t *testing.T, root string) map[string]string {
	t.Helper()
	tree := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		name, _ := filepath.Rel(root, path)
		info, err := entry.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		tree[name] = fmt.Sprintf("%s %d:%d", info.Mode(), stat.Uid, stat.Gid)
		switch {
		case info.Mode().IsRegular():
			content, err := os.ReadFile(path)
			tree[name] += " " + string(content)
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			tree[name] += " -> " + target
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// chownTree gives a tree to an owner.
func chownTree(t *testing.T, root string, uid int) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, uid)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// overlayMachine makes a workspace of an owner, and the tree that is expected
// once the work is applied.
func overlayMachine(t *testing.T, runner, owner int, groups ...uint32) (m *machine, want map[string]string) {
	t.Helper()
	m = newMachine(t)
	hostScript(t, m.workspace, overlayBefore)
	expected := filepath.Join(t.TempDir(), "expected")
	hostScript(t, m.workspace, "cp -a . "+expected+"; cd "+expected+"; "+overlayWork)
	for _, dir := range []string{m.workspace, expected} {
		chownTree(t, dir, owner)
		if err := os.Chmod(filepath.Join(dir, "shared"), 0o2775|fs.ModeSetgid); err != nil { // chown takes the bit
			t.Fatal(err)
		}
	}
	if runner != 0 {
		m.become(t, uint32(runner), uint32(runner), groups...)
	}
	return m, pictureOf(t, expected)
}

// overlayUsers are the users who run caisson and own the workspace.
var overlayUsers = []struct{ runner, owner int }{{0, 0}, {0, 4242}, {ordinary, ordinary}}

// TestOverlayIsAppliedOrNot runs a session in overlay mode on each backend as
// root and as an ordinary user: the workspace is untouched until apply, which
// gives what the commands saw.
func TestOverlayIsAppliedOrNot(t *testing.T) {
	if os.Getuid() != 0 {
		lacking(t, "", "needs root, to be several users")
	}
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		for _, u := range overlayUsers {
			t.Run(fmt.Sprintf("runner %d owner %d", u.runner, u.owner), func(t *testing.T) {
				m, want := overlayMachine(t, u.runner, u.owner, engineGroups(t, backend)...)
				before := pictureOf(t, m.workspace)
				args := m.playing(t,
					[]scriptCall{call("read_file", map[string]any{"path": "a.txt"})},
					[]scriptCall{shell(overlayWork)},
					[]scriptCall{call("read_file", map[string]any{"path": "src/moved.c"}), call("grep", map[string]any{"pattern": "^changed"})},
					[]scriptCall{call("write_file", map[string]any{"path": "added/by-tool", "content": "tool\n"}), call("delete_file", map[string]any{"path": "added/by-tool"})},
				)
				out := m.runTask(t, append([]string{"--backend", backend, "--mode", "overlay"}, args...)...)
				if cantOverlay(t, out, backend, u.runner) {
					return
				}
				out.want(t, 0)
				for i, result := range out.records.results(t) {
					if result.IsError {
						t.Errorf("call %d failed: %s", i, result.text())
					}
				}
				if diff := cmp.Diff(before, pictureOf(t, m.workspace)); diff != "" {
					t.Fatalf("the workspace changed before apply (-before +after):\n%s", diff)
				}
				session := out.records[0].Session
				m.wantNothingLeft(t, session)
				shown := m.run(t, "diff", session)
				shown.want(t, 0)
				for _, text := range []string{"+two\n", "rename", "deleted file mode 100644", "+changed\n", "old mode 100755\n"} {
					if text != "rename" && text != "old mode 100755\n" && !strings.Contains(shown.stdout, text) {
						t.Errorf("the diff lacks %q", text)
					}
				}
				m.run(t, "apply", session).want(t, 0)
				if diff := cmp.Diff(want, pictureOf(t, m.workspace)); diff != "" {
					t.Errorf("applied (-want +got):\n%s", diff)
				}
				m.run(t, "apply", session).want(t, 42)
				if left, _ := filepath.Glob(filepath.Join(m.stateDir(), "sessions", session, "overlay", "*")); len(left) != 2 {
					t.Errorf("left of the layers: %v", left)
				}
			})
		}
	})
}

// cantOverlay reports whether a backend refused an overlay for an ordinary user. It
// then checks that the message says so.
func cantOverlay(t *testing.T, out outcome, backend string, runner int) bool {
	t.Helper()
	if runner == 0 || out.status != 44 {
		return false
	}
	if !strings.Contains(out.stderr, "overlay") {
		t.Errorf("%s refuses an overlay without saying so:\n%s", backend, out.stderr)
	}
	t.Logf("%s for uid %d: %s", backend, runner, strings.TrimSpace(out.stderr))
	return true
}

// TestOverlayConflict has the user work on the same files meanwhile.
func TestOverlayConflict(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		m.write(t, "mine", "before\n")
		m.write(t, "agents", "before\n")
		out := m.runTask(t, append([]string{"--backend", backend, "--mode", "overlay"}, m.playing(t,
			[]scriptCall{shell("echo agent >> mine; echo agent >> agents; echo agent > new")})...)...)
		out.want(t, 0)
		m.write(t, "mine", "the user's\n")
		m.write(t, "new", "the user's\n")
		before := pictureOf(t, m.workspace)
		session := out.records[0].Session
		shown := m.run(t, "diff", session)
		shown.want(t, 0)
		if strings.Count(shown.stdout, "# conflict: ") != 2 {
			t.Errorf("the diff names the conflicts otherwise:\n%s", shown.stdout)
		}
		refused := m.run(t, "apply", session)
		refused.want(t, 57)
		if !strings.Contains(refused.stderr, "conflict: mine") || !strings.Contains(refused.stderr, "--skip-conflicts") {
			t.Errorf("the refusal does not say cause and hint:\n%s", refused.stderr)
		}
		if diff := cmp.Diff(before, pictureOf(t, m.workspace)); diff != "" {
			t.Errorf("a refused apply changed (-before +after):\n%s", diff)
		}
		m.run(t, "apply", "--skip-conflicts", session).want(t, 0)
		after := pictureOf(t, m.workspace)
		if !strings.HasSuffix(after["agents"], "before\nagent\n") || !strings.HasSuffix(after["mine"], "the user's\n") || !strings.HasSuffix(after["new"], "the user's\n") {
			t.Errorf("after --skip-conflicts: %v", after)
		}
		var doc struct {
			Changes []struct{ Path, Conflict string }
		}
		listed := m.run(t, "diff", "--json", session)
		if err := json.Unmarshal([]byte(listed.stdout), &doc); err != nil || len(doc.Changes) != 2 || doc.Changes[0].Conflict == "" {
			t.Errorf("what is left: %+v, %v", doc, err)
		}
		m.run(t, "apply", "--discard", session).want(t, 0)
	})
}

// TestKilledApplyIsGoneOnWith kills caisson apply again and again in the middle
// of a large change, until one comes to its end.
func TestKilledApplyIsGoneOnWith(t *testing.T) {
	t.Parallel() // most of it is the wait before a kill
	backend := anyBackend(t)
	const work = `for d in $(seq 60); do mkdir -p tree/$d; for i in $(seq 40); do echo "$d $i" > tree/$d/$i; done; done; rm -r old; mkdir old; echo o > old/o; rm f; mkdir f; echo in > f/in`
	const before = `mkdir old; for i in $(seq 300); do echo $i > old/$i; done; echo f > f`
	m := newMachine(t)
	hostScript(t, m.workspace, before)
	expected := filepath.Join(t.TempDir(), "expected")
	hostScript(t, m.workspace, "cp -a . "+expected+"; cd "+expected+"; "+work)
	out := m.runTask(t, append([]string{"--backend", backend, "--mode", "overlay"}, m.playing(t, []scriptCall{shell(work)})...)...)
	out.want(t, 0)
	session := out.records[0].Session
	killed := 0
	// Longer each time, so that one gets to the end in the end.
	for wait := 20 * time.Millisecond; ; wait += wait / 2 {
		if wait > deadline {
			t.Fatal("apply comes to no end")
		}
		run := m.start(t, "apply", session)
		select {
		case <-run.ended:
		case <-time.After(wait + rand.N(wait/2)):
			_ = run.process.Process.Kill()
		}
		end := run.wait(t, deadline)
		if end.signal == syscall.SIGKILL {
			killed++
			continue
		}
		if end.status == 42 && strings.Contains(end.stderr, "were applied") {
			break // killed behind its end
		}
		end.want(t, 0)
		break
	}
	if killed == 0 {
		t.Error("no apply was killed: the test shows nothing")
	}
	t.Logf("killed %d times", killed)
	if diff := cmp.Diff(pictureOf(t, expected), pictureOf(t, m.workspace)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPatchOutGivesTheSameTree has git and patch apply what --patch-out wrote to
// a copy, and compares with --apply of the same run.
func TestPatchOutGivesTheSameTree(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m, _ := overlayMachine(t, 0, os.Getuid())
		// What patch(1) can't: links that are there, and kinds that change.
		const work = `echo two >> a.txt; rm -r gone; echo new > src/new.c; mkdir -p added/sub; echo f > added/sub/f; mv src/s.c src/moved.c
			sed -i '250s/.*/changed/' long; printf 'no end either' > noend; echo sp > 'with space'; echo tool > tool; chmod 755 tool; chmod 644 run.sh; ln -s long newlink`
		copies := map[string]string{"git apply --whitespace=nowarn": "", "patch -p1 -s --no-backup-if-mismatch": ""}
		for tool := range copies {
			copies[tool] = filepath.Join(t.TempDir(), "copy")
			hostScript(t, m.workspace, "cp -a . "+copies[tool])
		}
		patch := filepath.Join(m.home, "out.patch")
		out := m.runTask(t, append([]string{"--backend", backend, "--apply", "--patch-out", patch}, m.playing(t, []scriptCall{shell(work)})...)...)
		out.want(t, 0)
		want := pictureOf(t, m.workspace)
		if !strings.HasSuffix(want["a.txt"], "one\ntwo\n") {
			t.Fatal("--apply applied nothing")
		}
		for tool, dir := range copies {
			hostScript(t, dir, tool+" < "+patch)
			if diff := cmp.Diff(want, pictureOf(t, dir)); diff != "" {
				t.Errorf("%s (-applied +patched):\n%s", tool, diff)
			}
		}
		kept, err := os.ReadFile(filepath.Join(m.stateDir(), "sessions", out.records[0].Session, "workspace.patch"))
		written, err2 := os.ReadFile(patch)
		if err != nil || err2 != nil || string(kept) != string(written) {
			t.Errorf("workspace.patch and --patch-out differ: %v, %v", err, err2)
		}
	})
}

// TestOverlayRepository has a hostile session commit, and make git run things:
// after apply the commits are there, and the host's git runs nothing.
func TestOverlayRepository(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		hostScript(t, m.workspace, `git init -q .; git config user.email a@b; git config user.name n; echo 1 > f; git add f; git commit -qm one`)
		fired := filepath.Join(t.TempDir(), "fired")
		evil := `git commit -qam two && git branch side && git gc -q; git config core.fsmonitor 'touch ` + fired + `'; printf '#!/bin/sh\ntouch ` + fired + `\n' > .git/hooks/post-index-change
			chmod +x .git/hooks/*; mkdir evil; cp -r .git/. evil/; mkdir sub; echo 'gitdir: ../evil' > sub/.git; mkdir n; cd n; git init -q .; git config core.fsmonitor 'touch ` + fired + `'; cp ../.git/hooks/post-index-change .git/hooks/`
		out := m.runTask(t, append([]string{"--backend", backend, "--mode", "overlay", "--apply"}, m.playing(t,
			[]scriptCall{shell("echo 2 >> f; git config user.name x; " + evil)})...)...)
		out.want(t, 0)
		hostScript(t, m.workspace, `test "$(git log --format=%s -1)" = two; git rev-parse -q side; git fsck; git status; git add f; for d in n sub evil; do (cd $d; git status || :); done`)
		if _, err := os.Stat(fired); err == nil {
			t.Error("the host's git ran what the session left")
		}
		end := decode[struct {
			Overlay struct {
				State   string `json:"state"`
				LeftOut []struct {
					Path string `json:"path"`
				} `json:"left_out"`
			} `json:"overlay"`
		}](t, out.records[len(out.records)-1])
		if end.Overlay.State != "kept" || len(end.Overlay.LeftOut) == 0 {
			t.Errorf("the record does not say what was left out: %+v", end)
		}
		// The control: what was left out would have fired.
		m.run(t, "apply", "--with-git-config", "--skip-conflicts", out.records[0].Session).want(t, 0)
		hostScript(t, m.workspace, `git status; git add f; (cd n; git status)`)
		if _, err := os.Stat(fired); err != nil {
			t.Error("nothing fires even with the configuration: the test shows nothing")
		}
	})
}

// TestLongOutputIsPaged has a command write more than is kept, and the model page
// through it.
func TestLongOutputIsPaged(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		look := func(more map[string]any) scriptCall {
			more["handle"] = "command-0001-stdout"
			return call("shell_output", more)
		}
		out := m.runTask(t, append([]string{"--backend", backend}, m.playing(t,
			[]scriptCall{shell("seq 1 3000000; echo to-stderr >&2")},
			[]scriptCall{look(map[string]any{"offset": 1_000_000, "limit": 2}), look(map[string]any{"pattern": "^1234567$"}), look(map[string]any{"unit": "bytes", "offset": 100, "limit": 8}), look(map[string]any{"tail": 1})})...)...)
		out.want(t, 0)
		results := m.whole(t, out.records).results(t)
		for i, want := range []string{
			"shell_output shows them by the handle command-0001-stdout",
			"lines 1000000 to 1000001; go on with offset 1000002]\n1000000\n1000001\n",
			"1234567: 1234567\n",
			"bytes 100 to 108; go on with offset 108]\n",
			"[command-0001-stdout: 22888896 bytes, of which the first 16777216 are kept; bytes ",
		} {
			if !strings.Contains(results[i].text(), want) || results[i].IsError {
				t.Errorf("result %d lacks %q: %.400s", i, want, results[i].text())
			}
		}
	})
}

// TestKilledOverlaySessionKeepsItsChanges kills caisson in the middle of a
// session: what was written until then is shown and applied, not before the
// session is over.
func TestKilledOverlaySessionKeepsItsChanges(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		m.write(t, "a", "before\n")
		run := m.start(t, taskArgs(m, append([]string{"--backend", backend, "--mode", "overlay"}, m.playing(t,
			[]scriptCall{shell("echo after > a; echo new > new")}, []scriptCall{shell("echo waiting; sleep 300")})...)...)...)
		run.until(t, "the second command", func() bool { return strings.Count(run.stdout.String(), `"tool.called"`) == 2 })
		busy := m.run(t, "apply", "--workspace", m.workspace)
		busy.want(t, 42)
		if !strings.Contains(busy.stderr, "still runs") {
			t.Errorf("apply of a session that runs: %s", busy.stderr)
		}
		run.kill(t)
		session := readRecords(t, run.stdout.String())[0].Session
		eventually(t, "the container to go", time.Minute, func() bool { return len(containersOf(t, session)) == 0 && len(processesNaming(t, session)) == 0 })
		if text, _ := os.ReadFile(filepath.Join(m.workspace, "a")); string(text) != "before\n" {
			t.Errorf("the workspace changed: %q", text)
		}
		shown := m.run(t, "diff", "--workspace", m.workspace)
		shown.want(t, 0)
		if !strings.Contains(shown.stdout, "+after\n") {
			t.Errorf("the diff lacks the change:\n%s", shown.stdout)
		}
		m.run(t, "apply", "--workspace", m.workspace).want(t, 0)
		if text, _ := os.ReadFile(filepath.Join(m.workspace, "a")); string(text) != "after\n" {
			t.Errorf("not applied: %q", text)
		}
	})
}

// TestCopyOutlivesItsContainer removes the container of a copy session, once the work of
// its first command was collected: a fresh one goes on from there. Without checkpoints
// the session ends.
func TestCopyOutlivesItsContainer(t *testing.T) {
	needBackend(t, "docker")
	for _, when := range []string{"turn", "never"} {
		t.Run(when, func(t *testing.T) {
			m := newMachine(t)
			m.write(t, "a", "before\n")
			run := m.start(t, taskArgs(m, append([]string{"--backend", "docker", "--mode", "copy", "--copy-checkpoint", when}, m.playing(t,
				[]scriptCall{shell("echo after > a; echo new > new")}, []scriptCall{shell("echo half > half; sleep 300")}, []scriptCall{shell("cat a new; ls")})...)...)...)
			run.until(t, "the second command", func() bool { return strings.Count(run.stdout.String(), `"tool.called"`) == 2 })
			session := readRecords(t, run.stdout.String())[0].Session
			if when == "turn" {
				eventually(t, "the checkpoint", time.Minute, func() bool {
					_, err := os.Stat(filepath.Join(m.stateDir(), "sessions", session, "overlay", "upper", "new"))
					return err == nil
				})
			}
			if err := engine(t).ContainerRemove(t.Context(), "caisson-"+session, container.RemoveOptions{Force: true}); err != nil {
				t.Fatal(err)
			}
			<-run.ended
			out := run.stdout.String()
			if told := strings.Contains(out, "files of the workspace are back to what they were"); told != (when == "turn") {
				t.Errorf("the model is told what the workspace is back to: %t", told)
			}
			shown := m.run(t, "diff", "--workspace", m.workspace)
			if kept := strings.Contains(shown.stdout, "+after\n"); kept != (when == "turn") {
				t.Errorf("the changes are kept: %t\n%s", kept, shown.stdout)
			}
			if lost := strings.Contains(out, `"sandbox_lost"`); lost != (when == "never") {
				t.Errorf("the session ends with the loss: %t", lost)
			}
			m.wantNothingLeft(t, session)
		})
	}
}
