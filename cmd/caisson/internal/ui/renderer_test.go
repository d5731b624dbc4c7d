package ui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

func TestMain(m *testing.M) {
	if socket := os.Getenv(paneSocket); socket != "" {
		if err := runInPane(socket); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

var begun = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

func newRecord(t *testing.T, p record.Payload) record.Record {
	t.Helper()
	raw, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return record.Record{Kind: p.Kind(), Payload: raw, Time: begun}
}

func session() []any {
	use := loop.Block{ToolUse: &loop.ToolUse{ID: "tu_1", Name: "shell"}}
	return []any{
		record.SessionCreated{
			Version: "1.0", Workspace: "/w", Policy: "ci", Image: "host", Model: loop.ModelInfo{Provider: "replay", Model: "x"},
			Backend: record.BackendChoice{Asked: "auto", Chosen: "gvisor", Why: "no engine answers"},
			Budget:  record.Budget{Rounds: new(int64(50)), WallTimeMS: new(int64(90_000))},
			Ignored: []record.Ignored{{Name: ".mcp.json", Why: "the workspace is not trusted"}},
			Removed: []sandbox.Orphan{{Kind: "container", Name: "c1", Owner: "pid 7"}},
		},
		record.ModelCallStarted{ModelCall: loop.ModelCall{Round: 1}},
		runner.Delta{Stream: "answer", Text: "I run the "},
		runner.Delta{Stream: "answer", Text: "test."},
		record.ModelCallCompleted{ModelCall: loop.ModelCall{Round: 1}},
		record.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{Text: &loop.Text{Text: "I run the test."}}, use}},
		record.SandboxStarted{StartMS: 200, Attestation: sandbox.Attestation{
			Runtime: "runsc", RuntimeVersion: "1", User: "10001:10001", Seccomp: "filter", Network: "none",
			Limits: sandbox.AttestedLimits{MemoryBytes: 2 << 30, PIDs: 256}, Lost: []string{"no cgroups"},
		}},
		record.ToolCalled{CallID: "tu_1", Name: "shell", Summary: "sh test.sh"},
		runner.Delta{CallID: "tu_1", Stream: "stdout", Text: "one\ntwo\nthree\n"},
		runner.Delta{CallID: "tu_1", Stream: "stdout", Text: "four\nfive\nprogress 1%\rprogress 99%\nsix\n"},
		record.NetworkDenied{CallID: "tu_1", Host: "a.test:443", Way: "connect", Reason: "not_allowed"},
		record.NetworkDenied{CallID: "tu_1", Host: "b.test:443", Reason: "not_allowed"},
		record.NetworkDenied{CallID: "tu_1", Host: "c.test", Way: "name", Reason: "not_allowed", Count: 2},
		record.NetworkDenied{CallID: "tu_1", Host: "d.test", Way: "name", Reason: "not_allowed"},
		record.ToolCompleted{CallID: "tu_1", Name: "shell", LatencyMS: 1200, Metadata: map[string]any{"exit_code": 1, "needs_preset": "npm"}},
		record.ToolCalled{CallID: "tu_2", Name: "patch_file", Summary: "a.sh"},
		record.ToolCompleted{CallID: "tu_2", Name: "patch_file", LatencyMS: 3, Success: true, FilesModified: []string{"a.sh"}, Diff: "--- a/a.sh\n+++ b/a.sh\n@@ -1 +1,2 @@\n-echo a\n+\techo b\n+✓ done\n"},
		record.ToolFailed{CallID: "tu_3", Name: "fetch", Class: tools.ErrorPermissionDenied, Message: "not allowed\nmore"},
		record.ToolInputInvalid{CallID: "tu_4", Name: "glob", Errors: []string{"/pattern: missing"}},
		record.NetworkDenied{Host: "registry.npmjs.org:443", Way: "connect", Reason: "not_allowed"},
		record.NetworkDenied{Host: "db.lan:5432", Addr: "10.0.0.5", Reason: "address", Count: 3},
		record.BudgetWarning{What: limits.KindTokens, Limit: 100, Used: 81},
		record.SandboxLost{Cause: "the container reached its limit"},
		record.ModelCallFailed{Class: loop.ModelServer, Message: "the provider failed"},
		record.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{Text: &loop.Text{Text: "The final answer."}}}},
	}
}

