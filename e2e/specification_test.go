package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// install looks like an installation of packages that takes minutes: it says
// what it did so far, works in a child, and goes on when it is asked to stop.
const install = `trap 'echo asked to stop' TERM
echo added 1 package
mkdir -p node_modules/left-pad && echo '{}' >node_modules/left-pad/package.json
(trap '' TERM; while :; do sleep 1; done) &
touch started
while :; do sleep 1; done`

// TestSpecification9_4OnEachBackend is example 9.4 of the dispatcher specification
// (docs/internal/specification.md §9) as a run: the user cancels while a command that ignores SIGTERM runs. It
// gets SIGTERM, then SIGKILL with all that it started; the call ends as
// tool.failed{cancelled} with the partial output, its result is an error, and
// the turn is cancelled. Decided: SIGKILL comes after 5 s, not 3, and the user
// cancels with Ctrl-C or over HTTP, not over a WebSocket.
func TestSpecification9_4OnEachBackend(t *testing.T) {
	t.Parallel() // most of it is the wait for SIGKILL
	onAllBackends(t, func(t *testing.T, backend string) {
		t.Parallel()
		m := newMachine(t)
		run := m.start(t, taskArgs(m, append([]string{"--backend", backend}, m.playing(t, []scriptCall{shell(install)})...)...)...)
		m.awaitFile(t, run, "started")
		run.signal(t, syscall.SIGINT)
		out := run.wait(t, time.Minute)
		out.want(t, 130)
		out.records = readRecords(t, out.stdout)

		called := out.records.of("tool.called")
		if len(called) != 1 {
			t.Fatalf("%d tool.called, want 1", len(called))
		}
		type toolCall struct {
			ID    string `json:"tool_use_id"`
			Name  string `json:"tool_name"`
			Class string `json:"side_effects"`
		}
		begun := decode[toolCall](t, called[0])
		if begun.Name != "shell" || begun.Class != "execute" {
			t.Errorf("tool.called is %+v", begun)
		}
		failed := out.records.of("tool.failed")
		if len(failed) != 1 || len(out.records.of("tool.completed")) != 0 {
			t.Fatalf("%d tool.failed and %d tool.completed, want 1 and 0", len(failed), len(out.records.of("tool.completed")))
		}
		end := decode[struct {
			ID      string `json:"tool_use_id"`
			Class   string `json:"error_class"`
			Partial string `json:"partial_output"`
		}](t, failed[0])
		if end.ID != begun.ID || end.Class != "cancelled" || failed[0].Parent != called[0].ID {
			t.Errorf("tool.failed is %+v below %s, want cancelled below %s", end, failed[0].Parent, called[0].ID)
		}
		results := out.records.results(t)
		if len(results) != 1 || !results[0].IsError || results[0].ToolUseID != begun.ID {
			t.Fatalf("results are %+v", results)
		}
		// It said something, was asked to stop, went on, and was killed.
		for _, part := range []string{"added 1 package\nasked to stop\n", "killed by signal 9 (SIGKILL)"} {
			for where, text := range map[string]string{"partial_output": end.Partial, "result": results[0].text()} {
				if !strings.Contains(text, part) {
					t.Errorf("the %s lacks %q:\n%s", where, part, text)
				}
			}
		}
		var after []string
		for _, r := range out.records[failed[0].Seq:] {
			after = append(after, r.Kind)
		}
		if kinds := strings.Join(after, " "); !strings.Contains(kinds, "message turn.cancelled") || !strings.HasSuffix(kinds, "session.ended") {
			t.Errorf("after tool.failed come %s, want the result, turn.cancelled and session.ended", kinds)
		}
		// What it had done stays, and is said.
		if changed := out.records.end(t).Changed; len(changed) == 0 {
			t.Error("session.ended names no changed file")
		}
		m.wantNothingLeft(t, out.records[0].Session)
	})
}

// TestSpecification9_4OverHTTP is the same with the user on the other side of
// the HTTP API: the write of example 9.3 is denied there, the command of 9.4 is
// allowed and its turn cancelled there, and the session goes on.
func TestSpecification9_4OverHTTP(t *testing.T) {
	t.Parallel()
	backend := anyBackend(t)
	m := newMachine(t)
	model := m.playing(t,
		[]scriptCall{call("write_file", map[string]any{"path": "src/auth.ts", "content": "x"})},
		[]scriptCall{shell(install)},
	)[1]
	socket := filepath.Join(m.home, "s.sock")
	server := m.serve(t, "--policy", "default", "--backend", backend, "--model", model, "--listen", "unix:"+socket)
	c := apiClient{t: t, base: "http://localhost", token: m.writtenToken(t), socket: socket}
	session := c.start(m.workspace)
	turn := c.turn(session, "do it")
	ask := func(tool, decision string) {
		t.Helper()
		var a asked
		server.until(t, tool+" is asked about", func() bool {
			a = c.waiting(session)[tool]
			return a.ID != ""
		})
		c.answer(session, a, decision)
	}
	ask("write_file", "deny")
	ask("shell", "allow")
	m.awaitFile(t, server, "started")
	c.do(http.MethodPost, "/sessions/"+session+"/turns/"+turn+"/cancel", nil, http.StatusOK)
	var all records
	ended := func(kind string, times int) {
		t.Helper()
		server.until(t, kind, func() bool {
			all = m.traceOf(t, session)
			return len(all.of(kind)) == times
		})
	}
	ended("turn.cancelled", 1)
	classes := all.failures(t)
	results := all.results(t)
	if len(results) != 2 || classes[results[0].ToolUseID] != "user_denied" || classes[results[1].ToolUseID] != "cancelled" || !results[0].IsError || !results[1].IsError {
		t.Fatalf("results %+v, classes %v", results, classes)
	}
	if text := results[0].text(); text != "The user denied this operation." {
		t.Errorf("the denied write gives %q", text)
	}
	for _, part := range []string{"added 1 package\nasked to stop\n", "killed by signal 9 (SIGKILL)"} {
		if text := results[1].text(); !strings.Contains(text, part) {
			t.Errorf("the cancelled command's result lacks %q:\n%s", part, text)
		}
	}
	if _, err := os.Lstat(filepath.Join(m.workspace, "src")); err == nil {
		t.Error("the denied write was made")
	}
	for _, r := range all.of("tool.confirmation_resolved") {
		if by := decode[map[string]string](t, r); by["by"] != "user" || by["client"] == "" {
			t.Errorf("resolved by %v", by)
		}
	}
	// The script's last turn is an answer: the session has not ended.
	c.turn(session, "and now?")
	ended("turn.completed", 1)
	c.do(http.MethodDelete, "/sessions/"+session, nil, http.StatusOK)
	server.signal(t, syscall.SIGTERM)
	if out := server.wait(t, time.Minute); out.status != 0 {
		t.Errorf("serve ended with %d: %s", out.status, tail(out.stderr, 10))
	}
	m.wantNothingLeft(t, session)
}
