package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox/sandboxtest"
)

// resumedCalls is the number of calls that the scripted session makes before it looks at
// the workspace.
const resumedCalls = 6

// resumedScript writes the script of a session to kill. Each call appends its number to a
// file and makes one of its own; the last ones look which of those are missing.
func resumedScript(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("version: 1\nname: resumed\nturns:\n")
	for i := 0; i < resumedCalls; i += 2 {
		b.WriteString("  - text: Next.\n    calls:\n")
		for n := i; n < i+2; n++ {
			fmt.Fprintf(&b, "      - {tool: shell, input: {command: 'echo %d >> attempts; sleep 0.0%d; echo data %d > file%d'}}\n", n, n, n, n)
		}
	}
	for n := resumedCalls; n < resumedCalls+3; n++ {
		fmt.Fprintf(&b, "  - calls:\n      - {tool: shell, input: {command: 'echo %d >> attempts; for i in 0 1 2 3 4 5; do test -s file$i || echo data $i > file$i; done; ls file*'}}\n", n)
	}
	b.WriteString("  - text: All files are there.\n")
	path := filepath.Join(dir, "resumed.yaml")
	writeFile(t, path, b.String(), 0o644)
	return path
}

// story returns the conversation in a session's records, without the results of the calls
// in lost. It fails the test if a call has not exactly one result.
func story(t *testing.T, trace []byte, lost map[int]bool) []string {
	t.Helper()
	calls, results := map[string]int{}, map[string]int{}
	var out []string
	for _, m := range payloadsOf[record.Message](t, trace) {
		for _, b := range m.Blocks {
			switch {
			case b.Text != nil:
				out = append(out, string(m.Role)+": "+b.Text.Text)
			case b.ToolUse != nil:
				calls[b.ToolUse.ID] = len(calls)
				out = append(out, string(b.ToolUse.Input))
			case b.ToolResult != nil:
				n := calls[b.ToolResult.ToolUseID]
				results[b.ToolResult.ToolUseID]++
				text := loop.NormalizeResult(b.ToolResult.Content[0].Text)
				if lost[n] {
					text = "lost"
				}
				out = append(out, fmt.Sprintf("%d: %s", n, text))
			}
		}
	}
	for id, n := range calls {
		if results[id] != 1 {
			t.Errorf("call %d has %d results", n, results[id])
		}
	}
	return out
}

// lostCalls returns the numbers of the calls that ran when a process was killed.
func lostCalls(t *testing.T, trace []byte) map[int]bool {
	t.Helper()
	calls, text := map[string]int{}, map[string]string{}
	for _, m := range payloadsOf[record.Message](t, trace) {
		for _, b := range m.Blocks {
			if b.ToolUse != nil {
				calls[b.ToolUse.ID] = len(calls)
			} else if b.ToolResult != nil {
				text[b.ToolResult.ToolUseID] = b.ToolResult.Content[0].Text
			}
		}
	}
	lost := map[int]bool{}
	for _, r := range payloadsOf[record.SessionResumed](t, trace) {
		for _, id := range r.Interrupted {
			lost[calls[id]] = true
			if !strings.HasPrefix(text[id], "Interrupted: it ") {
				t.Errorf("an interrupted call has the result %q", text[id])
			}
		}
	}
	return lost
}

