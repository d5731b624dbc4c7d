package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// daemon is a command that says something, starts a double-forked daemon in a
// session of its own which ignores SIGTERM, and stays. The marker is an
// argument of each process, to be looked for in the host's /proc; the file
// "started" in the workspace says that all of them run.
func daemon(marker string) string {
	ignore := fmt.Sprintf(`sh -c 'trap "" TERM HUP INT; while :; do sleep 1; done' %s`, marker)
	return fmt.Sprintf(`setsid sh -c '(trap "" TERM; setsid %s &) &' %s
trap "" TERM
echo partial-output-of-%s
sleep 1
touch started
while :; do sleep 1; done; : %s`, strings.ReplaceAll(ignore, `'`, `'"'"'`), marker, marker, marker)
}

// TestCancelLeavesNoProcess cancels a command that has left daemons behind, by
// Ctrl-C and by the run's time limit: nothing of it lives on, what it said is
// in its result, and the exit status says what happened.
func TestCancelLeavesNoProcess(t *testing.T) {
	t.Parallel()
	onAllBackends(t, func(t *testing.T, backend string) {
		for i, test := range []struct {
			name   string
			args   []string
			signal syscall.Signal
			status int
			reason string
		}{
			{"interrupt", nil, syscall.SIGINT, 130, "cancelled"},
			{"terminate", nil, syscall.SIGTERM, 143, "cancelled"},
			{"timeout", []string{"--timeout", "10s"}, 0, 53, "limit"},
		} {
			if !sandboxtest.RunsAt(i, backend, backendNames...) {
				continue
			}
			t.Run(test.name, func(t *testing.T) {
				m := newMachine(t)
				marker := "marker-" + secret()[:16]
				args := append([]string{"--backend", backend}, test.args...)
				run := m.start(t, taskArgs(m, append(args, m.playing(t, []scriptCall{shell(daemon(marker))})...)...)...)
				m.awaitDaemon(t, run)
				session := readRecords(t, run.stdout.String())[0].Session
				wantVisible(t, backend, marker, session)
				if test.signal != 0 {
					run.signal(t, test.signal)
				}
				out := run.wait(t, time.Minute)
				out.records = readRecords(t, out.stdout)
				out.want(t, test.status)
				end := out.records.end(t)
				if end.Reason != test.reason || end.ExitStatus != test.status {
					t.Errorf("session.ended says %s and %d, want %s and %d", end.Reason, end.ExitStatus, test.reason, test.status)
				}
				if len(end.Left) > 0 {
					t.Errorf("session.ended says that this is left: %v", end.Left)
				}
				wantPartial(t, out.records, "partial-output-of-"+marker)
				if left := processesNaming(t, marker); len(left) > 0 {
					t.Errorf("processes of the command live on: %v", left)
				}
				m.wantNothingLeft(t, session)
			})
		}
	})
}

// awaitDaemon waits until the processes of daemon run.
func (m *machine) awaitDaemon(t *testing.T, run *running) {
	t.Helper()
	run.await(t, `"sandbox.started"`)
	m.awaitFile(t, run, "started")
}

// wantVisible is the positive control: the scan sees the running command. With
// gVisor, whose processes the host doesn't see, it sees the container's.
func wantVisible(t *testing.T, backend, marker, session string) {
	t.Helper()
	if backend == "gvisor" {
		eventually(t, "control: the container's processes are seen", time.Minute, func() bool {
			return len(processesNaming(t, session)) > 0
		})
		return
	}
	eventually(t, "control: the command and its daemon are seen", time.Minute, func() bool {
		return len(processesNaming(t, marker)) >= 2
	})
}

// wantPartial fails the test unless the one call failed as cancelled and its
// result holds what the command had said.
func wantPartial(t *testing.T, all records, said string) {
	t.Helper()
	failed := all.of("tool.failed")
	if len(failed) != 1 {
		t.Fatalf("%d tool.failed records, want 1", len(failed))
	}
	payload := decode[struct {
		Class   string `json:"error_class"`
		Partial string `json:"partial_output"`
	}](t, failed[0])
	if payload.Class != "cancelled" || !strings.Contains(payload.Partial, said) {
		t.Errorf("tool.failed is %+v, want cancelled with %q", payload, said)
	}
	results := all.results(t)
	if len(results) != 1 || !strings.Contains(results[0].text(), said) {
		t.Errorf("the call's result lacks %q: %+v", said, results)
	}
}

// TestKilledCaissonLeavesNothing kills caisson with SIGKILL in the middle of a
// command: the container goes away by itself, and the next start reports and
// removes whatever else was left, such as what the command wrote to its home and
// to a frozen cache.
func TestKilledCaissonLeavesNothing(t *testing.T) {
	onAllBackends(t, func(t *testing.T, backend string) {
		t.Parallel()
		m := newMachine(t)
		marker := "marker-" + secret()[:16]
		written := "written-" + secret()[:16]
		run := m.start(t, taskArgs(m, append([]string{"--backend", backend, "--cache", "~/.tool", "--cache-use", "frozen"},
			m.playing(t, []scriptCall{shell("touch ~/home-" + written + " ~/.tool/cache-" + written + "; " + daemon(marker))})...)...)...)
		m.awaitDaemon(t, run)
		killed := readRecords(t, run.stdout.String())
		session, container := killed[0].Session, killed.attestation(t).Container
		wantVisible(t, backend, marker, session)
		run.signal(t, os.Kill)
		if out := run.wait(t, time.Minute); out.signal != syscall.SIGKILL {
			t.Fatalf("caisson ended by %v, not SIGKILL", out.signal)
		}
		eventually(t, "the container's processes are gone", time.Minute, func() bool {
			return len(processesNaming(t, marker, session, container)) == 0
		})
		eventually(t, "the engine has no such container any more", time.Minute, func() bool {
			return len(containersOf(t, session)) == 0
		})
		if got := filesNamed(t, m.stateDir(), written); len(got) != 2 {
			t.Errorf("control: %q were written", got)
		}

		next := m.runTask(t, append([]string{"--backend", backend}, m.playing(t, []scriptCall{shell("echo alive")})...)...)
		next.want(t, 0)
		created := decode[struct {
			Removed []struct {
				Kind    string `json:"kind"`
				Name    string `json:"name"`
				Session string `json:"session"`
			} `json:"removed"`
		}](t, next.records[0])
		t.Logf("removed by the next start: %+v", created.Removed)
		for _, r := range created.Removed {
			if r.Session != "" && r.Session != session {
				t.Errorf("the next start removed %+v of another session", r)
			}
		}
		m.wantNothingLeft(t, session, next.records[0].Session)
		if got := filesNamed(t, m.stateDir(), written); len(got) != 0 {
			t.Errorf("the next start left %q", got)
		}
		for _, dir := range []string{sessiondir.SandboxDir, sessiondir.CachesDir} {
			if _, err := os.Lstat(filepath.Join(m.stateDir(), "sessions", session, dir)); err == nil {
				t.Errorf("the next start left the directory %s of the session", dir)
			}
		}
	})
}

// filesNamed returns the files below a directory whose names end with one.
func filesNamed(t *testing.T, dir, name string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, name) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
