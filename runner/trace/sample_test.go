package trace

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

// writer makes a session's folder as a session does, with a clock of its own.
type writer struct {
	t     *testing.T
	state string
	id    string
	dir   string
	rec   *record.Recorder
	now   time.Time
	turn  string
}

// patch writes the session's patch and returns its hash.
func (w *writer) patch(text string) string {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, record.PatchFile), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func newWriter(t *testing.T, state string) *writer {
	t.Helper()
	w := &writer{t: t, state: state, now: time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)}
	w.id = "ses_" + ulid.MustNew(ulid.Timestamp(w.now), ulid.DefaultEntropy()).String()
	w.dir = sessiondir.Path(state, w.id)
	if err := os.MkdirAll(w.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, sessiondir.LogFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	w.rec, err = record.NewRecorder(record.RecorderOptions{Dir: w.dir, Session: w.id, Now: func() time.Time { return w.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.rec.Close() })
	return w
}

// put writes a record, after some time.
func (w *writer) put(after time.Duration, actor record.Actor, p record.Payload) {
	w.t.Helper()
	w.now = w.now.Add(after)
	if _, err := w.rec.Write(record.Entry{Turn: w.turn, Actor: actor, Payload: p}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *writer) close() Session {
	w.t.Helper()
	if err := w.rec.Close(); err != nil {
		w.t.Fatal(err)
	}
	s, err := Find(w.state, w.id)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *writer) created(task string) {
	w.put(0, record.ActorSystem, record.SessionCreated{
		Version: "0.4.0", Task: task, Workspace: "/home/ada/shop", WorkspaceMode: "overlay", Git: "ro",
		Backend: record.BackendChoice{Asked: "auto", Chosen: "gvisor", Why: "no engine"}, Image: "golang:1.26",
		Model: loop.ModelInfo{Provider: "openai", Model: "gpt-5"}, Policy: "default", OnPrompt: "deny",
		Tools: []record.OfferedTool{
			{Name: "read_file", Class: tools.ClassRead, Runs: tools.PlaceHost},
			{Name: "grep", Class: tools.ClassRead, Runs: tools.PlaceHost},
			{Name: "patch_file", Class: tools.ClassWrite, Runs: tools.PlaceSandbox},
			{Name: "shell", Class: tools.ClassExecute, Runs: tools.PlaceSandbox},
			{Name: "fetch", Class: tools.ClassRead, Runs: tools.PlaceHost},
		},
		Egress:        &record.Egress{Allow: []string{"https://proxy.golang.org/"}, Presets: []string{"go"}, Unknown: "deny"},
		Configuration: []record.Source{{Name: "built-in"}}, Ignored: []record.Ignored{{Name: ".mcp.json", Why: "the workspace is not trusted"}},
	})
}

// model writes one model call with an answer and calls.
func (w *writer) model(round int, takes time.Duration, text string, calls ...loop.ToolUse) {
	call := loop.ModelCall{Round: round, Profile: "main", Attempt: 1, Model: loop.ModelInfo{Provider: "openai", Model: "gpt-5"}}
	w.put(10*time.Millisecond, record.ActorAgent, record.ModelCallStarted{ModelCall: call, Tools: 5})
	w.put(takes, record.ActorAgent, record.ModelCallCompleted{
		ModelCall: call, LatencyMS: takes.Milliseconds(), Finish: "tool_calls", ToolCalls: len(calls),
		Usage: limits.Usage{Rounds: 1, InputTokens: int64(900 + 350*round), CachedInputTokens: int64(800 * (round - 1)), OutputTokens: int64(60 + 20*round), CostMicroUSD: new(int64(2100 + 400*round))},
	})
	m := record.Message{Role: loop.RoleAssistant, Blocks: []loop.Block{{Text: &loop.Text{Text: text}}}}
	for _, c := range calls {
		m.Blocks = append(m.Blocks, loop.Block{ToolUse: &c})
	}
	w.put(0, record.ActorAgent, m)
}

func newToolUse(id, name, input string) loop.ToolUse {
	return loop.ToolUse{ID: id, Name: tools.Name(name), Input: json.RawMessage(input)}
}

func (w *writer) called(id, name string, class tools.Class, summary string) {
	w.put(time.Millisecond, record.ActorAgent, record.ToolCalled{CallID: id, Name: tools.Name(name), Class: class, Rule: "class " + string(class), Summary: summary})
}

func (w *writer) done(id, name string, after time.Duration, p record.ToolCompleted) {
	p.CallID, p.Name, p.LatencyMS = id, tools.Name(name), after.Milliseconds()
	w.put(after, record.ActorTool, p)
}

func (w *writer) result(id, text string, isError bool) {
	w.put(0, record.ActorTool, record.Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{
		ToolUseID: id, Content: []tools.Block{{Text: text}}, IsError: isError,
	}}}})
}