func payloadsOf[P record.Payload](t testing.TB, trace []byte) []P {
	t.Helper()
	read, err := record.ReadTrace(bytes.NewReader(trace))
	if err != nil {
		t.Fatal(err)
	}
	var out []P
	for _, r := range read.Records {
		var p P
		if r.Kind != p.Kind() {
			continue
		}
		if err := json.Unmarshal(r.Payload, &p); err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// repeated returns the calls that ran more than once, by the numbers in the file to which
// each appends its own.
func repeated(attempts string) []string {
	var twice []string
	ran := strings.Fields(attempts)
	for i, n := range ran {
		if slices.Contains(ran[:i], n) {
			twice = append(twice, n)
		}
	}
	return twice
}

// TestResumeAfterKill kills scripted sessions at random moments, on the first backend that
// the machine has more often than on the others, and with a copied workspace. RESUME_KILLS
// is the number of kills there, and RESUME_SEED repeats those of another run.
func TestResumeAfterKill(t *testing.T) {
	most, seed := 8, uint64(time.Now().UnixNano())
	if n, err := strconv.Atoi(os.Getenv("RESUME_KILLS")); err == nil {
		most = n
	}
	if n, err := strconv.ParseUint(os.Getenv("RESUME_SEED"), 10, 64); err == nil {
		seed = n
	}
	for _, backend := range sandboxtest.Sampled(t, "runc", "gvisor", "docker") {
		t.Run(backend, func(t *testing.T) {
			needBackend(t, backend)
			kills := most
			most = 2
			killAndResume(t, backend, "bind", kills, seed)
		})
	}
	t.Run("copy", func(t *testing.T) {
		needBackend(t, "docker")
		killAndResume(t, "docker", "copy", most, seed)
	})
}

// killAndResume kills a scripted session at random moments, a process that goes on with one
// too, and goes on until the end.
func killAndResume(t *testing.T, backend, mode string, most int, seed uint64) {
	t.Logf("backend %s, %s, RESUME_SEED=%d", backend, mode, seed)
	apply := func(m *machine) {
		if mode != "bind" {
			m.run(t, "apply", "last").want(t, 0)
		}
	}
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // moments to kill at need no secret
	begun := time.Now()
	calm := newMachine(t)
	script := resumedScript(t, calm.home)
	args := []string{"--backend", backend, "--mode", mode, "--model", "replay/" + script, "do it"}
	calm.runTask(t, args...).want(t, 0)
	apply(calm)
	took := time.Since(begun)
	want := story(t, traceOf(t, calm), nil)
	wanted := finalFiles(t, calm)
	if got := repeated(calm.read(t, "attempts")); len(got) > 0 {
		t.Fatalf("calls %v ran twice, undisturbed", got)
	}
	if got := repeated(strings.Repeat(calm.read(t, "attempts"), 2)); len(got) != resumedCalls+3 {
		t.Fatalf("control: of calls that ran twice only %v are found", got)
	}
	kills, lost := 0, 0
	for session := 0; kills < most; session++ {
		m := newMachine(t)
		r := m.start(t, taskArgs(m, args...)...)
		var kept [][]byte
		for range 2 { // the third look at the files is undisturbed
			select {
			case <-r.ended:
			case <-time.After(time.Duration(random.Int64N(int64(took)))):
			}
			if r.process.Process.Signal(syscall.SIGKILL) == nil {
				kills++
			}
			if r.wait(t, deadline).signal != syscall.SIGKILL {
				break
			}
			text := traceOf(t, m)
			if len(text) == 0 { // before the session's first record
				break
			}
			kept = append(kept, text[:bytes.LastIndexByte(text, '\n')+1])
			r = m.start(t, "run", "--workspace", m.workspace, "--policy", "ci", "--json", "--resume", "last")
		}
		out := r.wait(t, deadline)
		text := traceOf(t, m)
		if len(text) == 0 {
			continue
		}
		ended := payloadsOf[record.SessionEnded](t, text)
		answered := strings.Contains(out.stderr, "its last turn has its answer") // killed behind the turn's end
		if !answered && (out.status != 0 || len(ended) == 0) {
			t.Fatalf("session %d: status %d, %d ends\n%s", session, out.status, len(ended), out.stderr)
		}
		for _, k := range kept {
			if !bytes.HasPrefix(text, k) {
				t.Errorf("session %d: records that were on the disk are gone", session)
			}
		}
		gone := lostCalls(t, text)
		lost += len(gone)
		var masked []string
		for _, line := range want {
			if n, _, ok := strings.Cut(line, ": "); ok {
				if i, err := strconv.Atoi(n); err == nil && gone[i] {
					line = n + ": lost"
				}
			}
			masked = append(masked, line)
		}
		if diff := cmp.Diff(masked, story(t, text, gone)); diff != "" {
			t.Errorf("session %d: the conversation (-undisturbed +resumed):\n%s", session, diff)
		}
		apply(m)
		if got := repeated(m.read(t, "attempts")); len(got) > 0 {
			t.Errorf("session %d: calls %v ran twice", session, got)
		}
		if diff := cmp.Diff(wanted, finalFiles(t, m)); diff != "" {
			t.Errorf("session %d: the workspace (-undisturbed +resumed):\n%s", session, diff)
		}
		m.run(t, "trace", "verify", "last").want(t, 0)
	}
	t.Logf("%d kills, %d calls interrupted, %s", kills, lost, time.Since(begun).Round(time.Second))
}

// TestResumeKeepsTheOverlay kills a session in overlay mode behind one of its changes, and
// goes on: the changes are there, more are added, and apply brings all of them.
func TestResumeKeepsTheOverlay(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		m.write(t, "a", "before\n")
		m.write(t, "gone", "old\n")
		before := treeOf(t, m.workspace)
		run := m.start(t, taskArgs(m, append([]string{"--backend", backend, "--mode", "overlay"}, m.playing(t,
			[]scriptCall{shell("echo after > a; rm gone; mkdir d; echo new > d/new")},
			[]scriptCall{shell("echo waiting; sleep 300")},
			[]scriptCall{shell("cat a d/new; test ! -e gone && echo more >> d/new")},
			[]scriptCall{call("read_file", map[string]any{"path": "d/new"}), call("write_file", map[string]any{"path": "tool", "content": "by tool\n"})})...)...)...)
		run.until(t, "the second command", func() bool { return strings.Count(run.stdout.String(), `"tool.called"`) == 2 })
		run.kill(t)
		session := readRecords(t, run.stdout.String())[0].Session
		m.run(t, "run", "--workspace", m.workspace, "--policy", "ci", "--resume", session).want(t, 0)
		text := traceOf(t, m)
		resumed := payloadsOf[record.SessionResumed](t, text)
		if len(resumed) != 1 || resumed[0].Changes != "kept" || len(resumed[0].Interrupted) != 1 {
			t.Errorf("resumed %+v", resumed)
		}
		var results strings.Builder
		for _, p := range payloadsOf[record.Message](t, text) {
			for _, b := range p.Blocks {
				if b.ToolResult != nil {
					results.WriteString(b.ToolResult.Content[0].Text)
				}
			}
		}
		for _, want := range []string{"after\nnew\n", "more"} {
			if !strings.Contains(results.String(), want) {
				t.Errorf("the results lack %q:\n%s", want, &results)
			}
		}
		if diff := cmp.Diff(before, treeOf(t, m.workspace)); diff != "" {
			t.Errorf("the workspace changed before apply (-before +after):\n%s", diff)
		}
		m.run(t, "apply", session).want(t, 0)
		for name, want := range map[string]string{"a": "after\n", "d/new": "new\nmore\n", "tool": "by tool\n"} {
			if got := m.read(t, name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		if _, err := os.Lstat(filepath.Join(m.workspace, "gone")); !os.IsNotExist(err) {
			t.Errorf("the removed file is there: %v", err)
		}
		m.wantNothingLeft(t, session)
	})
}

// TestResumeOfACopy kills a session whose workspace is a copy in a container, behind the
// checkpoint of its first command and in its second one. What was collected goes on in
// another container, what was not is gone, the model is told so, and the call that was
// under way does not run again.
func TestResumeOfACopy(t *testing.T) {
	needBackend(t, "docker")
	t.Parallel()
	m := newMachine(t)
	m.write(t, "a", "before\n")
	m.write(t, "gone", "old\n")
	before := treeOf(t, m.workspace)
	run := m.start(t, taskArgs(m, append([]string{"--backend", "docker", "--mode", "copy"}, m.playing(t,
		[]scriptCall{shell("echo after > a; rm gone; mkdir d; echo new > d/new; chmod 750 d/new")},
		// The checkpoint is made beside it, and must not find what it writes.
		[]scriptCall{shell("sleep 20; echo half > half; sleep 300")},
		[]scriptCall{shell("cat a d/new; ls; stat -c %a d/new; echo more >> d/new")},
		[]scriptCall{call("read_file", map[string]any{"path": "d/new"}), call("write_file", map[string]any{"path": "tool", "content": "by tool\n"})})...)...)...)
	run.until(t, "the second command", func() bool { return strings.Count(run.stdout.String(), `"tool.called"`) == 2 })
	written := time.After(21 * time.Second)
	session := readRecords(t, run.stdout.String())[0].Session
	eventually(t, "the checkpoint", time.Minute, func() bool {
		_, err := os.Stat(filepath.Join(m.stateDir(), "sessions", session, "overlay", "upper", "d", "new"))
		return err == nil
	})
	<-written
	run.kill(t)
	m.run(t, "run", "--workspace", m.workspace, "--policy", "ci", "--mode", "bind", "--resume", session).want(t, 42)
	m.run(t, "run", "--workspace", m.workspace, "--policy", "ci", "--resume", session).want(t, 0)
	text := traceOf(t, m)
	resumed := payloadsOf[record.SessionResumed](t, text)
	if len(resumed) != 1 || resumed[0].Changes != "kept" || len(resumed[0].Interrupted) != 1 {
		t.Errorf("resumed %+v", resumed)
	}
	var told strings.Builder
	for _, p := range payloadsOf[record.Message](t, text) {
		for _, b := range p.Blocks {
			switch {
			case b.ToolResult != nil:
				told.WriteString(b.ToolResult.Content[0].Text)
			case b.Text != nil && p.Role == loop.RoleUser:
				told.WriteString(b.Text.Text)
			}
		}
	}
	for _, want := range []string{"Interrupted: it may have run", "back to what they were when changes were collected last", "after\nnew\na\nd\n750\n", "new\nmore\n"} {
		if !strings.Contains(told.String(), want) {
			t.Errorf("the model isn't told %q:\n%s", want, &told)
		}
	}
	if diff := cmp.Diff(before, treeOf(t, m.workspace)); diff != "" {
		t.Errorf("the workspace changed before apply (-before +after):\n%s", diff)
	}
	m.run(t, "trace", "verify", session).want(t, 0)
	m.run(t, "apply", session).want(t, 0)
	for name, want := range map[string]string{"a": "after\n", "d/new": "new\nmore\n", "tool": "by tool\n"} {
		if got := m.read(t, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"gone", "half"} {
		if _, err := os.Lstat(filepath.Join(m.workspace, name)); !os.IsNotExist(err) {
			t.Errorf("%s is there: %v", name, err)
		}
	}
	m.wantNothingLeft(t, session)
}

// traceOf returns the records of the machine's only session, or nil if it has none.
func traceOf(t testing.TB, m *machine) []byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(m.stateDir(), "sessions", "*", record.TraceFile))
	if err != nil || len(paths) > 1 {
		t.Fatalf("traces %v, %v", paths, err)
	}
	if len(paths) == 0 {
		return nil
	}
	text := readFile(t, paths[0])
	return text
}

// finalFiles returns the files of the workspace except the one with the attempts.
func finalFiles(t *testing.T, m *machine) map[string]string {
	t.Helper()
	tree := treeOf(t, m.workspace)
	delete(tree, "attempts")
	return tree
}