const shown = `caisson 1.0 · replay/x on /w · policy ci · at most 50 rounds, 1m30s
sandbox gvisor (no engine answers), image host
! .mcp.json is ignored: the workspace is not trusted
! removed what a dead caisson (pid 7) left: container c1
I run the test.
● sandbox started in 200 ms: runsc 1, commands as 10001:10001 with no capabilities, seccomp filter, network: none, 2048 MiB, 256 pids
! not protected here: no cgroups
! refused to connect to a.test:443: not_allowed
! refused to connect to c.test: not_allowed (2 times)
✗ shell sh test.sh  exit code 1  1.2s
    three
    four
    five
    progress 99%
    six
! commands have no network: --egress-preset npm lets them download packages
✓ patch_file a.sh  3ms
    @@ -1 +1,2 @@
    -echo a
    +    echo b
    +✓ done
✗ fetch  permission_denied: not allowed
✗ glob  invalid input: /pattern: missing
! refused to connect to registry.npmjs.org:443: not_allowed. If you expect that, add egress: {presets: [npm]}
! refused to connect to db.lan:5432: address 10.0.0.5 (3 times). If you expect that, add fetch: {private: {db.lan: ["10.0.0.5"]}}
! 81 of 100 tokens used
! sandbox lost: the container reached its limit
! the model failed (server_error): the provider failed
`

func play(t *testing.T, r *Renderer, events []any) {
	t.Helper()
	for _, e := range events {
		if d, ok := e.(runner.Delta); ok {
			r.Delta(d)
			continue
		}
		r.Record(newRecord(t, e.(record.Payload)))
	}
}

