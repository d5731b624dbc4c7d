package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// untilStopped is a command that says that it runs and ends when the file
// "stop" appears.
const untilStopped = `touch started; until [ -e stop ]; do sleep 0.1; done; echo stopped in order`

// live starts a session whose command runs until [machine.release], and gives
// its id.
func (m *machine) live(t *testing.T, backend string, more ...string) (*running, string) {
	t.Helper()
	run := m.start(t, taskArgs(m, append(append([]string{"--backend", backend}, more...), m.playing(t, []scriptCall{shell(untilStopped)})...)...)...)
	m.awaitDaemon(t, run)
	return run, readRecords(t, run.stdout.String())[0].Session
}

// release lets a live session end, and requires that it does so in order: what
// happened beside it did not touch it.
func (m *machine) release(t *testing.T, run *running) records {
	t.Helper()
	m.write(t, "stop", "")
	out := run.wait(t, time.Minute)
	out.want(t, 0)
	all := readRecords(t, out.stdout)
	if !strings.Contains(all.results(t)[0].text(), "stopped in order") {
		t.Errorf("the session's own command says %q", all.results(t)[0].text())
	}
	return all
}

// listed is a line of caisson sandbox ls.
type listed struct {
	Session, Backend, Container, State, Workspace string
	Owner                                         struct {
		PID   int
		State string
	}
	Memory int64 `json:"memory_bytes"`
}

func (m *machine) list(t *testing.T) []listed {
	t.Helper()
	out := m.run(t, "sandbox", "ls", "--json")
	out.want(t, 0)
	list := parse[[]listed](t, out.stdout)
	return list
}

// exec runs caisson sandbox exec with standard input and gives what came.
func (m *machine) exec(t *testing.T, stdin []byte, args ...string) (stdout, stderr []byte, status int) {
	t.Helper()
	return m.standIn(t, stdin, append([]string{"sandbox", "exec"}, args...)...)
}

// standIn runs caisson in the place of another program.
func (m *machine) standIn(t *testing.T, stdin []byte, args ...string) (stdout, stderr []byte, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(binaries(t), "caisson"), args...)
	cmd.Env, cmd.Dir, cmd.Stdin = m.env, m.home, bytes.NewReader(stdin)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return out.Bytes(), errOut.Bytes(), cmd.ProcessState.ExitCode()
}

