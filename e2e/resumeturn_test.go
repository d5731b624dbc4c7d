package e2e

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson/runner/record"
)

// TestResumeTwiceAtOnce starts two processes that go on with one session: one has it, and
// the other is refused and changes nothing. What trace shows and exports has the resume
// and both sandboxes.
func TestResumeTwiceAtOnce(t *testing.T) {
	m := newMachine(t)
	run := m.start(t, taskArgs(m, append([]string{"--backend", anyBackend(t)}, m.playing(t,
		[]scriptCall{shell("echo 1 >> attempts; sleep 300")},
		[]scriptCall{shell("until test -e go; do sleep 0.05; done; cat attempts")})...)...)...)
	m.awaitFile(t, run, "attempts")
	run.kill(t)
	session := readRecords(t, run.stdout.String())[0].Session
	before := traceOf(t, m)
	before = before[:bytes.LastIndexByte(before, '\n')+1]

	resume := []string{"run", "--workspace", m.workspace, "--policy", "ci", "--json", "--resume", session}
	won, lost := m.start(t, resume...), m.start(t, resume...)
	select {
	case <-lost.ended:
	case <-won.ended:
		won, lost = lost, won
	}
	refused := lost.wait(t, deadline)
	refused.want(t, 42)
	for _, want := range []string{session, "its process is alive", "caisson sandbox ls"} {
		if !strings.Contains(refused.stderr, want) {
			t.Errorf("the refusal lacks %q:\n%s", want, refused.stderr)
		}
	}
	m.write(t, "go", "")
	won.wait(t, deadline).want(t, 0)

	text := traceOf(t, m)
	if !bytes.HasPrefix(text, before) {
		t.Error("records that were on the disk are gone")
	}
	if resumed := payloadsOf[record.SessionResumed](t, text); len(resumed) != 1 || len(resumed[0].Interrupted) != 1 {
		t.Errorf("resumed %+v", resumed)
	}
	if got := m.read(t, "attempts"); got != "1\n" {
		t.Errorf("attempts are %q", got)
	}
	checkResumedTrace(t, m, session, text)
	m.wantNothingLeft(t, session)
}

// checkResumedTrace checks what the trace commands print about a session that was killed
// during its only command and resumed once.
func checkResumedTrace(t *testing.T, m *machine, session string, text []byte) {
	t.Helper()
	verified := m.run(t, "trace", "verify", session)
	verified.want(t, 0)
	if !strings.Contains(verified.stdout, session) {
		t.Errorf("verify:\n%s", verified.stdout)
	}
	shown := m.run(t, "trace", "show", session)
	shown.want(t, 0)
	for text, want := range map[string]int{"another process goes on with the session": 1, " started in ": 2, "Interrupted: it ": 1} {
		if got := strings.Count(shown.stdout, text); got != want {
			t.Errorf("show has %q %d times, want %d:\n%s", text, got, want, shown.stdout)
		}
	}
	lines := m.run(t, "trace", "export", session)
	lines.want(t, 0)
	if got := len(payloadsOf[record.SandboxStarted](t, []byte(lines.stdout))); got != 2 || lines.stdout != string(text) {
		t.Errorf("the export has %d attestations and %d bytes, the trace %d bytes", got, len(lines.stdout), len(text))
	}
	atif := m.run(t, "trace", "export", "--format", "atif", session)
	atif.want(t, 0)
	trajectory := parse[struct {
		Steps []struct {
			Calls []json.RawMessage `json:"tool_calls"`
		} `json:"steps"`
	}](t, atif.stdout)
	calls := 0
	for _, s := range trajectory.Steps {
		calls += len(s.Calls)
	}
	if calls != 2 || strings.Count(atif.stdout, "Interrupted: it ") != 1 {
		t.Errorf("the trajectory has %d calls:\n%s", calls, atif.stdout)
	}
}

// TestResumeAfterSIGTERM ends a session with SIGTERM during a turn, and goes on: each call
// has one result, that of the command under way is that it was cancelled, and it does not
// run again.
func TestResumeAfterSIGTERM(t *testing.T) {
	m := newMachine(t)
	run := m.start(t, taskArgs(m, append([]string{"--backend", anyBackend(t)}, m.playing(t,
		[]scriptCall{call("list_dir", map[string]any{"path": "."}), shell("echo 1 >> attempts; sleep 300")},
		[]scriptCall{shell("cat attempts")})...)...)...)
	m.awaitFile(t, run, "attempts")
	run.signal(t, syscall.SIGTERM)
	run.wait(t, deadline).want(t, 143)
	before := traceOf(t, m)
	session := readRecords(t, run.stdout.String())[0].Session
	m.run(t, "run", "--workspace", m.workspace, "--policy", "ci", "--json", "--resume", session).want(t, 0)

	text := traceOf(t, m)
	if !bytes.HasPrefix(text, before) {
		t.Error("records that were on the disk are gone")
	}
	told := story(t, text, nil) // it fails if a call has not exactly one result
	if len(told) < 3 || !slices.ContainsFunc(told, func(s string) bool { return strings.Contains(s, "Done.") }) {
		t.Errorf("the conversation: %q", told)
	}
	if got := m.read(t, "attempts"); got != "1\n" {
		t.Errorf("attempts are %q", got)
	}
	if ended := payloadsOf[record.SessionEnded](t, text); len(ended) != 2 || len(payloadsOf[record.TurnCancelled](t, text)) != 1 {
		t.Errorf("ended %+v", ended)
	}
	m.run(t, "trace", "verify", session).want(t, 0)
	m.wantNothingLeft(t, session)
}