func TestAPipeGetsALineAnEvent(t *testing.T) {
	var out bytes.Buffer
	r := New(Options{Out: &out})
	play(t, r, session())
	r.Close()
	if diff := cmp.Diff(shown, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// ticker drives a live renderer by hand.
type ticker struct {
	c chan time.Time

	mu  sync.Mutex
	now time.Time
}

func (k *ticker) time() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

func (k *ticker) tick(d time.Duration) {
	k.mu.Lock()
	k.now = k.now.Add(d)
	k.mu.Unlock()
	k.c <- begun
	k.c <- begun // the first one is handled once the second is taken
}

func live(t *testing.T, out *screen, width int) (*Renderer, *ticker) {
	t.Helper()
	k := &ticker{c: make(chan time.Time), now: begun}
	r := New(Options{Out: out, Live: true, Colour: true, Size: func() (int, int) { return width, 24 }, Now: k.time, Tick: k.c})
	t.Cleanup(r.Close)
	return r, k
}

func TestATerminalShowsWhatGoesOnAndLeavesTheSameLines(t *testing.T) {
	out := &screen{t: t}
	r, k := live(t, out, 200)
	events := session()
	play(t, r, events[:4])
	k.tick(1500 * time.Millisecond)
	if got := out.String(); !strings.Contains(got, "thinking  1.5s\n  I run the test.\n") {
		t.Errorf("while the model answers:\n%s", got)
	}
	play(t, r, events[4:10])
	k.tick(500 * time.Millisecond)
	want := "shell sh test.sh  2.0s\n    three\n    four\n    five\n    progress 99%\n    six\n"
	if got := out.String(); !strings.HasSuffix(got, want) {
		t.Errorf("while a command runs:\n%s\nwant at the end:\n%s", got, want)
	}
	play(t, r, events[10:])
	k.tick(time.Second)
	r.Close()
	if diff := cmp.Diff(shown, out.String()); diff != "" {
		t.Errorf("after the end (-want +got):\n%s", diff)
	}
}

func TestTheRegionNeverWraps(t *testing.T) {
	out := &screen{t: t}
	r, k := live(t, out, 20)
	play(t, r, []any{
		record.ToolCalled{CallID: "tu_1", Name: "shell", Summary: strings.Repeat("wide 漢字 ", 40)},
		runner.Delta{CallID: "tu_1", Text: strings.Repeat("漢", 300)},
	})
	k.tick(time.Second)
	for l := range strings.Lines(out.String()) {
		if w := ansi.StringWidth(strings.TrimRight(l, "\n")); w >= 20 {
			t.Errorf("line of %d cells: %q", w, l)
		}
	}
}

// hostile is text that a terminal would obey: case 37 of the catalogue.
const hostile = "a\x1b[2Jb\x1b[8mc\x1b]0;title\x07d\x1b]52;c;ZXZpbA==\x07e\rf\bg\u009b2Jh\x00i\u202ej\u200bk"

func TestForeignTextIsNeverObeyed(t *testing.T) {
	control := &screen{t: &testing.T{}}
	if _, _ = control.Write([]byte(hostile)); !control.t.Failed() {
		t.Fatal("positive control: the screen obeys everything")
	}
	for _, liveMode := range []bool{false, true} {
		out := &screen{t: t}
		k := make(chan time.Time)
		r := New(Options{Out: out, Live: liveMode, Colour: true, Tick: k})
		play(t, r, []any{
			record.SessionCreated{
				Version: hostile, Workspace: hostile, Policy: hostile, Image: hostile, Model: loop.ModelInfo{Provider: hostile, Model: hostile},
				Backend: record.BackendChoice{Chosen: hostile, Why: hostile}, Ignored: []record.Ignored{{Name: hostile, Why: hostile}},
				FilesLoaded: []record.LoadedFile{{Path: hostile, Trust: hostile, Truncated: true}},
				Removed:     []sandbox.Orphan{{Kind: hostile, Name: hostile, Owner: hostile}},
			},
			record.SandboxStarted{Attestation: sandbox.Attestation{Runtime: hostile, RuntimeVersion: hostile, User: hostile, Lost: []string{hostile}}},
			record.ToolCalled{CallID: "tu_1", Name: hostile, Summary: hostile},
			runner.Delta{CallID: "tu_1", Text: hostile},
			runner.Delta{Text: hostile},
			record.ToolCompleted{CallID: "tu_1", Name: hostile, Success: true, Diff: hostile},
			record.ToolFailed{CallID: "tu_2", Name: hostile, Message: hostile},
			record.ToolInputInvalid{Name: hostile, Errors: []string{hostile}},
			record.ModelCallFailed{Message: hostile},
			record.Warning{Message: hostile},
			record.SandboxLost{Cause: hostile},
			record.ConfirmationResolved{By: hostile},
			record.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{Text: &loop.Text{Text: hostile}}, {ToolUse: &loop.ToolUse{}}}},
		})
		if liveMode {
			k <- begun
		}
		r.Close()
		for _, l := range Summary(runner.Report{Dir: hostile, SessionEnded: record.SessionEnded{
			Changed:      []record.Changed{{Path: hostile, Change: "added"}},
			HostExecuted: []record.HostExecuted{{Path: hostile, By: hostile}, {Path: hostile, By: hostile, Deleted: true}},
			Quarantined:  []record.Quarantined{{Path: hostile, To: hostile}, {Path: hostile, Why: hostile}},
			Cleared:      []record.Cleared{{Path: hostile, SetUID: true, SetGID: true}, {Path: hostile, Capabilities: true, Why: hostile}},
			Denials:      []record.Denial{{Name: hostile, Reason: hostile}}, Left: []string{hostile},
		}}, true) {
			_, _ = out.Write([]byte(l + "\n"))
		}
		for _, hidden := range []string{"\u202e", "\u200b"} {
			if strings.Contains(out.String(), hidden) {
				t.Errorf("%q reached the screen", hidden)
			}
		}
	}
}

func TestColoursAreOffWhereTheyAreNotWanted(t *testing.T) {
	var out bytes.Buffer
	r := New(Options{Out: &out})
	play(t, r, session())
	r.Close()
	for _, l := range Summary(runner.Report{SessionEnded: record.SessionEnded{Changed: []record.Changed{{Path: "a", Insertions: 3, HasDiff: true}}}}, false) {
		out.WriteString(l)
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("an escape sequence without colours")
	}
}