// TestSandboxExec runs commands in a live session of another process: the
// agent's own identity and hardening, streams and statuses as they are.
func TestSandboxExec(t *testing.T) {
	t.Parallel()
	onEachBackend(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		run, session := m.live(t, backend)
		// An engine has the sandboxes of other tests too.
		list := slices.DeleteFunc(m.list(t), func(l listed) bool { return l.Workspace != m.workspace })
		if len(list) != 1 || list[0].Session != session || list[0].Backend != backend || list[0].State != "running" ||
			list[0].Owner.State != "alive" || list[0].Owner.PID != run.process.Process.Pid || list[0].Workspace != m.workspace ||
			list[0].Container != "caisson-"+session || list[0].Memory <= 0 && os.Getuid() == 0 {
			t.Errorf("sandbox ls: %+v", list)
		}

		all := make([]byte, 3<<20)
		for i := range all {
			all[i] = byte(i * 7 >> 3)
		}
		for _, test := range []struct {
			name   string
			stdin  []byte
			args   []string
			stdout string
			stderr string
			status int
		}{
			{"streams", nil, []string{session, "--", "sh", "-c", "echo out; echo err >&2; exit 7"}, "out\n", "err\n", 7},
			{"signal", nil, []string{session, "sh", "-c", "kill -9 $$"}, "", "", 137},
			{"stdin", all, []string{"-i", session, "cat"}, string(all), "", 0},
			{"no stdin", []byte("x"), []string{session, "cat"}, "", "", 0},
			{"stdin that nobody reads", all, []string{"-i", session, "true"}, "", "", 0},
			{"container's name", nil, []string{"caisson-" + session, "echo", "-i", "--json"}, "-i --json\n", "", 0},
			{"beginning of the id", nil, []string{session[:len(session)-4], "pwd"}, "/workspace\n", "", 0},
			{"folder", nil, []string{"-C", "/workspace/sub", session, "pwd"}, "/workspace/sub\n", "", 0},
			{"no program", nil, []string{session, "no-such-program"}, "", "", 127},
			{"hardened", nil, []string{session, "sh", "-c", `echo "$(id -u)" $(grep -E 'CapBnd|CapEff|NoNewPrivs' /proc/self/status); env | grep -c SECRET`}, commandUID(backend) + " CapEff: 0000000000000000 CapBnd: 0000000000000000 NoNewPrivs: 1\n0\n", "", 1},
		} {
			t.Run(test.name, func(t *testing.T) {
				if test.name == "folder" {
					if err := os.MkdirAll(filepath.Join(m.workspace, "sub"), 0o755); err != nil {
						t.Fatal(err)
					}
				}
				stdout, stderr, status := m.exec(t, test.stdin, test.args...)
				if string(stdout) != test.stdout || string(stderr) != test.stderr && test.status != 127 || status != test.status {
					t.Errorf("status %d, want %d; %d bytes: %.200q, want %d; stderr %q", status, test.status, len(stdout), stdout, len(test.stdout), stderr)
				}
			})
		}
		m.refusesToExec(t, session)
		if out := m.run(t, "sandbox", "rm", session); out.status != 42 || !strings.Contains(out.stderr, "belongs to a run") {
			t.Errorf("rm of a run's sandbox: status %d, %s", out.status, out.stderr)
		}
		marker := m.cancelsExec(t, backend, session)

		records := m.release(t, run)
		wantUserCommands(t, records, marker)
		if _, _, status := m.exec(t, nil, session, "true"); status != 125 {
			t.Errorf("exec in a session that has ended: status %d, want 125", status)
		}
		stdout, stderr, status := m.standIn(t, []byte("in"), "exec", "--workspace", m.workspace, "--backend", backend, "-i", "--", "sh", "-c", "cat; echo made >of-exec; kill -9 $$")
		made, err := os.ReadFile(filepath.Join(m.workspace, "of-exec"))
		if status != 137 || string(stdout) != "in" || err != nil || string(made) != "made\n" {
			t.Errorf("exec in a fresh sandbox: status %d, %q, stderr %s; the file %q, %v", status, stdout, stderr, made, err)
		}
		m.wantNothingLeft(t, session)
	})
}

// refusesToExec tries what must not work.
func (m *machine) refusesToExec(t *testing.T, session string) {
	t.Helper()
	for _, test := range []struct {
		args   []string
		status int
		said   string
	}{
		{[]string{session}, 125, "needs a session and a command"},
		{[]string{"ses_none", "true"}, 125, "no live session"},
		{[]string{"../" + session, "true"}, 125, "no live session"},
		{[]string{"-C", "/etc", session, "true"}, 125, "not below /workspace"},
		{[]string{"-C", "sub", session, "true"}, 125, "write /workspace/sub"},
		{[]string{"--timeout", "-1s", session, "true"}, 125, "negative"},
		{[]string{session, ""}, 125, "no program"},
		{[]string{session, "/etc/passwd"}, 126, "permission denied"},
		{[]string{"--timeout", "1s", session, "sleep", "100"}, 124, "time was over"},
	} {
		if _, stderr, status := m.exec(t, nil, test.args...); status != test.status || !strings.Contains(string(stderr), test.said) {
			t.Errorf("exec %q: status %d, %s; want %d and %q", test.args, status, stderr, test.status, test.said)
		}
	}
	if os.Getuid() != 0 {
		return
	}
	// Another user finds nothing, whatever it names.
	cmd := exec.CommandContext(t.Context(), filepath.Join(binaries(t), "caisson"), "sandbox", "exec", session, "id")
	cmd.Env = m.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4711, Gid: 4711}}
	if out, err := cmd.CombinedOutput(); err == nil || strings.Contains(string(out), "uid=") {
		t.Errorf("another user's exec: %v %s", err, out)
	}
}

// cancelsExec interrupts a command that has left daemons, and gives the marker
// of its processes.
func (m *machine) cancelsExec(t *testing.T, backend, session string) string {
	t.Helper()
	marker := "marker-" + secret()[:16]
	if err := os.Remove(filepath.Join(m.workspace, "started")); err != nil {
		t.Fatal(err)
	}
	run := m.start(t, "sandbox", "exec", session, "sh", "-c", daemon(marker))
	m.awaitFile(t, run, "started")
	wantVisible(t, backend, marker, session)
	run.signal(t, syscall.SIGINT)
	out := run.wait(t, time.Minute)
	out.want(t, 130)
	if !strings.Contains(out.stdout, "partial-output-of-"+marker) {
		t.Errorf("partial output: %q", out.stdout)
	}
	if left := processesNaming(t, marker); len(left) > 0 {
		t.Errorf("processes of the cancelled command live on: %v", left)
	}
	return marker
}