func attestation() sandbox.Attestation {
	return sandbox.Attestation{
		Backend: "gvisor", Runtime: "runsc", RuntimeVersion: "release-20260905", Container: "caisson-1", Image: "golang:1.26",
		ImageDigest: "sha256:6ef6acc0a1bc9f2a6dd223a56e926f9f0d70dd1eb0c23c9379139cbb1f13b78a", User: "10001:10001",
		NoNewPrivileges: true, Seccomp: "filter", Network: "none", RootReadOnly: true, Isolation: sandbox.IsolationProcess, Workspace: "/home/ada/shop", WorkspaceMode: "overlay", Git: "ro",
		Limits: sandbox.AttestedLimits{MemoryBytes: 2 << 30, PIDs: 256, MilliCPUs: 2000},
	}
}

// newShopSession is a session with everything that a page shows: two turns with
// a long time between them, parallel calls, answers, refusals, a failure, a
// diff.
func newShopSession(t *testing.T, state string) Session {
	t.Helper()
	w := newWriter(t, state)
	w.created("The checkout adds the shipping twice for orders above 100 €. Find out why, mend it, and show that the tests pass.")
	w.turn = "trn_01JD0000000000000000000000"
	w.put(2*time.Millisecond, record.ActorUser, record.TurnStarted{})
	w.put(0, record.ActorSystem, record.Message{Role: loop.RoleSystem, Blocks: []loop.Block{{Text: &loop.Text{Text: "You are an agent that does a task on the files of one workspace."}}}})
	w.put(0, record.ActorUser, record.Message{Role: loop.RoleUser, Blocks: []loop.Block{{Text: &loop.Text{Text: "The checkout adds the shipping twice for orders above 100 €. Find out why, mend it, and show that the tests pass."}}}})
	w.model(1, 1900*time.Millisecond, "I look at how the total is made, and at what the tests say of it.",
		newToolUse("tu_1", "read_file", `{"path":"checkout/total.go"}`), newToolUse("tu_2", "grep", `{"pattern":"shipping","path":"."}`), newToolUse("tu_3", "read_file", `{"path":"checkout/total_test.go"}`))
	w.called("tu_1", "read_file", tools.ClassRead, "checkout/total.go")
	w.called("tu_2", "grep", tools.ClassRead, "shipping")
	w.called("tu_3", "read_file", tools.ClassRead, "checkout/total_test.go")
	w.done("tu_1", "read_file", 12*time.Millisecond, record.ToolCompleted{Success: true, OutputBytes: 812})
	w.done("tu_3", "read_file", 3*time.Millisecond, record.ToolCompleted{Success: true, OutputBytes: 1930})
	w.done("tu_2", "grep", 220*time.Millisecond, record.ToolCompleted{Success: true, OutputBytes: 402})
	w.result("tu_1", "package checkout\n\nfunc Total(items []Item, ship Money) Money {\n\tsum := ship\n\tfor _, i := range items {\n\t\tsum += i.Price\n\t}\n\tif sum > 100_00 {\n\t\tsum += ship\n\t}\n\treturn sum\n}\n", false)
	w.result("tu_2", "checkout/total.go:4: \tsum := ship\ncheckout/total.go:9: \t\tsum += ship\n", false)
	w.result("tu_3", strings.Repeat("// a test\n", 30), false)
	w.put(0, record.ActorSystem, record.SandboxStarted{Attestation: attestation(), StartMS: 480})
	w.model(2, 2300*time.Millisecond, "Line 9 adds it again. I run the tests before I change anything.", newToolUse("tu_4", "shell", `{"command":"go test ./checkout/..."}`))
	w.called("tu_4", "shell", tools.ClassExecute, "go test ./checkout/...")
	w.done("tu_4", "shell", 3400*time.Millisecond, record.ToolCompleted{OutputBytes: 233, Metadata: map[string]any{"exit_code": 1}})
	w.result("tu_4", "exit code 1 after 3.4 s\nstdout (233 bytes):\n--- FAIL: TestTotalAbove100 (0.00s)\n    total_test.go:31: Total = 11790, want 11295\nFAIL\nFAIL\tshop/checkout\t0.004s\n", false)
	w.model(3, 1500*time.Millisecond, "I take the second addition out.", newToolUse("tu_5", "patch_file", `{"path":"checkout/total.go","old":"\tif sum > 100_00 {\n\t\tsum += ship\n\t}\n","new":""}`), newToolUse("tu_6", "fetch", `{"url":"http://169.254.169.254/latest/meta-data/"}`))
	diff := "--- a/checkout/total.go\n+++ b/checkout/total.go\n@@ -5,9 +5,6 @@\n \tfor _, i := range items {\n \t\tsum += i.Price\n \t}\n-\tif sum > 100_00 {\n-\t\tsum += ship\n-\t}\n \treturn sum\n }\n"
	w.put(time.Millisecond, record.ActorSystem, record.ConfirmationRequested{CallID: "tu_5", Name: "patch_file", Class: tools.ClassWrite, ID: "00ff", Summary: "checkout/total.go", Diff: diff, Projected: []string{"checkout/total.go"}})
	w.called("tu_6", "fetch", tools.ClassRead, "http://169.254.169.254/latest/meta-data/")
	w.put(0, record.ActorTool, record.NetworkDenied{CallID: "tu_6", URL: "http://169.254.169.254/latest/meta-data/", Host: "169.254.169.254:80", Reason: "no entry of the allowlist permits it"})
	w.put(time.Millisecond, record.ActorTool, record.ToolFailed{CallID: "tu_6", Name: "fetch", Class: tools.ErrorPermissionDenied, Reason: "egress", Message: "The operator's policy does not permit this address.", LatencyMS: 1})
	w.put(4200*time.Millisecond, record.ActorUser, record.ConfirmationResolved{CallID: "tu_5", RequestID: "00ff", Decision: approval.DecisionAllow, Scope: approval.ScopeOnce, By: "user", Client: "terminal"})
	w.put(20*time.Millisecond, record.ActorUser, record.ConfirmationAttempted{CallID: "tu_5", RequestID: "00ff", Decision: approval.DecisionDeny, By: "http", Outcome: approval.AttemptResolved, Recorded: approval.DecisionAllow, RecordedBy: "user"})
	w.called("tu_5", "patch_file", tools.ClassWrite, "checkout/total.go")
	w.done("tu_5", "patch_file", 14*time.Millisecond, record.ToolCompleted{Success: true, OutputBytes: 61, FilesModified: []string{"checkout/total.go"}})
	w.result("tu_5", "Patched checkout/total.go: replaced 1 place.", false)
	w.result("tu_6", "The operator's policy does not permit this address.", true)
	w.model(4, 900*time.Millisecond, "Now the tests again.", newToolUse("tu_7", "shell", `{"command":"go test ./..."}`))
	w.called("tu_7", "shell", tools.ClassExecute, "go test ./...")
	for n := range int64(2) {
		w.put(0, record.ActorTool, record.NetworkOpened{CallID: "tu_7", Conn: n + 1, Way: "connect", Host: "proxy.golang.org:443", Rule: "tls://proxy.golang.org", By: "rule"})
		w.put(0, record.ActorTool, record.NetworkClosed{CallID: "tu_7", Conn: n + 1, Host: "proxy.golang.org:443", Sent: 600, Received: 40_000, Ending: record.EndingDone})
	}
	w.done("tu_7", "shell", 3900*time.Millisecond, record.ToolCompleted{Success: true, OutputBytes: 58, Metadata: map[string]any{"exit_code": 0}})
	w.result("tu_7", "exit code 0 after 3.9 s\nstdout (58 bytes):\nok  \tshop/checkout\t0.004s\nok  \tshop/cart\t0.010s\n", false)
	w.model(5, 1400*time.Millisecond, "The tests pass. Total added the shipping at its beginning and once more above 100 €; the second addition is gone.")
	w.put(0, record.ActorSystem, record.TurnCompleted{Reason: loop.StopAnswered, ModelCalls: 5, ToolCalls: 7, WallMS: 20_000})
	w.turn = "trn_01JD0000000000000000000001"
	w.put(47*time.Minute, record.ActorUser, record.TurnStarted{})
	w.put(0, record.ActorUser, record.Message{Role: loop.RoleUser, Blocks: []loop.Block{{Text: &loop.Text{Text: "Publish it."}}}})
	w.model(1, 1100*time.Millisecond, "I push the branch.", newToolUse("tu_8", "shell", `{"command":"git push origin HEAD","timeout_seconds":"soon"}`), newToolUse("tu_9", "shell", `{"command":"git push origin HEAD"}`))
	w.put(0, record.ActorTool, record.ToolInputInvalid{CallID: "tu_8", Name: "shell", Errors: []string{"/timeout_seconds: got string, want integer"}})
	w.result("tu_8", "The input is invalid:\n/timeout_seconds: got string, want integer", true)
	w.put(0, record.ActorSystem, record.ConfirmationRequested{CallID: "tu_9", Name: "shell", Class: tools.ClassExecute, ID: "00fe", Summary: "git push origin HEAD"})
	w.put(2600*time.Millisecond, record.ActorUser, record.ConfirmationResolved{CallID: "tu_9", RequestID: "00fe", Decision: approval.DecisionDeny, Scope: approval.ScopeOnce, By: "user", Client: "terminal", Reason: "use make test"})
	w.put(0, record.ActorTool, record.ToolFailed{CallID: "tu_9", Name: "shell", Class: tools.ErrorUserDenied, Reason: "user", Message: "The user denied this operation."})
	w.result("tu_9", "The user denied this operation.", true)
	w.model(2, 700*time.Millisecond, "You denied the push; nothing was published. The change waits in the overlay.")
	w.put(0, record.ActorSystem, record.TurnCompleted{Reason: loop.StopAnswered, ModelCalls: 2, ToolCalls: 2, WallMS: 5000})
	w.turn = ""
	w.put(100*time.Millisecond, record.ActorSystem, record.SessionEnded{
		Reason: loop.StopAnswered, Usage: limits.Usage{Rounds: 7, ToolCalls: 9, CostMicroUSD: new(int64(23_800))}, CostUSD: "0.023800",
		WallMS:         w.now.Sub(time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)).Milliseconds(),
		Changed:        []record.Changed{{Path: "checkout/total.go", Change: "modified", Deletions: 3, HasDiff: true}, {Path: "Makefile", Change: "modified", Insertions: 1, HasDiff: true}},
		ChangedOmitted: 1_998, ChangedCount: record.ChangeCount{Files: 2_000, Insertions: 1, Deletions: 3, Uncounted: 1_998},
		HostExecuted: []record.HostExecuted{{Path: "Makefile", By: "make"}},
		Denials:      []record.Denial{{CallID: "tu_6", Name: "fetch", Class: tools.ErrorPermissionDenied, Reason: "egress"}, {CallID: "tu_9", Name: "shell", Class: tools.ErrorUserDenied, Reason: "user"}},
		Overlay:      &record.OverlayResult{State: "kept", Changes: 2},
		PatchSHA256:  w.patch("diff --git a/checkout/total.go b/checkout/total.go\n" + diff),
	})
	return w.close()
}