func TestSummary(t *testing.T) {
	r := runner.Report{Dir: "/s", SessionEnded: record.SessionEnded{
		CostUSD: "unknown", WallMS: 4250, Usage: limits.Usage{Rounds: 1, ToolCalls: 2, InputTokens: 5, CachedInputTokens: 5, OutputTokens: 7},
		Changed: []record.Changed{
			{Path: "a.sh", Change: "modified", Insertions: 2, Deletions: 1, HasDiff: true},
			{Path: "long/name.bin", Change: "modified", Size: 2100},
			{Path: "old.bin", Change: "deleted"},
		},
		ChangedCount: record.ChangeCount{Files: 5, Insertions: 2, Deletions: 1, Uncounted: 4},
		HostExecuted: []record.HostExecuted{{Path: "sub/.caisson/config.yaml", By: "an agent", Deleted: true}, {Path: "Makefile", By: "make"}, {Path: "l", By: "x", Target: "/etc"}},
	}}
	want := []string{
		" a.sh          | 3 ++-",
		" long/name.bin | modified, 2.1 KiB",
		" old.bin       | deleted",
		" … and 2 more",
		" 5 files changed, 2 insertions(+), 1 deletion(-), and 4 files whose lines are not counted",
		"! read Makefile before you go on: make may run or obey it",
		"! l is a symlink that leads out of the workspace, to /etc",
		"! sub/.caisson/config.yaml was deleted: what it asked of an agent no longer matters",
		"cost unknown · 10 tokens in, 7 out · 1 model call, 2 tool calls · 4.2 s · records in /s",
	}
	if diff := cmp.Diff(want, Summary(r, false)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A refused call is reported once, at its end, whatever refused it.
func TestARefusalIsToldOnce(t *testing.T) {
	type resolved = record.ConfirmationResolved
	for want, tc := range map[string]struct {
		asked  *resolved // nil if nothing was asked
		class  tools.ErrorClass
		reason string
	}{
		"refused by you":                    {&resolved{By: "user", Client: "terminal"}, tools.ErrorUserDenied, "user"},
		"refused by http:alice":             {&resolved{By: "user", Client: "http:alice"}, tools.ErrorUserDenied, "user"},
		"refused by a stored answer":        {&resolved{By: "grant"}, tools.ErrorUserDenied, "grant"},
		"refused: no one could be asked":    {&resolved{By: "on_prompt"}, tools.ErrorPermissionDenied, "no_approver"},
		"refused: no one answered in time":  {&resolved{By: "timeout"}, tools.ErrorConfirmationTimeout, ""},
		"permission_denied: It is refused.": {nil, tools.ErrorPermissionDenied, "mode_deny"},
	} {
		var out bytes.Buffer
		r := New(Options{Out: &out})
		var records []any
		if p := tc.asked; p != nil {
			p.CallID, p.Decision, p.Scope = "tu_1", approval.DecisionDeny, approval.ScopeOnce
			records = []any{record.ConfirmationRequested{CallID: "tu_1", Name: "shell", Summary: "rm x"}, *p}
			want = "rm x  " + want
		} else {
			want = " " + want
		}
		play(t, r, append(records, record.ToolFailed{CallID: "tu_1", Name: "shell", Class: tc.class, Reason: tc.reason, Message: "It is refused."}))
		r.Print(Summary(runner.Report{SessionEnded: record.SessionEnded{Denials: []record.Denial{{Name: "shell", Class: tc.class, Reason: tc.reason}}}}, false)...)
		r.Close()
		if got := out.String(); !strings.HasPrefix(got, "✗ shell "+want+"\n") || strings.Count(got, "shell") != 1 {
			t.Errorf("%s:\n%s", want, got)
		}
	}
}

// The first lines say where changes go, count in words, and leave the details of the
// backend's choice to the records.
func TestTheFirstLines(t *testing.T) {
	var out bytes.Buffer
	r := New(Options{Out: &out})
	play(t, r, []any{
		record.SessionCreated{
			Version: "1.0", Workspace: "/w", WorkspaceMode: "overlay", Policy: "ci", Image: "host", Model: loop.ModelInfo{Provider: "replay", Model: "x"},
			Backend: record.BackendChoice{Chosen: "gvisor", Why: "without namespaces, because this process may not make any (operation not permitted); no local Docker engine can be used: permission denied while trying: dial unix /var/run/docker.sock: connect"},
			Budget:  record.Budget{Rounds: new(int64(1))},
		},
		record.SandboxStarted{Attestation: sandbox.Attestation{Runtime: "runsc", RuntimeVersion: "1", Isolation: sandbox.IsolationProcess, User: "0:0", Capabilities: []string{"CAP_KILL"}, Seccomp: "filter", Network: "none"}},
	})
	r.Close()
	const want = `caisson 1.0 · replay/x on /w · policy ci · at most 1 round
sandbox gvisor (without namespaces, because this process may not make any (operation not permitted); no local Docker engine can be used; caisson doctor has the reason), image host
changes go to an overlay: the workspace stays as it is until caisson apply
● sandbox started in 0 ms: runsc 1 without namespaces, commands as 0:0 with capabilities CAP_KILL, seccomp filter, network: none, memory not limited, processes not limited
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Lines are only broken at blanks. Code stays unchanged.
func TestLinesAreBrokenAtBlanks(t *testing.T) {
	got := Wrap([]string{
		"! use the --policy flag of caisson run",
		"I look at /a/very/long/path/of/a/file.go first",
		"    code is left as it is, however long",
		"```", "and so is code between fences, too", "```",
	}, 21)
	want := []string{
		"! use the --policy", "  flag of caisson", "  run",
		"I look at", "/a/very/long/path/of/a/file.go", "first",
		"    code is left as it is, however long",
		"```", "and so is code between fences, too", "```",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Lines are not broken at a blank with a combining mark.
func TestWrapWordsKeepsMarks(t *testing.T) {
	for l, want := range map[string][]string{
		"one two three":       {"one two", "three"},
		"one two \u0301three": {"one two \u0301three"},
	} {
		if got := WrapWords(l, 8, ""); !slices.Equal(got, want) {
			t.Errorf("%q becomes %q, want %q", l, got, want)
		}
	}
}

func TestRowsOfLists(t *testing.T) {
	got := Wrap([]string{"1. one two three", "  10) one two three", "- one two three", "1.5 one two three"}, 12)
	want := []string{"1. one two", "   three", "  10) one", "      two", "      three", "- one two", "  three", "1.5 one two", "three"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The line of an ended call takes one row. Its ending is never cut.
func TestEndedCallsTakeOneRow(t *testing.T) {
	for _, columns := range []int{60, 80, 200} {
		out := &screen{t: t, columns: columns, rows: 24}
		r := New(Options{Out: out, Size: func() (int, int) { return columns, 24 }})
		r.Record(newRecord(t, record.ToolCalled{CallID: "1", Name: "shell", Summary: strings.Repeat("go test ./... ", 20)}))
		r.Record(newRecord(t, record.ToolCompleted{CallID: "1", Name: "shell", LatencyMS: 4100, Metadata: map[string]any{"exit_code": 1}}))
		r.Close()
		if shown := strings.TrimSpace(out.String()); strings.Contains(shown, "\n") || !strings.HasSuffix(shown, "…  exit code 1  4.1s") {
			t.Errorf("%d columns show\n%s", columns, shown)
		}
	}
}

func TestTrimCents(t *testing.T) {
	for amount, want := range map[string]string{"0.000000": "0.00", "0.012300": "0.0123", "1.500000": "1.50", "2.000001": "2.000001", "3": "3.00"} {
		if got := TrimCents(amount); got != want {
			t.Errorf("%s becomes %s, want %s", amount, got, want)
		}
	}
}

// TestDependenciesBuryNothing: the files that a package manager installs take one line
// of the summary, after everything that users must read.
func TestDependenciesBuryNothing(t *testing.T) {
	var r runner.Report
	for i := range 83 {
		r.HostExecuted = append(r.HostExecuted, record.HostExecuted{Path: fmt.Sprintf("node_modules/m%02d/package.json", i), By: "node", Added: true})
	}
	r.HostExecuted = append(r.HostExecuted, record.HostExecuted{Path: "web/src/tools/x/Makefile", By: "make", Added: true})
	r.HostExecutedOmitted = 7
	want := []string{
		"! read web/src/tools/x/Makefile before you go on: make may run or obey it",
		"! read 83 new files in node_modules before you go on: node may run or obey them",
		"! … and 7 other files that programs of this machine run or obey",
	}
	if diff := cmp.Diff(want, Notices(r, false)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestFactsAreToldOnce: a sandbox's missing protections are shown if they are news, and
// nothing else as a warning.
func TestFactsAreToldOnce(t *testing.T) {
	var out bytes.Buffer
	known := ""
	r := New(Options{Out: &out, Untold: func(_ string, facts []string) []string {
		return slices.DeleteFunc(slices.Clone(facts), func(f string) bool { return f == known })
	}})
	payload, err := json.Marshal(record.SandboxStarted{Attestation: sandbox.Attestation{Runtime: "runsc", Lost: []string{"no cgroups", "no users"}}})
	if err != nil {
		t.Fatal(err)
	}
	started := record.Record{Kind: record.KindSandboxStarted, Payload: payload}
	for _, tc := range []struct {
		known string
		show  func(record.Record)
		want  string
	}{
		{"", r.RecordWarning, "! not protected here: no cgroups\n! not protected here: no users\n"},
		{"no cgroups", r.RecordWarning, "! not protected here: no users\n"},
		{"no users", r.Record, "● sandbox started in 0 ms: runsc , commands as  with no capabilities, seccomp , network: , memory not limited, processes not limited\n! not protected here: no cgroups\n"},
	} {
		known = tc.known
		out.Reset()
		if tc.show(started); out.String() != tc.want {
			t.Errorf("%q known: %q, want %q", tc.known, out.String(), tc.want)
		}
	}
	r.Close()
}

// TestNetworkLines checks what is shown of commands' network: its rules, hosts without
// an address once, and no advice to allow the public registry instead of the user's
// own.
func TestNetworkLines(t *testing.T) {
	var out bytes.Buffer
	r := New(Options{Out: &out})
	unresolved := record.NetworkClosed{Host: "gone.test:443", Ending: "resolve"}
	ofCall := unresolved
	ofCall.CallID = "tu_1"
	play(t, r, []any{
		record.SessionCreated{Egress: &record.Egress{Allow: []string{"https://npm.corp.test/", "tcp://a.test:1"}, Presets: []string{"npm"}}},
		record.SandboxStarted{Attestation: sandbox.Attestation{Network: "none"}},
		unresolved, unresolved,
		record.NetworkClosed{Host: "there.test:443", Ending: "done"},
		record.NetworkDenied{Host: "registry.npmjs.org:443", Way: "connect", Reason: "not_allowed"},
		record.ToolCalled{CallID: "tu_1", Name: "shell"},
		ofCall,
		record.NetworkClosed{CallID: "tu_1", Host: "[fd00::1]:443", Server: "docs", Ending: "resolve"},
	})
	r.Close()
	var got []string
	for line := range strings.Lines(out.String()) {
		if _, network, ok := strings.Cut(line, ", network: "); ok {
			got = append(got, strings.Split(network, ", ")[0])
		} else if strings.HasPrefix(line, "! ") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{
		"2 rules (presets npm)", "! could not resolve gone.test",
		"! refused to connect to registry.npmjs.org:443: not_allowed: the preset npm allows your own registry in its place",
		"! MCP server docs could not resolve fd00::1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	out.Reset()
	r = New(Options{Out: &out})
	r.RecordWarning(newRecord(t, record.SessionCreated{Egress: &record.Egress{Allow: []string{"https://npm.corp.test/"}, Presets: []string{"npm"}}}))
	r.RecordWarning(newRecord(t, record.NetworkDenied{Host: "registry.npmjs.org:443", Way: "connect", Reason: "not_allowed"}))
	r.Close()
	if out.String() != want[2]+"\n" {
		t.Errorf("only warnings: %q", out.String())
	}
}