// wantUserCommands requires that each user's command is recorded before and
// after, as the user's.
func wantUserCommands(t *testing.T, all records, marker string) {
	t.Helper()
	open := map[string]bool{}
	count, cancelled := 0, 0
	for _, r := range all {
		var p struct {
			ExecID    string   `json:"exec_id"`
			Argv      []string `json:"argv"`
			Cancelled bool     `json:"cancelled"`
			Kill      struct {
				Killed, Left int
			} `json:"kill"`
		}
		if !strings.HasPrefix(r.Kind, "sandbox.exec") {
			continue
		}
		if r.Actor != "user" {
			t.Errorf("%s has the actor %q", r.Kind, r.Actor)
		}
		if err := json.Unmarshal(r.Payload, &p); err != nil {
			t.Fatal(err)
		}
		if r.Kind == "sandbox.exec_started" {
			open[p.ExecID] = strings.Contains(fmt.Sprint(p.Argv), marker)
			continue
		}
		if watched, ok := open[p.ExecID]; !ok {
			t.Errorf("%s ended and never began", p.ExecID)
		} else if watched {
			if !p.Cancelled || p.Kill.Killed == 0 || p.Kill.Left != 0 {
				t.Errorf("the cancelled command's end: %+v", p)
			}
			cancelled++
		}
		delete(open, p.ExecID)
		count++
	}
	if len(open) > 0 || count < 10 || cancelled != 1 {
		t.Errorf("%d user's commands ended, %d the cancelled one, %d did not end", count, cancelled, len(open))
	}
}

// TestSandboxCollect kills a Caisson with SIGKILL: ls says that it is dead, gc
// removes what is left and says so, and a live sibling is not touched.
func TestSandboxCollect(t *testing.T) {
	onEachBackend(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		dead, deadSession := m.live(t, backend)
		if err := os.Remove(filepath.Join(m.workspace, "started")); err != nil {
			t.Fatal(err)
		}
		sibling, session := m.live(t, backend)
		dead.signal(t, os.Kill)
		dead.wait(t, time.Minute)
		states := map[string]string{}
		for _, l := range m.list(t) {
			states[l.Session] = l.Owner.State
		}
		if states[deadSession] != "dead" || states[session] != "alive" || len(states) != 2 {
			t.Errorf("sandbox ls: %v", states)
		}
		if _, stderr, status := m.exec(t, nil, deadSession, "true"); status != 125 {
			t.Errorf("exec in a dead session: status %d, %s", status, stderr)
		}
		out := m.run(t, "sandbox", "gc", "--json")
		out.want(t, 0)
		gc := parse[struct {
			Removed  []struct{ Kind, Name, Session string }
			Left     []struct{ Session, Why string }
			Failures []string
		}](t, out.stdout)
		for _, r := range gc.Removed {
			if r.Session != deadSession {
				t.Errorf("gc removed %+v", r)
			}
		}
		if len(gc.Removed) == 0 || len(gc.Failures) > 0 || len(gc.Left) != 1 || gc.Left[0].Session != session || !strings.Contains(gc.Left[0].Why, "lives") {
			t.Errorf("gc: %+v", gc)
		}
		for _, name := range []string{"sandbox", "sandbox/exec.sock"} {
			if _, err := os.Lstat(filepath.Join(m.stateDir(), "sessions", deadSession, name)); err == nil {
				t.Errorf("%s of the dead session is left", name)
			}
		}
		m.release(t, sibling)
		m.wantNothingLeft(t, deadSession, session)
		if again := m.run(t, "sandbox", "gc"); again.status != 0 || !strings.Contains(again.stdout, "nothing is left") {
			t.Errorf("the second gc: %d %s%s", again.status, again.stdout, again.stderr)
		}
		if list := m.list(t); slices.ContainsFunc(list, func(l listed) bool { return l.Session == session || l.Session == deadSession }) {
			t.Errorf("sandbox ls afterwards: %+v", list)
		}
	})
}