// sampleCount is the count of the sample's changes.
const sampleCount = "2000 files changed, 1 insertion(&#43;), 3 deletions(-), and 1998 files whose lines are not counted"

// TestSamplePage writes the sample's page to where a person can look at it.
func TestSamplePage(t *testing.T) {
	s := newShopSession(t, t.TempDir())
	var out bytes.Buffer
	if _, err := HTML(&out, s); err != nil {
		t.Fatal(err)
	}
	if file := os.Getenv("CAISSON_SAMPLE_PAGE"); file != "" {
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"Turn 2", "nothing for 47m0s", "⋯ 47 min ⋯", "Cost and tokens per turn", "deny by user at terminal", "refused to connect to", "2 connections to proxy.golang.org:443: 1,200 bytes sent, 80,000 received", "git push origin HEAD", "before you go on: make may run or obey it", "−3", "changed nothing: resolved_already", "<b>2,000</b><span>files changed", sampleCount} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if o, err := Read(s, nil); err != nil || o.Protections()[0] != (Protection{"Network", "1 rule (presets go)", true}) {
		t.Errorf("the panel of the sandbox does not say what commands may reach: %+v, %v", o.Protections(), err)
	}
	if o, err := Read(s, nil); err != nil || o.Protections()[1] != (Protection{"Isolation", "process", false}) {
		t.Errorf("the panel of the sandbox does not say that it has no namespaces: %+v, %v", o.Protections(), err)
	}
	out.Reset()
	if _, err := Show(&out, s, ShowOptions{}); strings.Count(out.String(), "network: 1 rule (presets go), ") != 2 || strings.Count(out.String(), ", without namespaces, ") != 2 {
		t.Errorf("the head and the sandbox's line do not say what commands may reach, and that there are no namespaces: %v\n%s", err, out.String())
	}
	out.Reset()
	if _, err := Show(&out, s, ShowOptions{}); err != nil || !strings.Contains(out.String(), html.UnescapeString(sampleCount)) {
		t.Errorf("the story does not count the changes: %v", err)
	}
}

