package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

// killDuring starts a session that is killed while its only command runs, and returns its id.
func killDuring(t *testing.T, m *machine, args ...string) string {
	t.Helper()
	run := m.start(t, taskArgs(m, append(args, m.playing(t, []scriptCall{shell("echo waiting; sleep 300")})...)...)...)
	run.until(t, "the command", func() bool { return strings.Contains(run.stdout.String(), `"tool.called"`) })
	run.kill(t)
	return readRecords(t, run.stdout.String())[0].Session
}

// TestResumeBehindRemains goes on with a session whose process was killed before it had
// noted that it has a sandbox, and refuses to while a part of one is left, which it names.
func TestResumeBehindRemains(t *testing.T) {
	m := newMachine(t)
	session := killDuring(t, m, "--backend", anyBackend(t))
	m.run(t, "sandbox", "gc").want(t, 0)
	dir := filepath.Join(m.stateDir(), "sessions", session, sessiondir.SandboxDir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("/proc/self/fd/%d/%s", held.Fd(), sandbox.ExecSocket)}) // a path has 107 bytes at most
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	bundle := filepath.Join(dir, "bundle")
	writeFile(t, bundle, "", 0o600)
	resume := []string{"run", "--workspace", m.workspace, "--policy", "ci", "--json", "--resume", session}
	refused := m.run(t, resume...)
	refused.want(t, 44)
	if !strings.Contains(refused.stderr, filepath.Join("sessions", session, sessiondir.SandboxDir, "bundle")) || strings.Contains(refused.stderr, sandbox.ExecSocket) {
		t.Errorf("the refusal names something else than what is left:\n%s", refused.stderr)
	}
	if n := len(payloadsOf[record.SessionResumed](t, traceOf(t, m))); n != 0 {
		t.Errorf("the refused one wrote %d session.resumed", n)
	}
	if err := os.Remove(bundle); err != nil {
		t.Fatal(err)
	}
	m.run(t, resume...).want(t, 0)
	m.wantNothingLeft(t, session)
}