// A session over HTTP has no task, so its first message stands for it in lists,
// on the page and in the story. The controls are a session with a task, and one
// without messages.
func TestSessionsWithoutATask(t *testing.T) {
	for _, tc := range []struct{ task, message, want, title string }{
		{"", "say hello\nand more", "say hello\nand more", "say hello …"},
		{"the task", "say hello", "the task", "the task"},
		{"", "", "", ""},
	} {
		state := t.TempDir()
		w := newWriter(t, state)
		w.created(tc.task)
		if tc.message != "" {
			w.turn = "trn_1"
			w.put(100*time.Microsecond, record.ActorUser, record.TurnStarted{Client: "http:ada"})
			w.put(0, record.ActorSystem, record.Message{Role: loop.RoleSystem, Blocks: []loop.Block{{Text: &loop.Text{Text: "You are an agent."}}}})
			for _, text := range []string{tc.message, "what the workspace says"} {
				w.put(0, record.ActorUser, record.Message{Role: loop.RoleUser, Blocks: []loop.Block{{Text: &loop.Text{Text: text}}}})
			}
			w.put(0, record.ActorAgent, record.ModelCallStarted{ModelCall: loop.ModelCall{Round: 1}})
			w.put(300*time.Microsecond, record.ActorAgent, record.ModelCallCompleted{ModelCall: loop.ModelCall{Round: 1}})
			w.turn = ""
		}
		w.put(100*time.Microsecond, record.ActorSystem, record.SessionEnded{Reason: loop.StopAnswered, CostUSD: "unknown"})
		s := w.close()
		list, err := List(state, 0, nil)
		if err != nil || len(list) != 1 || list[0].Task != tc.want {
			t.Errorf("%+v: listed as %+v, %v", tc, list, err)
		}
		var page, story bytes.Buffer
		over, err := HTML(&page, s)
		if err != nil || over.Task != tc.want {
			t.Errorf("%+v: %q, %v", tc, over.Task, err)
		}
		if tc.title == "" {
			tc.title = s.ID
		}
		row := strings.Contains(page.String(), `<dt>Task</dt><dd class="text">`+tc.want+`</dd>`)
		if row != (tc.want != "") || strings.Contains(page.String(), "<dt>Task</dt>") != row || !strings.Contains(page.String(), "<h1>"+tc.title+"</h1>") {
			t.Errorf("%+v: the page begins with\n%s", tc, page.String()[:min(page.Len(), 16<<10)])
		}
		cost := "unknown"
		if tc.message == "" { // no model was called
			cost = "–"
		}
		if !strings.Contains(page.String(), "<b>"+cost+"</b><span>cost</span>") {
			t.Errorf("%+v: the cost is not %q", tc, cost)
		}
		ticks := regexp.MustCompile(`<g class="tick"><line[^>]*><text[^>]*>([^<]*)`).FindAllStringSubmatch(page.String(), -1)
		seen := map[string]bool{}
		for _, m := range ticks {
			if seen[m[1]] {
				t.Errorf("%q stands twice on the timeline", m[1])
			}
			seen[m[1]] = true
		}
		if tc.message != "" && len(ticks) == 0 {
			t.Error("the timeline has no time")
		}
		if _, err := Show(&story, s, ShowOptions{}); err != nil || strings.Contains(story.String(), "task ") != (tc.want != "") {
			t.Errorf("%+v: %v\n%s", tc, err, story.String())
		}
	}
}
